"""Targets for what compaction writes: Parquet files of statistics, manifests of generations, whole compacted runs."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import suppress
from functools import cache
from pathlib import Path

import numpy as np

from fuzz import hostile, seeds
from fuzz.choices import Choices
from fuzz.whole_runs import ask, hostile_run
from watchglass import store as room
from watchglass.errors import WatchglassError
from watchglass.run import open_run
from watchglass.store import LocalStore, ParquetStatistics, compact, newest_generation


@cache
def compacted_files() -> dict[str, bytes]:
    """The seed's files, its first attempt compacted and its second as it was."""
    path = seeds.scratch() / "compacted-seed"
    shutil.copytree(seeds.run(), path)
    compact(LocalStore(path), even_if_unseen=True)
    store = LocalStore(path)
    return {entry.path: store.read(entry.path) for entry in store.list()}


@cache
def _parquet() -> bytes:
    return next(data for path, data in sorted(compacted_files().items()) if path.endswith(".parquet"))


def parquet(choices: Choices) -> None:
    """ParquetStatistics: rows and histograms, or an error; whatever footer and pages claim."""
    store = LocalStore(seeds.scratch() / f"parquet-{os.getpid()}")
    data = bytearray(_parquet())
    footer = int.from_bytes(data[-8:-4], "little")
    how = choices.number(4)
    if how == 0:
        made = hostile.changed_bytes(bytes(data), choices)
    elif how == 1:
        # Compact Thrift: a changed byte is another type, another number, another length.
        for _ in range(1 + choices.number(3)):
            data[len(data) - 8 - footer + choices.number(footer)] = choices.number(256)
        made = bytes(data)
    else:
        made = bytes(data[: -8 - footer]) + hostile.changed_bytes(bytes(data[-8 - footer : -8]), choices)
        made += (len(made) - (len(data) - 8 - footer)).to_bytes(4, "little", signed=True) + b"PAR1"
    path = "compacted/00000001/0000/worker_0-00000.parquet"
    store.write(path, made, replace=True)
    with suppress(WatchglassError), np.errstate(all="ignore"):
        table = ParquetStatistics(store, path, size=len(made))
        for histograms in (False, True):
            steps = choices.one_of([None, (0, 3), (2, 2)])
            batch = table.read(tensor_ids=choices.one_of([None, [0, 2]]), steps=steps, histograms=histograms)
            assert all(len(column) == len(batch) for column in (batch.tensor_id, batch.global_step, batch.values))
            assert batch.histograms is None or len(batch.histograms) == len(batch)


def generations(choices: Choices) -> None:
    """newest_generation: paths stay inside, numbers are numbers, no worker twice."""
    store = LocalStore(seeds.scratch() / f"generations-{os.getpid()}")
    sound = next(json.loads(data) for path, data in compacted_files().items() if path.endswith("manifest.json"))
    store.write("compacted/00000001/manifest.json", hostile.changed_json(sound, choices), replace=True)
    with suppress(WatchglassError):
        found = newest_generation(store)
        for covered in found.covers if found is not None else ():
            room.check_path(covered.frames)
            assert covered.frames.startswith("compacted/")
            assert covered.segments >= 0
            assert isinstance(covered.worker, str)


def run_compacted(choices: Choices) -> None:
    """A compacted run, and what compacts a hostile one: nothing is written beside it."""
    with hostile_run(choices, compacted_files()) as path, np.errstate(all="ignore"):
        ask(open_run(path, attempt=choices.one_of([None, 0])))
    with hostile_run(choices, seeds.files(), may_write=True) as path:
        compact(LocalStore(path), even_if_unseen=True)
        ask(open_run(path))


def run_exported(choices: Choices) -> None:
    """export writes the one file or folder that it is asked for."""
    from watchglass.cli import main

    with hostile_run(choices, compacted_files()) as path, np.errstate(all="ignore"):
        target = Path(seeds.scratch(), f"export-{os.getpid()}")
        shutil.rmtree(target, ignore_errors=True)
        target.unlink(missing_ok=True) if target.is_file() else None
        status = main(["export", str(path), "--to", "parquet", "-o", str(target)])
        assert status in (0, 1, 2)
