"""What goes to people: results on stdout, progress and everything beside a script's own output on stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from watchglass import view
from watchglass.cli.failure import print_note
from watchglass.records import Verdict

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text


#: Progress is shown on what takes longer than this.
_PATIENCE_S = 1.0

#: Off a terminal one line tells what takes longer than this.
_SILENCE_S = 15.0

#: Columns of tables that nobody looks at in a terminal.
_PIPE_WIDTH = 120

#: Columns of the frame around a verdict, at most.
_FRAME_WIDTH = 110


def stdout_console() -> Console:
    """Console for results; in a pipe wide enough that a line is a line for grep."""
    from rich.console import Console

    piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(highlight=False, width=_PIPE_WIDTH if piped else None)


def stderr_console() -> Console:
    """Console for what accompanies a training."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


def print_verdict(console: Console, verdict: Verdict, asked: Sequence[str] = ()) -> None:
    """The verdict in a frame on a terminal, not wider than reads well; as plain text anywhere else.

    ``asked`` are the options with which ``explain`` explains this verdict.
    """
    print_rows(console, view.outline(verdict, asked), verdict.run, view.STYLES[view.tone(verdict)])


def print_verdict_beside(verdict: Verdict, asked: Sequence[str] = ()) -> None:
    """The verdict on stderr, behind a script's own last words; ``asked`` as for :func:`print_verdict`."""
    # Of what rich takes for a terminal; where there is none, it need not be imported.
    if sys.stderr.isatty() or {"FORCE_COLOR", "TTY_COMPATIBLE"} & set(os.environ):
        console = stderr_console()
        if console.is_terminal:
            print_verdict(console, verdict, asked)
            return
    print_note(f"verdict on {verdict.run}")
    sys.stderr.write(view.verdict_text(verdict, options=asked))


def print_table(
    console: Console,
    heading: str,
    rows: Iterable[Sequence[str | Text]],
    *,
    titles: Sequence[str] = (),
    numbers: Collection[str] = (),
    labels: str = "",
) -> None:
    """A heading and below it rows, in columns as wide as what is in them.

    Args:
        console: Where to.
        heading: What stands above.
        rows: Texts of anybody's, or of ours with a style.
        titles: Names of the columns.
        numbers: Those whose cells are numbers.
        labels: Style of the first column where there are no titles.
    """
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    for title in titles:
        table.add_column(Text(title, style="dim"), justify="right" if title in numbers else "left")
    table.show_header = bool(titles)
    if not titles:
        table.add_column(min_width=2, style=labels)
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else Text(view.printable(cell)) for cell in row))
    console.print(Text(view.printable(heading), style="bold"), soft_wrap=True)
    if table.row_count:
        console.print(table)


def print_rows(console: Console, rows: Sequence[view.Row], run: str, style: str) -> None:
    """An outline in the same way: in a frame that names the run, or as plain text."""
    if console.is_terminal:
        console.print(view.rows_panel(rows, run, style), width=min(console.width, _FRAME_WIDTH))
    else:
        console.file.write(view.rows_text(rows))


@contextmanager
def progress(what: str, *, enabled: bool = True) -> Iterator[Callable[[float], None]]:
    """A context for slow work, which gives a function to call with the seconds waited so far.

    The first call after a second shows a spinner on stderr; off a terminal the first one after 15 s prints a line.
    """
    if not enabled:
        yield lambda _: None
        return
    status = stderr_console().status(what) if sys.stderr.isatty() else None
    shown = False

    def tick(waited_s: float) -> None:
        nonlocal shown
        if shown or waited_s <= (_SILENCE_S if status is None else _PATIENCE_S):
            return
        shown = True
        if status is None:
            print(what, file=sys.stderr, flush=True)
        else:
            status.start()

    try:
        yield tick
    finally:
        if shown and status is not None:
            status.stop()


@contextmanager
def working(what: str) -> Iterator[None]:
    """A context for one slow call that nothing ticks through: the spinner comes by a timer after a second."""
    import threading

    with progress(what) as tick:
        timer = threading.Timer(_PATIENCE_S, tick, [_PATIENCE_S + 1])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()
