"""Runs for tests, written by the real writer, without training.

``build_run`` writes a whole run in one call; ``RunBuilder`` writes one step by step, to test readers of a growing run.
Modules, roles and layers follow from tensor names, as capture gives them: ``fc1.weight``, ``gradient/fc1.weight``,
``fc1.output``, ``loss``. Names of a second model have its prefix: ``model_2.fc1.weight``, ``model_2/loss``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from watchglass.errors import InvalidValueError
from watchglass.records import (
    RAW,
    REDUCTIONS,
    SAMPLES,
    SCALARS,
    STATISTIC_FIELDS,
    UNITS,
    Fact,
    Finding,
    Mode,
    Observation,
    Origin,
    Reduction,
    RowKind,
    RuleStatus,
    StepEnd,
    TensorInfo,
    UnitKind,
)
from watchglass.stats import DTYPE_CODES, Histograms, histograms_of, of_array
from watchglass.store import (
    Claim,
    JournalWriter,
    LocalStore,
    RawTensor,
    SegmentWriter,
    StatisticsBatch,
    StreamWriter,
    claim_worker,
    create_attempt,
    create_run,
    encode_catalog,
    encode_facts,
    encode_lifecycle,
    encode_rows,
    encode_statistics,
    encode_step_ends,
    layout,
    read_manifest,
    release_worker,
    table_of,
    this_process,
    write_tensors,
)
from watchglass.testing.layers import Layers, Modules

#: When the first step begins, by the monotonic clock.
_BEGIN_NS = 1_000_000_000
#: Silence after which a worker has noted its stacks.
_STACKS_AFTER_S = 10.0


@dataclass(frozen=True)
class Row:
    """A statistics row given by its numbers instead of an array.

    Attributes:
        values: Columns of :data:`~watchglass.records.STATISTIC_FIELDS`; omitted ones are 0, ``count`` is 1.
        shape: Shape of the tensor.
        origin: Reason for the row.
        sampled: Whether the tensor was sampled.
        calls: Tensors merged into it.
    """

    values: Mapping[str, float]
    shape: tuple[int, ...] = (1,)
    origin: Origin = Origin.PLANNED
    sampled: bool = False
    calls: int = 1

    def array(self) -> NDArray[np.float64]:
        """The row as float64[11]."""
        unknown = set(self.values) - set(STATISTIC_FIELDS)
        if unknown:
            raise InvalidValueError(
                f"statistics are {', '.join(STATISTIC_FIELDS)} but got {', '.join(sorted(unknown))}"
            )
        return np.array([self.values.get(name, 1.0 if name == "count" else 0.0) for name in STATISTIC_FIELDS])


@dataclass(frozen=True)
class Step:
    """One step to record.

    Attributes:
        scalars: Name -> value.
        statistics: Name -> array to reduce, with histogram (shape and dtype go into the catalog; also bfloat16 and
            float8 of ml-dtypes), or a :class:`Row` of numbers, without histogram.
        units: Name -> which units are inactive, bool[units]; of the load of a router, which experts are unused.
        facts: Kind -> data, or complete facts.
        raw: Name -> tensor to store in full; a :class:`RawTensor` (its id is ignored) for a dtype that NumPy lacks.
        mode: Mode of the step, or its name.
        weight: Batch size, the weight of the scalars.
        seconds: Duration of the step.
        workers: Ranks that record it; None for all.
        reductions: Name -> exact numbers.
        rows: Rows of other kinds that are keyed by step: the fields in their order, without the step.
        model: Number of the model that it trains or evaluates; names must have that model's prefix.
    """

    scalars: Mapping[str, float] = field(default_factory=dict)
    statistics: Mapping[str, ArrayLike | Row] = field(default_factory=dict)
    units: Mapping[str, ArrayLike] = field(default_factory=dict)
    facts: Mapping[str, Mapping[str, Any]] | Sequence[Fact] = ()
    raw: Mapping[str, NDArray[Any] | RawTensor] = field(default_factory=dict)
    mode: Mode | str = Mode.TRAIN
    weight: float = 1.0
    seconds: float = 0.1
    workers: Sequence[int] | None = None
    reductions: Mapping[str, Mapping[Reduction, float]] = field(default_factory=dict)
    rows: Mapping[RowKind, Sequence[Sequence[Any]]] = field(default_factory=dict)
    model: int = 0


@dataclass(frozen=True)
class Batch:
    """Rows that a stream writes at once, independent of steps.

    Attributes:
        rows: Rows of kinds that are keyed by time: their fields in their order, the time first, in seconds since the
            batch before. The first batch begins with the first step, so steps and batches share one time axis.
        seconds: Length of the time that it covers.
        stream: Name of the stream.
        metrics: System metrics by name, evenly spaced over that time: a number for each time, or a list with a number
            for each instance.
    """

    rows: Mapping[RowKind, Sequence[Sequence[Any]]] = field(default_factory=dict)
    seconds: float = 60.0
    stream: str = "system"
    metrics: Mapping[str, Sequence[float | Sequence[float]]] = field(default_factory=dict)


@dataclass(frozen=True)
class Silence:
    """A time without complete steps, while the evaluator waits for workers: it notes ticks.

    Attributes:
        seconds: Length of that time.
        living: Ranks whose process is known to be alive; None for all.
        stacks: By rank the data of a fact ``stacks``, which the first tick after ten seconds shows.
    """

    seconds: float = 60.0
    living: Sequence[int] | None = None
    stacks: Mapping[int, Any] = field(default_factory=dict)


def build_run(
    path: str | os.PathLike[str] | LocalStore,
    steps: Iterable[Step | Silence | Batch | Mapping[str, Any]] = (),
    *,
    modules: Modules | None = None,
    tensors: Iterable[TensorInfo] = (),
    facts: Mapping[str, Mapping[str, Any]] | Sequence[Fact] = (),
    workers: int = 1,
    status: str | None = "finished",
    journal: Sequence[Finding | RuleStatus | Observation] = (),
    steps_per_flush: int = 16,
) -> str:
    """Write a whole run and return its path.

    Example::

        steps = [{"scalars": {"loss": 1 / (n + 1)}} for n in range(10)]
        build_run(tmp_path / "run", steps, modules={"fc1": ModuleKind.LINEAR})

    Args:
        path: A folder that is empty or does not exist, or a store of one.
        steps: In their order; mappings are arguments of :class:`Step`. :class:`Silence` and :class:`Batch` may come
            between.
        modules: Kinds of the modules that tensor names mention, or class names if the kind is ``OTHER``, in order of
            execution; ``Module`` for others.
        tensors: Catalog rows that do not follow from the name; their ids are ignored.
        facts: Facts of the run (global step -1).
        workers: Number of workers; all record the same unless a step names ``workers``.
        status: Status with which the workers leave; None if they were killed.
        journal: Rows of an evaluator.
        steps_per_flush: Steps that share a flush, and so a batch of statistics.
    """
    alive = status is not None
    with RunBuilder(path, modules=modules, tensors=tensors, workers=workers, alive=alive) as builder:
        if facts:
            builder.facts(facts)
        for number, step in enumerate(steps):
            if isinstance(step, Silence):
                builder.silence(step)
                continue
            if isinstance(step, Batch):
                builder.batch(step)
                continue
            builder.step(step, flush=False)
            if number % steps_per_flush == steps_per_flush - 1:
                builder.flush()
        builder.flush()
        if status is not None:
            builder.leave(status)
        if journal or builder.ticks:
            with JournalWriter(builder.store) as writer:
                writer.write([*builder.ticks, *journal])
    return builder.store.location


class RunBuilder(AbstractContextManager["RunBuilder"]):
    """Writes a run step by step; the workers' processes are this one.

    Args:
        path: A folder, or a store of one: empty or new, or a run, which then gets a new attempt.
        modules: See :func:`build_run`.
        tensors: See :func:`build_run`.
        workers: See :func:`build_run`.
        alone: Whether several workers train separately.
        alive: Whether the workers' process is this one, or one that has died.
        resumed: The ``resumed`` fact of an attempt that continues a run, ``{"start_step": 500, "source":
            "optimizer"}``; its TRAIN steps count from there. None for no fact.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | LocalStore,
        *,
        modules: Modules | None = None,
        tensors: Iterable[TensorInfo] = (),
        workers: int = 1,
        alone: bool = False,
        alive: bool = True,
        resumed: Mapping[str, Any] | None = None,
    ) -> None:
        self.store = path if isinstance(path, LocalStore) else LocalStore(path)
        if self.store.is_empty():
            create_run(self.store, command=["train.py"])
        self.run_id = read_manifest(self.store).run_id
        self.attempt = create_attempt(self.store, "")
        layers = Layers(modules or {}, tensors)
        # The same process id with another start time means a process that has ended.
        process = this_process() if alive else replace(this_process(), process_start=1)
        self._alone = alone
        first = int((resumed or {}).get("start_step") or 0)
        #: Ticks that an evaluator would have noted during silences, for a journal.
        self.ticks: list[Observation] = []
        self._streams: dict[str, tuple[StreamWriter, int]] = {}
        self.workers = [
            _Worker(self.store, self.attempt, rank, layers, process, first, alone=alone) for rank in range(workers)
        ]
        if resumed is not None:
            self.facts([Fact("resumed", -1, "test", dict(resumed))])

    def step(self, step: Step | Mapping[str, Any] | None = None, *, flush: bool = True, **values: Any) -> None:
        """Record one step, given whole or as arguments of :class:`Step`; readers see it once it is flushed."""
        whole = step if isinstance(step, Step) else Step(**{**(step or {}), **values})
        for worker in self.workers:
            if whole.workers is None or worker.rank in whole.workers:
                worker.step(whole)
        if flush:
            self.flush()

    def silence(self, silence: Silence) -> None:
        """Note ticks after the steps so far, as if all workers had been silent for that time."""
        from watchglass.evaluate import tick_times

        ranks = [worker for worker in self.workers if not worker.left]
        living = [w.name for w in ranks if silence.living is None or w.rank in silence.living]
        if not self.ticks:
            self.ticks.append(Observation("ticks_recorded", 0))
        stacks = {f"worker_{rank}": data for rank, data in silence.stacks.items()}
        for seconds in takewhile(lambda at: at <= silence.seconds, tick_times()):
            for group in [[worker] for worker in ranks] if self._alone else [ranks]:
                names = {worker.name: seconds for worker in group}
                data: dict[str, Any] = {"seconds": names, "living": [name for name in living if name in names]}
                if seconds >= _STACKS_AFTER_S and stacks:
                    data["stacks"], stacks = stacks, {}
                steps = len(set().union(*(worker.orders for worker in group)))
                name = group[0].name if self._alone else ""
                self.ticks.append(Observation("tick", self.attempt, None, data, name, steps))

    def batch(self, batch: Batch) -> None:
        """Write rows of a stream; no step waits for it."""
        writer, start_ns = self._streams.get(batch.stream, (None, _BEGIN_NS))
        writer = writer or StreamWriter(self.store, self.attempt, batch.stream)
        until_ns = start_ns + int(batch.seconds * 1e9)
        self._streams[batch.stream] = writer, until_ns
        rows = {
            kind: [(start_ns + int(seconds * 1e9), *row) for seconds, *row in given]
            for kind, given in batch.rows.items()
        }
        if batch.metrics:
            rows[SAMPLES] = [(start_ns + int(seconds * 1e9), *row) for seconds, *row in _samples(batch)]
        writer.write(rows, until_ns)

    def facts(self, facts: Mapping[str, Mapping[str, Any]] | Sequence[Fact]) -> None:
        """Record facts of the run."""
        for worker in self.workers:
            worker.facts += _facts(facts, -1)

    def add(self, kind: RowKind, rows: Sequence[Sequence[Any]], *, ranks: Sequence[int] | None = None) -> None:
        """Record rows of a kind that is keyed by time: its fields in their order, the time first."""
        for worker in self.workers:
            if ranks is None or worker.rank in ranks:
                worker.add(kind, rows)

    def flush(self) -> None:
        """Write everything recorded since the last flush."""
        for worker in self.workers:
            worker.flush()

    def leave(self, status: str = "finished", *, ranks: Sequence[int] | None = None, reason: str = "") -> None:
        """Let all or some workers leave with a status: ``finished``, ``failed`` or ``stopped``."""
        for worker in self.workers:
            if (ranks is None or worker.rank in ranks) and not worker.left:
                worker.leave(status, reason)

    def close(self) -> None:
        """Release the claims; workers that have not left look as if they were killed."""
        for worker in self.workers:
            worker.close()
        for writer, _ in self._streams.values():
            writer.close()

    def __exit__(self, *exc: object) -> None:
        self.close()


