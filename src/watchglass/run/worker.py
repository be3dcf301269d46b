"""One worker of a run, over the attempts that count."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from watchglass.config import suggest
from watchglass.errors import UnknownNameError
from watchglass.records import SCALARS, STEPS, Fact, Mode, RowsHaving, StepEnd, TensorInfo
from watchglass.run.numbering.course import STORED_MODES, Course, counting, course_of
from watchglass.run.numbering.lineage import Lineage
from watchglass.run.numbering.steps import StepNumbers, StepPlace
from watchglass.store import dtype_of, step_ends
from watchglass.tables import Catalog, RowLog, Stretch, StretchTracker, WorkerTables, last_index_of_each

#: Steps that become records at a time.
_AT_ONCE = 1 << 12
#: The names and rows that scalars of an attempt are read from.
_Read: TypeAlias = tuple[Catalog, RowLog]
_Found = TypeVar("_Found", bound=tuple[Any, ...])


class Worker:
    """The records of one training process, with the step numbers of the run. Made by :meth:`Run.worker`.

    It shows what the run had read when it was made.

    Args:
        name: ``"worker_1"``.
        attempts: Its tables, as they were recorded, by attempt.
        lineage: Which steps of which attempt count; all of the only attempt if None.
        steps: Leave out other TRAIN steps than these, half-open, and what belongs to them.
        over: Whether there is a newer attempt than its newest.
        before: The same worker when less of it was read; its results are continued.

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
        before: Worker | None = None,
    ) -> None:
        self.name = name
        self.attempts = dict(sorted(attempts.items()))
        self._lineage = lineage
        self._steps = steps
        self._over = over
        made = before is None or "_made" in vars(before)
        self._before: Worker | None = before if before is None or made else before._before
        self._numbers: dict[Mode, StepNumbers] = {}
        self._numberings: dict[int, NDArray[Any]] = {}
        self._entered: dict[bool, _Entered] = {}

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
        """``joined`` and ``left`` events of the newest attempt; ``left`` has ``status`` and the cost of the capture."""
        return list(self.tables.lifecycle)

    @property
    def left(self) -> bool:
        """Whether the newest event is that it left (a restarted process joins again)."""
        events = self.tables.lifecycle
        return bool(events) and events[-1]["event"] == "left"

    @property
    def trains_alone(self) -> bool:
        """Whether it trains separately from all other workers, as a process of a pool does."""
        joined = [event for event in self.tables.lifecycle if event.get("event") == "joined"]
        return bool(joined) and joined[-1].get("alone") is True

    @property
    def ended(self) -> bool:
        """Whether it has ended: it has left, or a newer attempt continued without it."""
        return self._over or self.left

    @property
    def reached(self) -> tuple[int, int, int]:
        """:attr:`StepEnd.order` of the last step that counts; less than all where there is none."""
        return next((end.order for end, _ in self._records(self.columns[-1:])), (-1, 0, 0))

    @property
    def seconds(self) -> float:
        """Time from the begin of the first to the end of the last step that counts, summed over attempts."""
        total = 0
        for attempt in self.attempts:
            ends = self.ends(self.numbering(attempt))
            total += int(ends["end_ns"].max()) - int(ends["start_ns"].min()) if len(ends) else 0
        return total / 1e9

    @cached_property
    def columns(self) -> NDArray[Any]:
        """The complete steps that count in the order of training, numbered as steps of the run: rows of COURSE."""
        return self._made.rows

    @cached_property
    def _made(self) -> Course:
        before, self._before = self._before, None
        found = course_of(self.attempts, self._lineage, self._steps, before._made if before is not None else None)
        if before is not None:
            self._entered = {
                by_model: entered for by_model, entered in before._entered.items() if entered.rows <= found.same
            }
        return found

    @property
    def course(self) -> Iterator[tuple[StepEnd, StepPlace]]:
        """The same as records, each with the place of its recording; made while it is iterated."""
        return self._records(self.columns)

    def ends(self, rows: NDArray[Any]) -> NDArray[Any]:
        """The ends of some rows of :attr:`columns`, as rows of :data:`~watchglass.records.STEPS`."""
        found = np.empty(len(rows), dtype_of(STEPS))
        for attempt in np.unique(rows["attempt"]).tolist():
            chosen = rows["attempt"] == attempt
            ends = self.attempts[attempt].steps.log.latest
            found[chosen] = ends[np.searchsorted(ends["global_step"], rows["own"][chosen])]
        for name, column in (("mode_step", "step"), ("train_step", "train_step"), ("global_step", "number")):
            found[name] = rows[column]
        return found

    def _records(self, rows: NDArray[Any]) -> Iterator[tuple[StepEnd, StepPlace]]:
        """Rows of :attr:`columns` as records."""
        for start in range(0, len(rows), _AT_ONCE):
            some = rows[start : start + _AT_ONCE]
            places = map(StepPlace, some["attempt"].tolist(), some["own"].tolist())
            yield from zip(step_ends(self.ends(some)), places, strict=True)

    def numbers(self, mode: Mode | str = Mode.TRAIN) -> StepNumbers:
        """The complete steps of a mode, and the places of their recording; all modes for ``Mode.GLOBAL``."""
        mode = Mode.of(mode)
        if mode not in self._numbers:
            rows = self.columns if mode is Mode.GLOBAL else self.columns[self.columns["mode"] == mode]
            name = "number" if mode is Mode.GLOBAL else "step"
            if (rows[name][1:] <= rows[name][:-1]).any():
                # Where two attempts have a step (in a damaged run), the newest attempt counts.
                rows = rows[last_index_of_each(rows[name])]
            self._numbers[mode] = StepNumbers(rows, name)
        return self._numbers[mode]

    def end_at(self, place: StepPlace) -> StepEnd:
        """The end of a step that counts, numbered as a step of the run; KeyError where it does not."""
        rows = self.columns[(self.columns["own"] == place.global_step) & (self.columns["attempt"] == place.attempt)]
        if not len(rows):
            raise KeyError(place)
        return next(self._records(rows))[0]

    def numbering(self, attempt: int) -> NDArray[Any]:
        """The rows of :attr:`columns` of an attempt, by the numbers of their steps in that attempt."""
        if attempt not in self._numberings:
            rows = self.columns[self.columns["attempt"] == attempt]
            self._numberings[attempt] = rows[np.argsort(rows["own"], kind="stable")]
        return self._numberings[attempt]

    def has(self, name: str) -> bool:
        """Whether any attempt knows a tensor."""
        return any(tables.catalog.by_name(name) is not None for tables in self.attempts.values())

    def names_of(self, mode: Mode | str) -> frozenset[str]:
        """Names of the tensors with any record at a complete step of a mode."""
        numbers, found = self.numbers(mode), set()
        for attempt, tables in self.attempts.items():
            ids = tables.captured_ids(numbers.own(attempt))
            found |= {row.name for i in ids if (row := tables.catalog.get(i)) is not None}
        return frozenset(found)

    def names_having(self, wanted: RowsHaving) -> frozenset[str]:
        """Names of the tensors with such rows in any attempt."""
        found = set()
        for tables in self.attempts.values():
            rows = tables.log(wanted.kind).rows
            ids = np.unique(rows["tensor_id"][rows[wanted.field] == wanted.value]).tolist()
            found |= {row.name for i in ids if (row := tables.catalog.get(i)) is not None}
        return frozenset(found)

    def infos(self) -> dict[str, TensorInfo]:
        """The catalog row of every tensor by name: that of the newest attempt, in the order of first appearance."""
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
        self, name: str, mode: Mode | str, read: Callable[[WorkerTables, int], _Found]
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.intp], _Found]]:
        """The records of a tensor in each attempt: steps, ascending, the indices of their rows, and all that was read.

        Args:
            name: The tensor.
            mode: Of which steps.
            read: Returns, for an attempt's tables and tensor id, a tuple that begins with global steps.

        Raises:
            UnknownNameError: No attempt has the tensor.
        """
        self.info(name)
        numbers = self.numbers(mode)
        for attempt, tables in self.attempts.items():
            info = tables.catalog.by_name(name)
            if info is not None:
                found = read(tables, info.tensor_id)
                steps, index = numbers.of_global(attempt, found[0])
                if len(steps):
                    yield steps, index, found

    def history(
        self, name: str, mode: Mode | str, read: Callable[[WorkerTables, int], tuple[Any, ...]]
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The values of all :meth:`pieces`: steps int64[n] and values float64[n].

        Arguments as there; the values are the second item that ``read`` returns.
        """
        all_steps, values = [np.empty(0, np.int64)], [np.empty(0)]
        for steps, index, found in self.pieces(name, mode, read):
            all_steps.append(steps)
            values.append(found[1][index])
        return np.concatenate(all_steps), np.concatenate(values)

    def scalars(self, name: str, mode: Mode = Mode.TRAIN) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """See :meth:`Run.scalars`; empty where there is no such scalar."""
        return self.history(name, mode, WorkerTables.scalar_history)

    def stretches(self, mode: Mode | str = Mode.EVAL) -> list[Stretch]:
        """See :meth:`Run.stretches`."""
        return self._stretches(Mode.of(mode), by_model=False).get(0, [])

    def stretches_by_model(self, mode: Mode | str = Mode.EVAL) -> dict[int, list[Stretch]]:
        """The same from the steps of each model alone, by its number."""
        return self._stretches(Mode.of(mode), by_model=True)

    def _stretches(self, mode: Mode, *, by_model: bool) -> dict[int, list[Stretch]]:
        settled = self._made.last_train_step
        marks = {attempt: (tables.catalog.snapshot(), tables.log(SCALARS)) for attempt, tables in self.attempts.items()}
        known = self._entered.get(by_model)
        if known is None or not known.is_still(marks, self.columns):
            known = _Entered(0, marks, {}, {})
        # Earlier steps may still come between those after the last TRAIN step.
        known = self._entered[by_model] = self._enter(known, settled, marks, by_model)
        found = self._enter(known, len(self.columns), marks, by_model)
        for key, tracker in found.trackers.items():
            found.stretches[key].extend(tracker.finish())
        return {
            key: [stretch for stretch in stretches if stretch.mode is mode]
            for key, stretches in found.stretches.items()
        }

    def _enter(self, known: _Entered, stop: int, read: Mapping[int, _Read], by_model: bool) -> _Entered:
        """Stretches up to a row of the course; ``known`` stays unchanged."""
        stretches = {key: list(each) for key, each in known.stretches.items()}
        found = _Entered(stop, read, deepcopy(known.trackers), stretches)
        for end, place in self._records(self.columns[known.rows : stop]):
            tables, key = self.attempts[place.attempt], end.model if by_model else 0
            scalars = tables.rows(SCALARS, place.global_step)
            tracker = found.trackers.setdefault(key, StretchTracker())
            stretches.setdefault(key, []).extend(tracker.enter(end, scalars))
        return found

    def facts(self, kind: str | None = None, since: Mapping[int, int] | None = None) -> list[Fact]:
        """See :meth:`Run.facts`; without those that were read before, by attempt."""
        newest = next(reversed(counting(self.attempts, self._lineage)), None)
        of_run: list[Fact] = []
        of_steps: list[Fact] = []
        for attempt, tables in self.attempts.items():
            rows = self.numbering(attempt)
            own = rows["own"]
            shift = int(rows["number"][0]) - int(own[0]) if len(own) else 0
            for fact in tables.facts(kind=kind, since=since.get(attempt, 0) if since is not None else 0):
                number = fact.global_step
                if number < 0:
                    of_run.append(fact)
                    continue
                at = bisect_left(own, number, key=int)
                counts = at < len(own) and own[at] == number
                if counts or (attempt == newest and number not in tables.steps):
                    of_steps.append(replace(fact, global_step=number + shift) if shift else fact)
        return of_run + of_steps


@dataclass(frozen=True)
class _Entered:
    """Stretches of the first steps of a course."""

    rows: int  #: How many steps.
    read: Mapping[int, _Read]  #: The names and rows that their scalars were read from, by attempt.
    trackers: dict[int, StretchTracker]  #: Trackers of the open stretch, by model.
    stretches: dict[int, list[Stretch]]  #: Stretches that have ended, by model.

    def is_still(self, read: Mapping[int, _Read], course: NDArray[Any]) -> bool:
        """Whether their scalars are unchanged: these steps have no new rows, and names are the same."""
        rows = course[: self.rows]
        for attempt, (catalog, log) in read.items():
            known = self.read.get(attempt)
            if known is None or known[0] is not catalog or log.origin is not known[1].origin:
                return False
            new = np.unique(log.rows["global_step"][len(known[1]) :])
            own = rows["own"][rows["attempt"] == attempt] if len(new) else new
            if len(own) and new[0] <= own.max() and np.isin(own, new).any():
                return False
        return self.read.keys() <= read.keys()
