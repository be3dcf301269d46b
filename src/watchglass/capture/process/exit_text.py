"""The text of ``sys.exit("text")``, which the interpreter prints and does not keep.

Unlike other uncaught exceptions, a ``SystemExit`` is not kept until functions of ``atexit`` run, and no hook is called
with it. The interpreter writes its text to ``sys.stderr`` when no Python function runs in the main thread any more. So
the ``write`` of that stream is wrapped: a call without a Python caller has the text.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

#: Most pieces that are kept: a text and the end of its line are two pieces, a traceback is many.
_MOST_PIECES = 3


class ExitText:
    """Finds the text while it is open. For the main thread; any thread may write, and what it writes is unchanged."""

    def __init__(self) -> None:
        self._pieces: list[Any] = []
        self._close: Callable[[], None] = _nothing

    def open(self) -> None:
        """Observe the present ``sys.stderr`` from now on, if that is possible."""
        stream = sys.stderr
        if self._close is not _nothing or stream is None or "write" in getattr(stream, "__dict__", ("write",)):
            return  # already open, or another package has replaced write
        original, pieces, main = stream.write, self._pieces, threading.main_thread().ident

        def write(*args: Any, **kwargs: Any) -> Any:
            try:
                sys._getframe(1)
            except ValueError:  # no Python function is the caller
                if len(pieces) < _MOST_PIECES and threading.get_ident() == main:
                    pieces.append(args[0] if args else None)
            return original(*args, **kwargs)

        def close() -> None:
            if vars(stream).get("write") is write:
                del stream.write

        with suppress(Exception):
            stream.write = write  # type: ignore[method-assign]
            self._close = close

    def close(self) -> None:
        """Stop observing; the text is kept."""
        close, self._close = self._close, _nothing
        close()

    @property
    def found(self) -> str | None:
        """The text, None where the process does not end with one."""
        return str(self._pieces[0]) if len(self._pieces) == 2 and self._pieces[1] == "\n" else None


def _nothing() -> None:
    """Close nothing."""
