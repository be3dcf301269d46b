"""The whole of a run for people and programs: names, steps, scalars, tensors, findings."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from watchglass.config import suggest
from watchglass.errors import DamagedDataError, InvalidValueError, UnknownNameError
from watchglass.records import Fact, Finding, Mode, Observation, Role, RuleStatus
from watchglass.run.history import Phase, PhaseTracker
from watchglass.run.statistics import Statistics
from watchglass.run.steps import StepNumbers
from watchglass.run.tables import WorkerTables
from watchglass.run.tensor import Tensor
from watchglass.store import (
    Frame,
    FrameKind,
    Manifest,
    Problem,
    RunReader,
    Store,
    attempts,
    decode_finding,
    decode_observation,
    decode_status,
    describe,
    is_alive,
    layout,
    open_store,
    read_claims,
    read_manifest,
)


def open_run(path: str | os.PathLike[str], *, attempt: int | None = None) -> Run:
    """The run at a path, with everything read that was written so far; :meth:`Run.refresh` reads on.

    Args:
        path: Folder of the run.
        attempt: Which attempt to look at; None for the newest that has a step.

    Raises:
        MissingFileError: There is nothing.
        NotARunError: There is something else.
        FormatVersionError: It was written by a newer major version.
        UnknownNameError: There is no such attempt.
    """
    return Run(open_store(os.fspath(path)), attempt=attempt)


class Run:
    """A run, one attempt of it at a time. Reads only; for one thread. Damaged parts are left out, see ``problems``.

    Everything of a step is shown once the step is complete. ``worker`` arguments are names such as ``"worker_1"``,
    the worker with the lowest rank where they are None. Steps count from 0 within their mode.

    Attributes:
        store: Where the run is.
        location: The same as it was given.
        manifest: What the run says of itself.
    """

    def __init__(self, store: Store, *, attempt: int | None = None) -> None:
        self.store = store
        self.location = store.location
        self.manifest: Manifest = read_manifest(store)
        self._reader = RunReader(store)
        self._tables: dict[tuple[int, str], WorkerTables] = {}
        self._numbers: dict[tuple[int, str, Mode], tuple[int, StepNumbers]] = {}
        self._findings: dict[str, Finding] = {}
        self._statuses: dict[str, RuleStatus] = {}
        self._observations: list[Observation] = []
        self._journal_read = 0
        self._journal_problems: list[Problem] = []
        self._fixed_attempt = attempt
        self._full = True
        if attempt is not None and attempt not in attempts(store):
            raise UnknownNameError(f"{self.location} has no attempt {attempt}; it has {len(attempts(store))}, from 0")
        self.refresh()

    def refresh(self) -> int:
        """Read what was written since the last call; returns the number of new frames. Never waits."""
        count = 0
        while found := self._reader.poll(full=self._full):
            for attempt, worker, frame in found:
                if (attempt, worker) not in self._tables:
                    self._tables[attempt, worker] = WorkerTables()
                self._tables[attempt, worker].ingest(frame)
            count += len(found)
            self._full = False
        self._full = True  # someone who asks now and then, not ten times a second, can afford the whole listing
        journal = self._reader.journal()
        for frame in journal[self._journal_read :]:
            self._add_journal(frame)
        count += len(journal) - self._journal_read
        self._journal_read = len(journal)
        return count

    # Attempts, workers, steps

    @property
    def attempts(self) -> list[int]:
        """Numbers of the attempts that have data, oldest first."""
        return sorted({attempt for attempt, _ in self._tables})

    @property
    def attempt(self) -> int:
        """The attempt that is looked at: the one asked for, else the newest with a step, else the newest."""
        if self._fixed_attempt is not None:
            return self._fixed_attempt
        with_steps = [attempt for (attempt, _), tables in self._tables.items() if tables.steps]
        return max(with_steps or self.attempts or [0])

    @property
    def workers(self) -> list[str]:
        """Names of the attempt's workers, by rank."""
        chosen = self.attempt
        return sorted((worker for attempt, worker in self._tables if attempt == chosen), key=layout.worker_order)

    def tables(self, worker: str | None = None) -> WorkerTables:
        """Everything a worker recorded, as tables; empty ones where the run has no worker yet.

        Raises:
            UnknownNameError: There is no such worker.
        """
        known = self.workers
        if worker is None:
            return self._tables[self.attempt, known[0]] if known else WorkerTables()
        if worker not in known:
            raise UnknownNameError(f"{self.location} has no worker {worker!r}; it has {', '.join(known) or 'none'}")
        return self._tables[self.attempt, worker]

    def step_numbers(self, mode: Mode = Mode.TRAIN, worker: str | None = None) -> StepNumbers:
        """The complete steps of a mode with their global steps."""
        tables = self.tables(worker)
        key = (self.attempt, worker or "", Mode(mode))
        cached = self._numbers.get(key)
        if cached is None or cached[0] != len(tables.steps):
            cached = self._numbers[key] = (len(tables.steps), StepNumbers(tables.steps.values(), Mode(mode)))
        return cached[1]

    def steps(self, mode: Mode = Mode.TRAIN, worker: str | None = None) -> list[int]:
        """Complete steps of a mode, ascending; of ``Mode.GLOBAL`` the worker's steps over all modes."""
        return list(self.step_numbers(mode, worker))

    @property
    def finished(self) -> bool:
        """Whether every worker that joined the newest attempt has left; False while nobody has joined."""
        newest = max(self.attempts, default=0)
        tables = [t for (attempt, _), t in self._tables.items() if attempt == newest]
        return bool(tables) and all(_has_left(t) for t in tables)

    @property
    def lost(self) -> list[str]:
        """Workers that never left and whose process is gone, as far as can be seen from this machine."""
        claims = read_claims(self.store, self.attempt)
        return [
            worker
            for worker in self.workers
            if not _has_left(self.tables(worker)) and worker in claims and is_alive(claims[worker]) is False
        ]

    @property
    def seconds(self) -> float:
        """Time from the begin of the first to the end of the last step of the default worker, in seconds."""
        ends = self.tables().steps.values()
        return (max(e.end_ns for e in ends) - min(e.start_ns for e in ends)) / 1e9 if ends else 0.0

    def lifecycle(self, worker: str | None = None) -> list[dict[str, Any]]:
        """``joined`` and ``left`` events of a worker; ``left`` has ``status`` and what the capture cost."""
        return list(self.tables(worker).lifecycle)

    # Tensors and scalars

    def tensor_names(
        self,
        *,
        regex: str | None = None,
        role: Role | str | None = None,
        module: str | None = None,
        mode: Mode | None = None,
        collection: str | None = None,
        worker: str | None = None,
    ) -> list[str]:
        """Names of the tensors that match every condition given, in the order in which they were first seen.

        Args:
            regex: The name contains a match of this regular expression.
            role: What the tensor is.
            module: Path of the module that owns it, or of one that contains that module.
            mode: Something of it was recorded at a complete step of this mode.
            collection: This collection holds it, one of the user or a built-in one.
            worker: Whose tensors.

        Raises:
            InvalidValueError: The regular expression or the role is none.
        """
        tables = self.tables(worker)
        rows = tables.catalog.select(_role(role), name_regex=_regex(regex), collection=collection)
        if module is not None:
            rows = [row for row in rows if row.module == module or row.module.startswith(f"{module}.")]
        if mode is not None:
            numbers = self.step_numbers(mode, worker)
            captured = tables.captured_ids({numbers.global_step(step) for step in numbers})
            rows = [row for row in rows if row.tensor_id in captured]
        return [row.name for row in rows]

    def tensor(self, name: str) -> Tensor:
        """The tensor with a name.

        Raises:
            UnknownNameError: No worker has it; the message says the nearest name.
        """
        catalogs = [self.tables(worker).catalog for worker in self.workers]
        if not any(catalog.by_name(name) for catalog in catalogs):
            known = [each for catalog in catalogs for each in catalog.names]
            raise UnknownNameError(f"{self.location} has no tensor {name!r}{suggest(name, known)}; see tensor_names()")
        return Tensor(self, name)

    def scalars(
        self, name: str, mode: Mode = Mode.TRAIN, worker: str | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The course of a scalar such as ``"loss"``: steps int64[n], ascending, and values float64[n].

        One value for each step that has one: a scalar that was saved several times in a step is the mean of these.

        Raises:
            UnknownNameError: There is no such name; the message says the nearest.
        """
        info = self.tables(worker).catalog.by_name(name)
        if info is None:
            known = self.tables(worker).catalog.names
            raise UnknownNameError(f"{self.location} has no scalar {name!r}{suggest(name, known)}; see tensor_names()")
        global_steps, values, _ = self.tables(worker).scalar_history(info.tensor_id)
        steps, chosen = self.step_numbers(mode, worker).of_global(global_steps)
        return steps, values[chosen]

    def statistics(
        self, step: int, role: Role | str | None = None, *, mode: Mode = Mode.TRAIN, worker: str | None = None
    ) -> Statistics:
        """Statistics, histograms and quantiles of all tensors (of a role) at a step, as columns; empty for none.

        Raises:
            UnknownNameError: There is no such complete step.
            InvalidValueError: The role is none.
        """
        tables, numbers = self.tables(worker), self.step_numbers(mode, worker)
        if step not in numbers:
            raise UnknownNameError(f"{self.location} has no complete {mode.name} step {step}; it has {numbers}")
        number = numbers.global_step(step)
        rows = tables.statistics(number)
        known = rows.take(tables.catalog.mask(rows.ids, _role(role)))
        return Statistics(tables.catalog, *known, tables.reductions(number))

    def phases(self, mode: Mode = Mode.EVAL, worker: str | None = None) -> list[Phase]:
        """Stretches of steps of one mode with the mean of each scalar, weighted by batch size, in order.

        An EVAL phase is one evaluation; a TRAIN phase is the training between two evaluations.
        """
        tables, tracker = self.tables(worker), PhaseTracker()
        found: list[Phase] = []
        for end in sorted(tables.steps.values(), key=lambda end: end.order):
            rows = tables.scalars(end.global_step)
            known = ((tables.catalog.get(row_id), value, weight) for row_id, value, weight in rows)
            found += tracker.enter(end, [(info, value, weight) for info, value, weight in known if info is not None])
        found += tracker.finish()
        return [phase for phase in found if phase.mode is mode]

    def facts(self, kind: str | None = None, worker: str | None = None) -> list[Fact]:
        """Facts of a worker in the order of their steps, those of the run (step -1) first."""
        return [fact for fact in self.tables(worker).facts() if kind is None or fact.kind == kind]

    # What the evaluator wrote

    def findings(self) -> list[Finding]:
        """Findings of the journal in their newest state, in the order in which they first appeared."""
        return list(self._findings.values())

    def statuses(self) -> list[RuleStatus]:
        """Newest status of each rule, in the order in which rules first appeared."""
        return list(self._statuses.values())

    def observations(self) -> list[Observation]:
        """Observations of the journal, in order."""
        return list(self._observations)

    @property
    def problems(self) -> list[Problem]:
        """What of the run cannot be read, each with file, offset and reason. The torn end of a killed writer counts."""
        found = self._reader.problems + self._journal_problems
        for tables in self._tables.values():
            found += tables.problems
        return found + (self._reader.unfinished() if self.finished or self.lost else [])

    def __repr__(self) -> str:
        modes = [(len(self.step_numbers(mode)), mode.name) for mode in (Mode.TRAIN, Mode.EVAL, Mode.PREDICT)]
        steps = " and ".join(f"{count} {name}" for count, name in modes if count) or "no"
        state = "finished" if self.finished else "lost" if self.lost else "not finished"
        parts = [_many(len(self.workers), "worker"), f"{steps} steps", _many(len(self.tables().catalog), "tensor")]
        if self._findings:
            parts.append(_many(len(self._findings), "finding"))
        return f"Run({self.location!r}: {', '.join(parts)}, {state})"

    def _add_journal(self, frame: Frame) -> None:
        try:
            if frame.kind == FrameKind.FINDING:
                finding = decode_finding(frame.payload)
                self._findings[finding.id] = finding
            elif frame.kind == FrameKind.STATUS:
                status = decode_status(frame.payload)
                self._statuses[status.rule] = status
            else:
                self._observations.append(decode_observation(frame.payload))
        except DamagedDataError as error:
            self._journal_problems.append(describe(frame, error))


def _has_left(tables: WorkerTables) -> bool:
    """Whether the newest lifecycle event is that the worker left (a restarted process joins again)."""
    return bool(tables.lifecycle) and tables.lifecycle[-1]["event"] == "left"


def _role(role: Role | str | None) -> Role | None:
    try:
        return None if role is None else Role(role)
    except ValueError:
        known: Iterable[str] = [item.value for item in Role]
        raise InvalidValueError(f"a role must be one of {', '.join(known)} but got {role!r}") from None


def _regex(regex: str | None) -> str | None:
    if regex is not None:
        try:
            re.compile(regex)
        except re.error as error:
            raise InvalidValueError(f"a regex must be a regular expression but got {regex!r}: {error}") from None
    return regex


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
