"""For tests of compaction: small runs, their content (compacted or not), and a store that crashes in between."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from watchglass.records import SCALARS, Mode, StepEnd
from watchglass.stats import Histograms
from watchglass.store import (
    FrameKind,
    LocalStore,
    ParquetStatistics,
    RunReader,
    StatisticsBatch,
    Store,
    compacted_file,
    decode_rows,
    decode_statistics,
    decode_step_ends,
)
from watchglass.testing import RunBuilder


def small_run(folder: Path, *, steps: int = 24, workers: int = 2, leave: bool = True, seed: int = 0) -> LocalStore:
    """A run (or one more attempt of it) with everything that a worker writes, flushed every third step."""
    random = np.random.default_rng(seed)
    with RunBuilder(folder, modules={"fc": "Linear", "relu": "ReLU"}, workers=workers, alive=leave) as builder:
        builder.facts({"model": {"parameters": 3}})
        for step in range(steps):
            builder.step(
                scalars={"loss": 1 / (step + 1)},
                statistics={
                    "fc.weight": random.normal(size=(4, 5)).astype(np.float32),
                    "gradient/fc.weight": random.normal(scale=1e-3, size=(4, 5)).astype(np.float32),
                    "relu.output": np.maximum(random.normal(size=(3, 4)), 0),
                },
                units={"relu.output": random.random(4) < 0.5},
                facts={"batch": {"size": step}} if step % 4 == 0 else {},
                raw={"fc.weight": np.full((2, 2), step, np.float32)} if step % 6 == 0 else {},
                mode=Mode.EVAL if step % 8 == 7 else Mode.TRAIN,
                flush=step % 3 == 2,
            )
        builder.flush()
        if leave:
            builder.leave()
    return LocalStore(folder)


def content(store: Store) -> dict[tuple[int, str], dict[str, Any]]:
    """Everything in a run by attempt and worker: rows of statistics by step, tensor and origin; all else in order."""
    found: dict[tuple[int, str], dict[str, Any]] = {}
    reader = RunReader(store)
    while frames := reader.poll(full=True):
        for attempt, worker, frame in frames:
            of = found.setdefault(
                (attempt, worker), {"statistics": {}, "scalars": [], "ends": [], "ended": set(), "others": []}
            )
            if frame.kind in (FrameKind.STATISTICS, FrameKind.COMPACTED):
                batch = _statistics(store, frame)
                assert not of["ended"] & set(batch.global_step.tolist()), "statistics came behind the end of their step"
                of["statistics"].update(rows_of(batch))
            elif frame.kind == FrameKind.SCALARS:
                of["scalars"] += decode_rows(SCALARS, frame.payload).tolist()
            elif frame.kind == FrameKind.STEP_ENDS:
                ends: list[StepEnd] = decode_step_ends(frame.payload)
                of["ends"] += ends
                of["ended"] |= {end.global_step for end in ends}
            else:
                of["others"].append((frame.kind, frame.payload))
    assert not reader.problems
    return found


def rows_of(batch: StatisticsBatch) -> dict[tuple[int, int, int], tuple[Any, ...]]:
    """Each row by step, tensor and origin, with the bits of its numbers and its histogram."""
    histograms = batch.histograms if batch.histograms is not None else Histograms.none(len(batch))
    return {
        (int(batch.global_step[row]), int(batch.tensor_id[row]), int(batch.origin[row])): (
            int(batch.calls[row]), bool(batch.sampled[row]), batch.values[row].tobytes(), int(histograms.seen[row]),
            *(part.tobytes() for part in histograms.row(row)),
        )
        for row in range(len(batch))
    }  # fmt: skip


def _statistics(store: Store, frame: Any) -> StatisticsBatch:
    if frame.kind == FrameKind.STATISTICS:
        return decode_statistics(frame.payload)
    file = compacted_file(frame)
    opened = ParquetStatistics(store, file.path, size=file.bytes, footer_crc=file.footer_crc)
    found = opened.read(histograms=True)
    assert (opened.rows, found.global_step.min(), found.global_step.max()) == (file.rows, *file.global_steps)
    return found


class Interrupted(BaseException):
    """A crash: no code catches it."""


class CrashingStore(LocalStore):
    """A folder whose process ends at its n-th write or removal, before or after it."""

    def __init__(self, root: Path, after: int, *, done: bool) -> None:
        super().__init__(root)
        self._left, self._done = after, done

    def _operation(self, call: Callable[[], None]) -> None:
        self._left -= 1
        if self._left < 0:
            raise Interrupted
        if self._left == 0:
            if self._done:
                call()
            raise Interrupted
        call()

    def write(self, path: str, data: Any, *, replace: bool = False) -> None:
        self._operation(lambda: super(CrashingStore, self).write(path, data, replace=replace))

    def delete(self, path: str) -> None:
        self._operation(lambda: super(CrashingStore, self).delete(path))

    def prune(self, prefix: str = "") -> None:
        self._operation(lambda: super(CrashingStore, self).prune(prefix))