def _samples(batch: Batch) -> list[tuple[float, str, list[float]]]:
    """Rows of samples, with seconds since the batch before."""
    columns = {
        name: [np.atleast_1d(np.asarray(each, float)) for each in found] for name, found in batch.metrics.items()
    }
    layout = [
        [name, ""] if np.ndim(batch.metrics[name][0]) == 0 else [name, "", [str(n) for n in range(len(found[0]))]]
        for name, found in columns.items()
    ]
    rows = list(zip(*columns.values(), strict=True))
    return [
        (batch.seconds * place / len(rows), json.dumps(layout), np.concatenate(row).tolist())
        for place, row in enumerate(rows)
    ]


class _Worker:
    """One worker of a builder: numbers its steps as capture does, and collects rows until they are flushed."""

    def __init__(
        self,
        store: LocalStore,
        attempt: int,
        rank: int,
        layers: Layers,
        process: Claim,
        first_step: int,
        *,
        alone: bool,
    ) -> None:
        self.rank, self.name, self.left = rank, layout.worker_name(rank), False
        self.facts: list[Fact] = []
        self.orders: set[tuple[int, int, int]] = set()
        self._store, self._attempt, self._layers, self._process = store, attempt, layers, process
        self._ids: dict[str, int] = {}
        self._mode_steps = {Mode.TRAIN: first_step, Mode.EVAL: 0, Mode.PREDICT: 0}
        self._now_ns, self._global_step, self._files = _BEGIN_NS, 0, 0
        claim_worker(store, attempt, self.name, process)
        self._writer = SegmentWriter(store, attempt, self.name)
        self._begin()
        self._event("joined", reason="", alone=alone)

    def step(self, step: Step) -> None:
        number = self._global_step
        scalars = [(number, self._id(name, scalar=True), step.weight, v) for name, v in step.scalars.items()]
        for name, given in step.statistics.items():
            self._add_statistics(number, name, given if isinstance(given, Row) else np.asarray(given))
        for name, numbers in step.reductions.items():
            self.add(REDUCTIONS, [(number, self._id(name), int(which), value) for which, value in numbers.items()])
        for name, flags in step.units.items():
            bools = np.asarray(flags, dtype=bool)
            meaning = UnitKind.UNUSED if name.endswith(".router_load") else UnitKind.INACTIVE
            self.add(UNITS, [(number, self._id(name, (1, bools.size)), int(meaning), bools)])
        self.add(SCALARS, scalars)
        for kind, rows in step.rows.items():
            self.add(kind, [(number, *row) for row in rows])
        self.facts += _facts(step.facts, number)
        for name, given_raw in step.raw.items():
            raw = given_raw if isinstance(given_raw, RawTensor) else RawTensor(0, given_raw)
            tensor_id = self._id(name, raw.array.shape, raw.dtype or raw.array.dtype.name)
            self._raw.append((number, raw._replace(tensor_id=tensor_id)))
        mode = Mode.of_step(step.mode)
        mode_step = self._mode_steps[mode]
        self._mode_steps[mode] += 1
        start_ns, self._now_ns = self._now_ns, self._now_ns + int(step.seconds * 1e9)
        train_step = self._mode_steps[Mode.TRAIN] - 1
        captured = len(step.statistics)
        end = StepEnd(number, mode, mode_step, train_step, start_ns, self._now_ns, captured, step.model)
        self._ends.append(end)
        self.orders.add(end.order)
        self._global_step += 1

    def flush(self) -> None:
        frames: list[bytes] = []
        if self._named:
            frames.append(encode_catalog(self._named))
        if self._statistics:
            frames.append(encode_statistics(self._batch()))
        frames += [encode_rows(kind, table_of(kind, rows)) for kind, rows in self._rows.items()]
        if self.facts:
            frames.append(encode_facts(self.facts))
        if self._raw:
            rows = write_tensors(self._store, self._attempt, self.name, self._files, self._raw)
            frames.append(encode_rows(RAW, table_of(RAW, [[row[field.name] for field in RAW.fields] for row in rows])))
            self._files += 1
        if self._ends:
            frames.append(encode_step_ends(self._ends))
        self._writer.write(frames)
        self._begin()

    def add(self, kind: RowKind, rows: Sequence[Sequence[Any]]) -> None:
        if rows:
            self._rows.setdefault(kind, []).extend(rows)

    def leave(self, status: str, reason: str) -> None:
        self.flush()
        self._event("left", reason=reason, status=status, counters={"dropped_rows": 0, "steps": self._global_step})
        self.left = True
        self.close()

    def close(self) -> None:
        self._writer.close()
        release_worker(self._store, self._attempt, self.name)

    def _begin(self) -> None:
        self._named: list[TensorInfo] = []
        self._rows: dict[RowKind, list[Sequence[Any]]] = {}
        self._statistics: list[tuple[int, int, Row, NDArray[np.float64], Histograms]] = []
        self._raw: list[tuple[int, RawTensor]] = []
        self._ends: list[StepEnd] = []
        self.facts = []

    def _event(self, event: str, **more: Any) -> None:
        process = {key: value for key, value in self._process.to_json().items() if key != "released"}
        known = {"event": event, "worker": self.name, "time_ns": self._now_ns, **process}
        self._writer.write([encode_lifecycle({**known, **more})])

    def _id(self, name: str, shape: tuple[int, ...] = (), dtype: str = "float32", *, scalar: bool = False) -> int:
        if name not in self._ids:
            self._ids[name] = len(self._ids)
            self._named.append(self._layers.row(name, self._ids[name], shape, dtype, scalar=scalar))
        return self._ids[name]

    def _add_statistics(self, number: int, name: str, given: Row | NDArray[Any]) -> None:
        if isinstance(given, Row):
            entry = (number, self._id(name, given.shape), given, given.array(), Histograms.none(1))
        else:
            tensor_id = self._id(name, given.shape, given.dtype.name)
            if given.dtype.name in DTYPE_CODES and given.dtype.isbuiltin != 1:
                given = given.astype(np.float32)  # bfloat16 and float8 of ml-dtypes, exactly
            real = np.abs(given) if given.dtype.kind == "c" else given
            entry = (number, tensor_id, Row({}), of_array(given), histograms_of([real]))
        self._statistics.append(entry)

    def _batch(self) -> StatisticsBatch:
        steps, ids, rows, values, histograms = zip(*self._statistics, strict=True)
        known = Histograms.concatenate(histograms)
        return StatisticsBatch(
            np.array(steps, "u8"), np.array(ids, "u4"), np.array([row.calls for row in rows], "u4"), np.array(values),
            np.array([row.origin for row in rows], "u1"), np.array([row.sampled for row in rows], bool),
            known if known.seen.any() else None,
        )  # fmt: skip


def _facts(facts: Mapping[str, Mapping[str, Any]] | Sequence[Fact], global_step: int) -> list[Fact]:
    if isinstance(facts, Mapping):
        return [Fact(kind, global_step, "test", dict(data)) for kind, data in facts.items()]
    return [Fact(fact.kind, global_step, fact.source, fact.data) for fact in facts]
