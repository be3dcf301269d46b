"""How verbs report: errors, warnings and notes on stderr in one line each; exit statuses; ``--debug``."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import typer

from watchglass.errors import WatchglassError

#: Exit statuses of ``check``. Every verb that fails exits with 2.
CLEAN, FINDINGS, COULD_NOT = 0, 1, 2
#: Exit status after Ctrl-C: that of a process ended by the signal.
INTERRUPTED = 130

#: Whether --debug was given.
_debug: ContextVar[bool] = ContextVar("debug", default=False)


def print_error(message: str) -> None:
    """``watchglass: error: ...`` on stderr, always in one line."""
    _print_line("error", message)


def print_warning(message: str) -> None:
    """``watchglass: warning: ...`` on stderr, in one line."""
    _print_line("warning", message)


def print_note(message: str) -> None:
    """``watchglass: ...`` on stderr, in one line."""
    _print_line("", message)


@contextmanager
def failing_in_one_line(debug: bool) -> Iterator[None]:
    """Print an error in one line and exit with 2; with ``debug``, print its traceback first."""
    before = _debug.set(debug)
    try:
        yield
    except WatchglassError as error:
        show_traceback()
        print_error(str(error))
        raise typer.Exit(COULD_NOT) from None
    except (BrokenPipeError, typer.Exit, typer.Abort):
        raise
    except Exception as error:
        show_traceback()
        hint = "" if debug else " (unexpected; --debug shows the traceback)"
        print_error(f"{type(error).__name__}: {error}{hint}")
        raise typer.Exit(COULD_NOT) from None
    finally:
        _debug.reset(before)


def show_traceback() -> None:
    """Print the traceback of the exception being handled, if --debug was given."""
    if _debug.get():
        traceback.print_exc()


def _print_line(kind: str, message: str) -> None:
    from watchglass.view import printable

    line = printable(message)  # it may quote a file or an option
    try:
        print("watchglass: " + (f"{kind}: " if kind else "") + line, file=sys.stderr, flush=True)
    except (OSError, ValueError):  # stderr closed
        return
