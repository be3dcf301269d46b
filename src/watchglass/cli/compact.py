"""``watchglass compact``: make the data of a run smaller and faster to read."""

from __future__ import annotations

import re
import time
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from watchglass.cli.declaring import option
from watchglass.cli.failure import print_note
from watchglass.cli.shared_options import Force, RunPath
from watchglass.cli.terminal import working
from watchglass.errors import InvalidValueError
from watchglass.records import count
from watchglass.view import printable, size

if TYPE_CHECKING:
    from watchglass.store import Compaction

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(|[kKMGT])(|i)[bB]?")
_DAY_NS = 86_400_000_000_000


def compact(
    run: RunPath,
    keep_raw_days: Annotated[
        float | None, option("--keep-raw-days DAYS", "Remove raw tensors older than DAYS.")
    ] = None,
    keep_raw_bytes: Annotated[
        str | None, option("--keep-raw-bytes SIZE", "Remove the oldest raw tensors beyond SIZE: 500MB, 2GiB.")
    ] = None,
    force: Force = False,
) -> None:
    """Rewrite the statistics of a run that has ended as Parquet. Readers can continue to read the run."""
    from watchglass.record import harvest
    from watchglass.store import compact as compact_store, open_store, remove_raw

    keep_bytes = _size(keep_raw_bytes) if keep_raw_bytes is not None else None
    if keep_raw_days is not None and not 0 <= keep_raw_days < 1e6:
        raise InvalidValueError(f"--keep-raw-days must be a number of days >= 0 but got {keep_raw_days:g}")
    removed = None
    with closing(open_store(run)) as store, working("compacting the run"):
        harvest(store, by="compaction")
        done = compact_store(store, even_if_unseen=force, must=True)
        if keep_bytes is not None or keep_raw_days is not None:
            before_ns = None if keep_raw_days is None else time.time_ns() - int(keep_raw_days * _DAY_NS)
            removed = remove_raw(store, keep_bytes=keep_bytes, before_ns=before_ns)
    _print(run, done, removed)


def _print(run: str, done: Compaction, removed: tuple[int, int] | None) -> None:
    if done.written:
        typer.echo(f"{printable(run)} compacted (generation {done.generation})")
        typer.echo(f"before   {size(done.before_bytes)}")
        per_row = f", {done.statistics_bytes / done.rows:.1f} bytes a row" if done.rows else ""
        typer.echo(
            f"after    {size(done.after_bytes)}, of these {size(done.statistics_bytes)} are "
            f"{count(done.rows, 'row')} of statistics{per_row}"
        )
    else:
        typer.echo(f"{printable(run)} holds nothing new to compact")
    if done.written or done.deleted[0]:
        typer.echo(f"deleted  {count(done.deleted[0], 'object')}, {size(done.deleted[1])}")
    if removed is not None:
        typer.echo(f"removed  {count(removed[0], 'file')} of raw tensors, {size(removed[1])}")
    for reason in done.kept:
        print_note(reason)


def _size(text: str) -> int:
    """Bytes from ``"500MB"`` or ``"2 GiB"``.

    Raises:
        InvalidValueError: A text of another form.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise InvalidValueError(f"--keep-raw-bytes must be a size such as 500MB or 2GiB but got {text!a}")
    power = " KMGT".index(match[2].upper() or " ")
    return int(float(match[1]) * (1024 if match[3] else 1000) ** power)
