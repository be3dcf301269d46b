"""Operations of the system that fail, or are noted, where no real file system or limit can make them."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

#: An audit hook lasts as long as the interpreter: there is one, which calls those that are in use.
_listeners: list[Callable[[str, tuple[Any, ...]], None]] = []


def _heard(event: str, arguments: tuple[Any, ...]) -> None:
    for listener in _listeners:
        listener(event, arguments)


@functools.cache
def _install() -> None:
    sys.addaudithook(_heard)


@contextmanager
def audited(listener: Callable[[str, tuple[Any, ...]], None]) -> Iterator[None]:
    """Call ``listener`` with each audit event of Python and its arguments; what it raises, the operation raises."""
    _install()
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


@contextmanager
def refused(event: str, error: OSError, of: Callable[..., bool] = lambda *_: True) -> Iterator[list[tuple[Any, ...]]]:
    """Operations with this audit event fail with an error where ``of`` its arguments is true; what was refused."""
    found: list[tuple[Any, ...]] = []

    def refuse(heard: str, arguments: tuple[Any, ...]) -> None:
        if heard == event and of(*arguments):
            found.append(arguments)
            raise error

    with audited(refuse):
        yield found
