"""The failure that ended a process of a run: the exception, and the line of the user's code that raised it."""

from __future__ import annotations

import json
import linecache
import os
import sys
import sysconfig
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from watchglass.capture.modules import crashed
from watchglass.config import environment
from watchglass.errors import TrainingStopped
from watchglass.records import Failure
from watchglass.store import redacted

#: Most pieces that are kept: a text and the end of its line are two pieces, a traceback is many.
_MOST_PIECES = 3


class ExitText:
    """Finds the text of ``sys.exit("text")`` while it is open. For the main thread.

    Unlike other uncaught exceptions, a ``SystemExit`` is not kept until functions of ``atexit`` run, and no hook is
    called with it. The interpreter writes its text to ``sys.stderr`` when no Python function runs in the main thread
    any more. So the ``write`` of that stream is wrapped: a call without a Python caller has the text. Any thread may
    write, and what it writes is unchanged.
    """

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


#: Characters of a message, of a line of code, and of the text from which they are made.
_MESSAGE, _SOURCE, _LOOKED_AT = 500, 200, 20_000
#: Frames of a traceback that are examined, from the innermost on.
_MOST_FRAMES = 1_000
#: Loaders, multiprocessing and torchrun put the traceback of another process behind this line.
_TRACEBACK = "Traceback (most recent call last)"

#: The text of this process's ``sys.exit``.
exit_text = ExitText()


def failure_from(error: BaseException | None, trace: TracebackType | None = None) -> Failure | None:
    """The failure of an exception; None for an exit in order and for a requested stop.

    Args:
        error: The exception that ended the process, or is about to.
        trace: Its traceback, if the exception holds none.
    """
    if error is None or isinstance(error, TrainingStopped):
        return None
    status: int | None = 1
    kind, message = "exception", _message(error)
    if isinstance(error, SystemExit):
        if error.code in (None, 0):
            return None
        # A script that catches an exception, prints it and exits has failed by that exception.
        inner = error.__context__
        if inner is not None and not error.__suppress_context__:
            return failure_from(inner)
        kind, status = "exit", error.code if isinstance(error.code, int) else 1
        message = "" if isinstance(error.code, int) else message
    elif isinstance(error, KeyboardInterrupt):
        kind, status = "interrupt", None
    file, line, source = _place(error, error.__traceback__ or trace)
    module, figures = crashed(error.__traceback__ or trace) if kind == "exception" else ("", "")
    return Failure(
        kind, _name(type(error)), message, file, line, source, exit_status=status, wall_ns=time.time_ns(),
        module=_line(module, _SOURCE), figures=_line(figures, _SOURCE),
    )  # fmt: skip


def report(
    error: BaseException | None, trace: TracebackType | None = None, *, trains: bool, first: bool = False,
    path: str | None = None,
) -> None:  # fmt: skip
    """Report why this process ends to its launcher, if it has one: a line in a file that the launcher reads.

    Args:
        error: The exception.
        trace: Its traceback, if the exception holds none.
        trains: Whether this process trains; the end of any other process is not the end of the run.
        first: Whether it is the process that the launcher started.
        path: The file, if not the one that the launcher has named.
    """
    path = path or environment.failures()
    failure = failure_from(error, trace) if path else None
    if not path or failure is None:
        return
    line = json.dumps({**failure.to_json(), "first": first, "trains": trains or environment.is_rank()}) + "\n"
    with suppress(OSError):  # the launcher is gone, or still sees the exit status
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0))
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)


def _name(kind: type[BaseException]) -> str:
    module = kind.__module__
    return kind.__qualname__ if module in ("builtins", "__main__") else f"{module}.{kind.__qualname__}"


def _message(error: BaseException) -> str:
    """The message in one line; of the traceback of another process only its exception."""
    try:
        text = str(error.msg if isinstance(error, SyntaxError) else error)[:_LOOKED_AT]
    except Exception:
        return ""
    head, found, tail = text.partition(_TRACEBACK)
    if found:
        first = next((line for line in head.splitlines() if line.strip(" -")), "")
        last = next((line for line in reversed(tail.splitlines()) if line.strip()), "")
        text = f"{first.strip(' -.:')}: {last.strip()}"
    return _line(text, _MESSAGE)


def _line(text: str, most: int) -> str:
    """In one line, without possible secrets: these are removed before the line is cut, which could split one."""
    line = redacted(" ".join(text.split()))
    return line if len(line) <= most else line[: most - 1] + "…"


def _place(error: BaseException, trace: TracebackType | None) -> tuple[str, int, str]:
    """File, line and source of the innermost frame of the user's code; of the innermost frame if there is none."""
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return _shown(error.filename), error.lineno, _line(error.text or "", _SOURCE)
    frames: list[tuple[str, int]] = []
    while trace is not None:
        frames.append((trace.tb_frame.f_code.co_filename, trace.tb_lineno))
        trace = trace.tb_next
    frames = frames[-_MOST_FRAMES:]
    place = next((frame for frame in reversed(frames) if _is_users(frame[0])), frames[-1] if frames else None)
    if place is None:
        return "", 0, ""
    return _shown(place[0]), place[1], _line(linecache.getline(*place), _SOURCE)


def _is_users(file: str) -> bool:
    """Whether a file belongs to no installed package, not to Python and not to this package."""
    if file.startswith("<"):  # frozen modules and generated code; cells of notebooks are the user's
        return file.startswith("<ipython-input")
    path = os.path.abspath(file)
    parts = Path(path).parts
    if "site-packages" in parts or "dist-packages" in parts:
        return False
    ours = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    library = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib")]
    return not any(folder and path.startswith(folder + os.sep) for folder in (ours, *library))


def _shown(file: str) -> str:
    """A path, relative if it lies below the working directory."""
    try:
        inside = Path(file).relative_to(os.getcwd())
    except (ValueError, OSError):
        return redacted(file)[-_MESSAGE:]
    return redacted(str(inside))[-_MESSAGE:]


def keep_interrupt(error: BaseException | None) -> None:
    """Let Python end this process by SIGINT where Ctrl-C ended the script, as in an unwatched run; for ``atexit``.

    The interpreter keeps a flag for an uncaught interrupt. Every ``exec`` resets it, also one in an imported module
    (``namedtuple``). An ``exec`` that raises an interrupt sets it again.
    """
    if isinstance(error, KeyboardInterrupt):
        with suppress(KeyboardInterrupt):
            exec("raise KeyboardInterrupt")  # noqa: S102  a constant


def report_uncaught(*, first: bool, trains: bool) -> None:
    """Report to the launcher the exception that was not caught and that Python has printed; for ``atexit``."""
    error = uncaught()
    if error is not None:
        report(error, getattr(sys, "last_traceback", None), trains=trains, first=first)
        keep_interrupt(error)


def uncaught() -> BaseException | None:
    """The exception that ends this process; None in an interactive session, where it ended one line only.

    After ``sys.exit`` with a text, an exit with that text, while :data:`exit_text` is open.
    """
    if hasattr(sys, "ps1"):
        return None
    error: BaseException | None = getattr(sys, "last_value", None)
    text = exit_text.found
    return SystemExit(text) if error is None and text is not None else error
