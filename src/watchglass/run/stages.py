"""The stages of a worker: initialization, training and evaluation in turn, finalization."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from watchglass.records import Mode
from watchglass.run.clocks import wall_times
from watchglass.run.table import needed
from watchglass.run.timeline import step_times
from watchglass.run.worker import Worker

if TYPE_CHECKING:
    import pandas

INITIALIZATION, TRAINING, EVALUATION, FINALIZATION = "initialization", "training", "evaluation", "finalization"
_OF_MODE = {int(Mode.TRAIN): TRAINING, int(Mode.EVAL): EVALUATION, int(Mode.PREDICT): "prediction"}


@dataclass(frozen=True)
class Stage:
    """A stretch of time of a worker.

    Attributes:
        name: ``"initialization"``: from the start of the process, or from ``watch`` of a further run in it, to the
            first step. ``"training"``, ``"evaluation"``, ``"prediction"``: steps of one mode in a row.
            ``"finalization"``: from the last step until the worker left.
        attempt: Its attempt.
        begin: Wall time in UTC, datetime64[ns].
        end: The same.
        steps: Number of its steps.
    """

    name: str
    attempt: int
    begin: np.datetime64
    end: np.datetime64
    steps: int = 0

    @property
    def seconds(self) -> float:
        """Its length."""
        return float((self.end - self.begin) / np.timedelta64(1, "ns")) / 1e9


@dataclass(frozen=True)
class Stages:
    """The stages of one worker, in the order of time.

    Attributes:
        worker: Name of the worker.
        stages: Without initialization where the start of the process is not known, and without finalization where the
            worker has not left.
    """

    worker: str
    stages: tuple[Stage, ...]

    def __len__(self) -> int:
        return len(self.stages)

    def __getitem__(self, name: str) -> tuple[Stage, ...]:
        """The stages of this name, none if there are none."""
        return tuple(stage for stage in self.stages if stage.name == name)

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds by name, in the order of their first occurrence."""
        sums: dict[str, float] = {}
        for stage in self.stages:
            sums[stage.name] = sums.get(stage.name, 0.0) + stage.seconds
        return sums

    @property
    def loop_s(self) -> float:
        """Seconds from the begin of the first to the end of the last step, summed over attempts."""
        total = 0.0
        for attempt in {stage.attempt for stage in self.stages}:
            own = [stage for stage in self.stages if stage.attempt == attempt and stage.steps]
            if own:
                total += float((own[-1].end - own[0].begin) / np.timedelta64(1, "ns")) / 1e9
        return total

    def to_pandas(self) -> pandas.DataFrame:
        """A data frame with a row for each stage: ``name``, ``attempt``, ``begin``, ``end``, ``steps``, ``seconds``.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        rows = [{**asdict(stage), "seconds": stage.seconds} for stage in self.stages]
        names = [*Stage.__dataclass_fields__, "seconds"]
        return needed("pandas").DataFrame(rows, columns=names)

    def __repr__(self) -> str:
        parts = ", ".join(f"{name} {seconds:.3g} s" for name, seconds in self.seconds.items()) or "none"
        return f"Stages({self.worker!r}: {parts})"


def stages_of(worker: Worker) -> Stages:
    """See :meth:`Run.stages`."""
    times = step_times(worker)
    found: list[Stage] = []
    for attempt, tables in worker.attempts.items():
        own = np.flatnonzero(times.rows["attempt"] == attempt)
        if not len(own):
            continue
        begin_ns, end_ns, modes = times.begin_ns[own], times.end_ns[own], times.rows["mode"][own]
        events = {event.get("event"): event for event in tables.lifecycle}
        started = _start_ns(events.get("joined", {}), tables.headers[:1])
        if started is not None:
            # It is known to a tick of 10 ms, so that a forked process may seem to start after its first step.
            found.append(_stage(INITIALIZATION, attempt, min(started, int(begin_ns[0])), begin_ns[0]))
        # Each run of steps of one mode.
        firsts = np.flatnonzero(np.diff(modes, prepend=-1))
        for first, stop in zip(firsts, [*firsts[1:], len(own)], strict=True):
            name, steps = _OF_MODE[int(modes[first])], int(stop - first)
            found.append(_stage(name, attempt, begin_ns[first], end_ns[stop - 1], steps))
        left = events.get("left", {}).get("time_ns")
        if isinstance(left, int):
            ended = int(wall_times(tables.headers[:1], np.array([left]))[0].astype(np.int64))
            if ended >= end_ns[-1]:
                found.append(_stage(FINALIZATION, attempt, end_ns[-1], ended))
    return Stages(worker.name, tuple(found))


def _start_ns(joined: dict[str, Any], headers: Any) -> int | None:
    """Wall time of the start of the process, None where unknown."""
    at, age = joined.get("time_ns"), joined.get("age_ns")
    if not isinstance(at, int) or not isinstance(age, int) or age < 0:
        return None
    return int(wall_times(headers, np.array([at]))[0].astype(np.int64)) - age


def _stage(name: str, attempt: int, begin_ns: int, end_ns: int, steps: int = 0) -> Stage:
    return Stage(name, attempt, np.datetime64(int(begin_ns), "ns"), np.datetime64(int(end_ns), "ns"), steps)
