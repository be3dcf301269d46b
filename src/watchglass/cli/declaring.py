"""Options and arguments of verbs, declared as the help shows them."""

from __future__ import annotations

from typing import Any

import typer


def option(usage: str, text: str, **more: Any) -> Any:
    """An option of a verb.

    Args:
        usage: Its names, and the word for its value unless it is a switch: ``"--output, -o FILE"``.
        text: Its help.
        more: Further arguments of ``typer.Option``.
    """
    *names, last = usage.split(", ")
    name, _, metavar = last.partition(" ")
    return typer.Option(*names, name, metavar=metavar or None, help=text, **more)


def argument(word: str, text: str, **more: Any) -> Any:
    """An argument of a verb.

    Args:
        word: The word for it.
        text: Its help.
        more: Further arguments of ``typer.Argument``.
    """
    return typer.Argument(metavar=word, help=text, **more)
