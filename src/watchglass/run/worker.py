"""One worker of a run over the attempts that count."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from watchglass.config import suggest
from watchglass.errors import UnknownNameError
from watchglass.records import Fact, Mode, StepEnd, TensorInfo
from watchglass.run.course import STORED_MODES, Course, counting, course_of
from watchglass.run.history import Phase, PhaseTracker
from watchglass.run.lineage import Lineage
from watchglass.run.steps import Place, StepNumbers
from watchglass.run.tables import WorkerTables

_Read = TypeVar("_Read", bound=tuple[Any, ...])


class Numbering(NamedTuple):
    """Steps of one attempt that count, n of them.

    Attributes:
        own: Global steps of the attempt, ascending, u64[n].
        mode: Their modes, int64[n].
        step: Their numbers among those of their mode, int64[n].
        number: Their numbers over all modes, int64[n]; both in the run.
    """

    own: NDArray[np.uint64]
    mode: NDArray[np.int64]
    step: NDArray[np.int64]
    number: NDArray[np.int64]


class Worker:
    """What one training process recorded, its steps numbered as those of the run. Made by :meth:`Run.worker`.

    It sees what the run had read when it was made.

    Args:
        name: ``"worker_1"``.
        attempts: Its tables, as they were recorded, by attempt.
        lineage: Which steps of which attempt count; all of the only attempt if None.
        steps: Leave out other TRAIN steps than these, half-open, and what belongs to them.
        over: Whether there is a newer attempt than its newest.

    Attributes:
        name: Its name.
        attempts: Its tables by attempt, oldest first.
    """

    def __init__(
        self,
        name: str,
        attempts: Mapping[int, WorkerTables],
        lineage: Lineage | None = None,
        *,
        steps: tuple[int, int] | None = None,
        over: bool = False,
    ) -> None:
        self.name = name
        self.attempts = dict(sorted(attempts.items()))
        self._lineage = lineage
        self._steps = steps
        self._over = over
        self._numbers: dict[Mode, StepNumbers] = {}
        self._numberings: dict[int, Numbering] = {}

    def __repr__(self) -> str:
        steps = [f"{len(self.numbers(mode))} {mode.name}" for mode in STORED_MODES if len(self.numbers(mode))]
        state = "left" if self.left else "not left"
        noun = "step" if len(steps) == 1 and steps[0].startswith("1 ") else "steps"
        return f"Worker({self.name!r}: {' and '.join(steps) or 'no'} {noun}, {state})"

    @property
    def tables(self) -> WorkerTables:
        """Everything it recorded in the newest attempt, in that attempt's own numbers."""
        return next(reversed(self.attempts.values())) if self.attempts else WorkerTables()

    @property
    def lifecycle(self) -> list[dict[str, Any]]:
        """``joined`` and ``left`` events of the newest attempt; ``left`` has ``status`` and what the capture cost."""
        return list(self.tables.lifecycle)

    @property
    def left(self) -> bool:
        """Whether the newest event is that it left (a restarted process joins again)."""
        events = self.tables.lifecycle
        return bool(events) and events[-1]["event"] == "left"

    @property
    def ended(self) -> bool:
        """Whether nothing more comes from it: it has left, or a newer attempt went on without it."""
        return self._over or self.left

    @property
    def seconds(self) -> float:
        """Time from the begin of the first to the end of the last step that counts, summed over attempts."""
        total = 0
        for attempt in self.attempts:
            ends = [end for end, place in self.course if place.attempt == attempt]
            total += max(end.end_ns for end in ends) - min(end.start_ns for end in ends) if ends else 0
        return total / 1e9

    @cached_property
    def columns(self) -> Course:
        """The complete steps that count, in the order of training, numbered as steps of the run."""
        return course_of(self.attempts, self._lineage, self._steps)

    @cached_property
    def course(self) -> list[tuple[StepEnd, Place]]:
        """The same as records, with where each was recorded."""
        return list(self.columns.rows(self.attempts))

    @cached_property
    def _ends(self) -> dict[Place, StepEnd]:
        return {place: end for end, place in self.course}

    def numbers(self, mode: Mode = Mode.TRAIN) -> StepNumbers:
        """The complete steps of a mode, and where they were recorded; of ``Mode.GLOBAL`` those of all modes."""
        mode = Mode(mode)
        if mode not in self._numbers:
            rows = self.columns if mode is Mode.GLOBAL else self.columns.take(self.columns.mode == mode)
            steps = rows.number if mode is Mode.GLOBAL else rows.step
            order = np.lexsort((rows.own, rows.attempt, steps))
            # Of a step that two have (in a damaged run) the newest attempt's counts.
            last = np.ones(len(order), bool)
            last[:-1] = np.diff(steps[order]) > 0
            order = order[last]
            self._numbers[mode] = StepNumbers(steps[order], rows.attempt[order], rows.own[order])
        return self._numbers[mode]

    def end_at(self, place: Place) -> StepEnd:
        """The end of a step that counts, numbered as a step of the run."""
        return self._ends[place]

    def numbering(self, attempt: int) -> Numbering:
        """The steps of an attempt that count, by their numbers in that attempt."""
        if attempt not in self._numberings:
            rows = self.columns.take(self.columns.attempt == attempt)
            rows = rows.take(np.argsort(rows.own, kind="stable"))
            self._numberings[attempt] = Numbering(rows.own.astype(np.uint64), rows.mode, rows.step, rows.number)
        return self._numberings[attempt]

    def has(self, name: str) -> bool:
        """Whether any attempt knows a tensor."""
        return any(tables.catalog.by_name(name) is not None for tables in self.attempts.values())

    def names_of(self, mode: Mode) -> frozenset[str]:
        """Names of the tensors of which anything was recorded at a complete step of a mode."""
        numbers, found = self.numbers(mode), set()
        for attempt, tables in self.attempts.items():
            own = {place.global_step for step in numbers if (place := numbers.place(step)).attempt == attempt}
            ids = tables.captured_ids(own) if own else set()
            found |= {row.name for i in ids if (row := tables.catalog.get(i)) is not None}
        return frozenset(found)

    def infos(self) -> dict[str, TensorInfo]:
        """The catalog row of every tensor by name, the newest attempt's where several have it, as first seen."""
        found: dict[str, TensorInfo] = {}
        for tables in reversed(self.attempts.values()):
            for row in tables.catalog.select():
                found.setdefault(row.name, row)
        return found

    def info(self, name: str) -> TensorInfo:
        """The catalog row of a tensor, of the newest attempt that has it.

        Raises:
            UnknownNameError: None has it.
        """
        for tables in reversed(self.attempts.values()):
            found = tables.catalog.by_name(name)
            if found is not None:
                return found
        raise UnknownNameError(
            f"{self.name} has no tensor {name!r}{suggest(name, list(self.infos()))}; see tensor_names()"
        )

    def pieces(
        self, name: str, mode: Mode, read: Callable[[WorkerTables, int], _Read]
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.intp], _Read]]:
        """What each attempt has of a tensor: steps, ascending, which rows they are, and all that was read.

        Args:
            name: The tensor.
            mode: Of which steps.
            read: Gives for an attempt's tables and tensor id a tuple that begins with global steps.
        """
        numbers = self.numbers(mode)
        for attempt, tables in self.attempts.items():
            info = tables.catalog.by_name(name)
            if info is not None:
                found = read(tables, info.tensor_id)
                steps, index = numbers.of_global(attempt, found[0])
                if len(steps):
                    yield steps, index, found

    def phases(self, mode: Mode = Mode.EVAL) -> list[Phase]:
        """See :meth:`Run.phases`."""
        return self._phases(mode, lambda end: 0).get(0, [])

    def phases_by_model(self, mode: Mode = Mode.EVAL) -> dict[int, list[Phase]]:
        """The same cut from the steps of each model alone, by its number."""
        return self._phases(mode, lambda end: end.model)

    def _phases(self, mode: Mode, whose: Callable[[StepEnd], int]) -> dict[int, list[Phase]]:
        trackers: dict[int, PhaseTracker] = {}
        found: dict[int, list[Phase]] = {}
        for end, place in self.course:
            tables, key = self.attempts[place.attempt], whose(end)
            rows = ((tables.catalog.get(row[0]), *row[1:]) for row in tables.scalars(place.global_step))
            scalars = [(info, value, weight) for info, value, weight in rows if info is not None]
            tracker = trackers.setdefault(key, PhaseTracker())
            found.setdefault(key, []).extend(tracker.enter(end, scalars))
        for key, tracker in trackers.items():
            found[key].extend(tracker.finish())
        return {key: [phase for phase in phases if phase.mode is mode] for key, phases in found.items()}

    def facts(self, kind: str | None = None) -> list[Fact]:
        """See :meth:`Run.facts`."""
        numbers = {place: end.global_step for end, place in self.course}
        newest = next(reversed(counting(self.attempts, self._lineage)), None)
        of_run: list[Fact] = []
        of_steps: list[Fact] = []
        for attempt, tables in self.attempts.items():
            shift = next((step - at.global_step for at, step in numbers.items() if at.attempt == attempt), 0)
            for fact in tables.facts():
                number = fact.global_step
                if kind is not None and fact.kind != kind:
                    continue
                if number < 0:
                    of_run.append(fact)
                elif Place(attempt, number) in numbers or (attempt == newest and number not in tables.steps):
                    of_steps.append(replace(fact, global_step=number + shift) if shift else fact)
        return of_run + of_steps
