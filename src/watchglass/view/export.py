"""A run as Parquet files for other tools, with names instead of numbers. docs/cli.md lists the columns."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from watchglass.config import local_path, scheme_of
from watchglass.errors import InvalidValueError, RunExistsError, StoreError
from watchglass.records import ROW_KINDS
from watchglass.run import WINDOW_TABLES, Run, RunTables


@dataclass(frozen=True)
class Exported:
    """A file that was written."""

    name: str  #: Its name.
    rows: int  #: Number of its rows.
    bytes: int  #: Its length.


def check_export_path(path: str) -> Path:
    """Where an export may go: a folder that does not exist or is empty.

    Raises:
        InvalidValueError: It is an address of an object store.
        RunExistsError: The path exists and is not an empty folder.
    """
    if scheme_of(path):
        raise InvalidValueError(f"an export is written to a folder but got {path!a}; copy the files from there")
    target = Path(os.path.abspath(local_path(path)))
    if os.path.lexists(target) and (target.is_symlink() or not target.is_dir() or any(target.iterdir())):
        raise RunExistsError(f"{target} exists and is not an empty folder; choose another or remove it first")
    return target


def export_parquet(run: Run, path: str, *, histograms: bool = False) -> list[Exported]:
    """Write the tables of a run, all attempts and workers, as Parquet files into a new folder.

    The folder appears when it is complete. Statistics are read and written in pieces, so memory does not grow with
    their number.

    Args:
        run: The run.
        path: A folder that does not exist or is empty.
        histograms: Also the histograms, as lists in the table of statistics.

    Raises:
        InvalidValueError: The path is an address of an object store.
        RunExistsError: The path exists and is not an empty folder.
        StoreError: The files cannot be written.
    """
    target = check_export_path(path)
    temporary = target.with_name(f".{target.name}.watchglass-{os.getpid()}-{os.urandom(4).hex()}")
    try:
        os.makedirs(target.parent, exist_ok=True)
        os.mkdir(temporary)
        try:
            written = _write_tables(run, temporary, histograms)
            with suppress(FileNotFoundError):
                target.rmdir()  # empty, or not ours to remove
            os.rename(temporary, target)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
    except OSError as error:
        if isinstance(error, (StoreError, RunExistsError)):
            raise
        raise StoreError(f"cannot write {target}: {error.strerror or error}; check the folder and the disk") from error
    return written


def _write_tables(run: Run, folder: Path, histograms: bool) -> list[Exported]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    about = {"watchglass": json.dumps({"run": run.manifest.run_id, "written_by": "watchglass"})}
    tables, written = RunTables(run, everything=True, histograms=histograms), []
    sources: dict[str, Iterable[Any]] = {kind.name: tables.pieces(kind) for kind in ROW_KINDS.values()}
    sources |= {name: [tables.of_windows(name)] for name in WINDOW_TABLES}
    for name, pieces in sources.items():
        path, rows = folder / f"{name}.parquet", 0
        with ExitStack() as stack:
            writer = None
            for piece in pieces:
                table = piece.add_column(0, "run", pa.array([run.manifest.run_id] * len(piece), pa.string()))
                # Dictionaries save memory; in a file, readers would see them as categories.
                table = table.cast(pa.schema([(field.name, _plain(field.type)) for field in table.schema], about))
                writer = writer or stack.enter_context(pq.ParquetWriter(path, table.schema, compression="zstd"))
                writer.write_table(table)
                rows += len(table)
        written.append(Exported(path.name, rows, path.stat().st_size))
    return written


def _plain(kind: Any) -> Any:
    import pyarrow as pa

    return kind.value_type if pa.types.is_dictionary(kind) else kind
