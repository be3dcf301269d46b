"""Output for people: results on stdout; progress and notes on stderr, where the script's output also goes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from watchglass import view
from watchglass.cli.failure import print_note
from watchglass.config import TIMING
from watchglass.records import Verdict

if TYPE_CHECKING:
    from rich.console import Console


#: Width of tables in a pipe.
_PIPE_WIDTH = 120

#: Largest width of sentences on a terminal.
_READABLE = 120


def stdout_console() -> Console:
    """Console for results; in a pipe wide enough that rows are not wrapped, for grep."""
    from rich.console import Console

    piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(highlight=False, width=_PIPE_WIDTH if piped else None)


def stderr_console() -> Console:
    """Console for progress and notes."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


def print_verdict(console: Console, verdict: Verdict, options: Sequence[str] = (), *, verbose: bool = False) -> None:
    """Print the verdict, with colours on a terminal.

    ``options`` are the options for ``explain`` that give this verdict; ``verbose`` adds cost and counts.
    """
    print_rows(console, view.screen(verdict, options, verbose=verbose))


def print_verdict_beside(verdict: Verdict, options: Sequence[str] = (), *, verbose: bool = False) -> None:
    """Print the verdict on stderr, after the output of a script; the rest as for :func:`print_verdict`."""
    # Import rich only where it may see a terminal.
    if sys.stderr.isatty() or {"FORCE_COLOR", "TTY_COMPATIBLE"} & set(os.environ):
        console = stderr_console()
        if console.is_terminal:
            print_verdict(console, verdict, options, verbose=verbose)
            return
    print_note(f"verdict on {verdict.run}")
    sys.stderr.write(view.verdict_text(verdict, options=options, verbose=verbose))


def print_table(
    console: Console,
    heading: str,
    rows: Iterable[Sequence[view.Inline]],
    *,
    titles: Sequence[str] = (),
    numbers: Collection[str] = (),
    labels: str = "",
) -> None:
    """Print a heading and rows in columns as wide as their content.

    Args:
        console: The console.
        heading: The heading.
        rows: Cells: text of any origin.
        titles: Names of the columns.
        numbers: Names of the columns of numbers.
        labels: Style of the first column if there are no titles.
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
        table.add_row(*(Text(view.printable(view.plain(cell)), style=_style(cell)) for cell in row))
    console.print(Text(view.printable(heading), style="bold"), soft_wrap=True)
    if table.row_count:
        console.print(table)


def _style(cell: view.Inline) -> str:
    role = cell.role if isinstance(cell, view.Span) else ""
    return view.STYLES[role.removeprefix("tag ")] if role.startswith("tag ") else ""


def print_section(console: Console, section: view.Section) -> None:
    """Print a section whose blocks are tables, each below the heading, and single lines."""
    tables = [block for block in section.blocks if isinstance(block, view.TextTable)]
    print_table(console, section.title, [row for table in tables for row in table.rows])
    for block in section.blocks:
        if isinstance(block, view.Text):
            console.print(f"  {view.printable(view.plain(block.content))}", markup=False, soft_wrap=True)


def print_rows(console: Console, rows: Sequence[view.TextRow]) -> None:
    """Print rows, coloured and as wide as a person can read on a terminal, else as plain text."""
    if not console.is_terminal:
        console.file.write(view.rows_text(rows))
        return
    from rich.text import Text

    for line, style in view.wrapped(rows, min(console.width, _READABLE)):
        console.print(Text(line, style=style), soft_wrap=True)


@contextmanager
def progress(what: str, *, enabled: bool = True) -> Iterator[Callable[[float], None]]:
    """A context for slow work; it gives a function to call with the seconds waited.

    The first call after one second shows a spinner on stderr. Where stderr is no terminal, the first call after 15 s
    prints a line.
    """
    if not enabled:
        yield lambda _: None
        return
    status = stderr_console().status(what) if sys.stderr.isatty() else None
    shown = False

    def tick(waited_s: float) -> None:
        nonlocal shown
        if shown or waited_s <= (TIMING.progress_s if status is None else TIMING.spinner_s):
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
    """A context for one slow call that reports no progress; a timer shows the spinner after a second."""
    import threading

    with progress(what) as tick:
        timer = threading.Timer(TIMING.spinner_s, tick, [TIMING.spinner_s + 1])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()
