"""The interpreter of the script: the interpreter of this process, with the same flags."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

from watchglass.errors import LaunchError

#: Short options of python that take a value, and those followed only by arguments of the program.
_WITH_VALUE, _LAST = "WX", "cm"


def interpreter_flags(argv: Sequence[str] | None = None) -> list[str]:
    """The options on the command line of an interpreter.

    Args:
        argv: A command line as in ``sys.orig_argv``, which is the default. Options end at the first other
            word, at ``-m`` and at ``-c``; ``-um pkg`` gives ``["-u"]``.
    """
    words = list(sys.orig_argv if argv is None else argv)[1:]
    flags: list[str] = []
    while words:
        word = words.pop(0)
        if word.startswith("--") and word != "--":
            flags.append(word)
            if word == "--check-hash-based-pycs" and words:
                flags.append(words.pop(0))
            continue
        if not word.startswith("-") or word in ("-", "--"):
            break
        kept, ended = _short_options(word[1:])
        if kept:
            flags.append("-" + kept)
            if kept[-1] in _WITH_VALUE and _value_missing(kept) and words:
                flags.append(words.pop(0))
        if ended:
            break
    return flags


def _short_options(cluster: str) -> tuple[str, bool]:
    """The part of ``"um"`` before ``-m`` or ``-c``, and whether one of them was there."""
    for position, letter in enumerate(cluster):
        if letter in _WITH_VALUE:
            return cluster, False
        if letter in _LAST:
            return cluster[:position], True
    return cluster, False


def _value_missing(cluster: str) -> bool:
    """Whether the value of the ``W`` or ``X`` in a cluster is the next word: nothing follows the letter."""
    first = min(cluster.find(letter) for letter in _WITH_VALUE if letter in cluster)
    return first == len(cluster) - 1


def python_command() -> list[str]:
    """The beginning of a command line that runs this interpreter with its flags.

    Raises:
        LaunchError: There is no interpreter, as in an embedding application.
    """
    if not sys.executable:
        raise LaunchError("sys.executable is not set; start watchglass with python -m watchglass")
    return [sys.executable, *interpreter_flags()]


def check_bootstrap_possible(flags: Any = sys.flags) -> None:
    """Refuse flags of an interpreter that disable PYTHONPATH or ``site``, which bring capture into a training process.

    Raises:
        LaunchError: ``-E``, ``-I`` or ``-S`` was given.
    """
    for letter, is_set in (("I", flags.isolated), ("E", flags.ignore_environment), ("S", flags.no_site)):
        if is_set:
            raise LaunchError(f"python -{letter} disables capture; omit the flag, or use --no-capture")


def with_bootstrap(python_path: str | None, folder: str) -> str:
    """PYTHONPATH with the bootstrap folder first, the rest as it was.

    For python, an empty value means "none" and an empty *entry* the working directory, so an empty rest adds no
    separator.
    """
    rest = without_bootstrap(python_path, folder)
    return folder + os.pathsep + rest if rest else folder


def without_bootstrap(python_path: str | None, folder: str) -> str:
    """PYTHONPATH without the bootstrap folder."""
    if not python_path:
        return ""
    return os.pathsep.join(entry for entry in python_path.split(os.pathsep) if entry != folder)
