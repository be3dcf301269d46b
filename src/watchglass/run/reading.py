"""The content of a run that was read so far: tables of every worker of every attempt, and the journal."""

from __future__ import annotations

from collections.abc import Collection
from copy import copy

from watchglass.errors import CompactedError, DamagedDataError
from watchglass.records import Finding, Observation, RuleStatus
from watchglass.store import Frame, FrameKind, JournalRecord, Problem, RunReader, Store, decode_record, describe, layout
from watchglass.tables import Streams, WorkerTables

#: A reader begins again where the run was compacted meanwhile. More often than this, it raises the error.
_MOST_RESTARTS = 8


class Journal:
    """The evaluator's records of a run.

    Attributes:
        observations: Observations, in order.
        arrived: All records in their state at that time, in order.
    """

    def __init__(self) -> None:
        self.observations: list[Observation] = []
        self.arrived: list[JournalRecord] = []
        self._findings: dict[str, Finding] = {}
        self._statuses: dict[str, RuleStatus] = {}

    @property
    def findings(self) -> list[Finding]:
        """Findings in their newest state, in the order in which they first appeared."""
        return list(self._findings.values())

    @property
    def statuses(self) -> list[RuleStatus]:
        """The newest status of each rule, in the order in which rules first appeared."""
        return list(self._statuses.values())

    def __repr__(self) -> str:
        counts = (len(self.findings), "finding"), (len(self.statuses), "rule"), (len(self.observations), "observation")
        return f"Journal({', '.join(f'{count} {word}' + 's' * (count != 1) for count, word in counts)})"

    def add(self, frame: Frame) -> None:
        """Take in one frame.

        Raises:
            DamagedDataError: Its payload is invalid.
        """
        record = decode_record(frame)
        if isinstance(record, Finding):
            self._findings[record.id] = record
        elif isinstance(record, RuleStatus):
            self._statuses[record.rule] = record
        else:
            self.observations.append(record)
        self.arrived.append(record)

    def snapshot(self) -> Journal:
        """A copy of the present state, which later frames do not change."""
        found = Journal()
        found._findings, found._statuses = dict(self._findings), dict(self._statuses)
        found.observations, found.arrived = list(self.observations), list(self.arrived)
        return found


class Reading:
    """Everything that was read of a run. For one thread; a snapshot is for any number of threads.

    Args:
        store: The store of the run.
        steps: Keep only these TRAIN steps, half-open, and the evaluations after them; all if None.
        workers: Read only these workers; all if None.

    Attributes:
        tables: The records of each worker, by attempt and name.
        streams: The rows of streams.
        journal: The evaluator's records.
    """

    def __init__(
        self, store: Store, steps: tuple[int, int] | None = None, workers: Collection[str] | None = None
    ) -> None:
        self._store = store
        self._steps = steps
        self._workers = workers
        self._stopped: tuple[list[Problem], list[Problem]] | None = None
        self.restart()

    def restart(self) -> None:
        """Forget everything; the next :meth:`refresh` reads it again."""
        self._reader = RunReader(self._store, leave=(FrameKind.STATISTICS, FrameKind.SAMPLES), workers=self._workers)
        self.tables: dict[tuple[int, str], WorkerTables] = {}
        self.streams = Streams(self._store)
        self.journal = Journal()
        self._journal_read = 0
        self._journal_problems: list[Problem] = []

    def refresh(self) -> int:
        """Read what was written since the last call; returns the number of new frames. Never waits.

        Where the run was compacted meanwhile, everything is read again, from the compacted files.
        """
        for _ in range(_MOST_RESTARTS):
            try:
                return self._read()
            except CompactedError:
                self.restart()
        return self._read()

    @property
    def problems(self) -> list[Problem]:
        """The unreadable parts, without the torn ends of segments that may still be written.

        All that was read is decoded for it; of a snapshot, which shares what was found, nothing more.
        """
        found = self._of_files()[0] + self.streams.problems
        for tables in self.tables.values():
            found += tables.known_problems if self.is_snapshot else tables.problems
        return found

    def first_workers(self) -> dict[int, WorkerTables]:
        """For each attempt the tables of its worker with the lowest rank."""
        names: dict[int, str] = {}
        for attempt, name in self.tables:
            names[attempt] = min(names.get(attempt, name), name, key=layout.worker_order)
        return {attempt: self.tables[attempt, name] for attempt, name in sorted(names.items())}

    def unfinished(self) -> list[Problem]:
        """See :meth:`RunReader.unfinished`."""
        return self._of_files()[1]

    @property
    def is_snapshot(self) -> bool:
        """Whether it is a snapshot, which never reads."""
        return self._stopped is not None

    def snapshot(self) -> Reading:
        """A copy of the present state, which never reads; for any number of threads."""
        found = copy(self)
        found.tables = {key: tables.snapshot() for key, tables in self.tables.items()}
        found.streams, found.journal = self.streams.snapshot(), self.journal.snapshot()
        found._stopped = self._of_files()
        return found

    def _of_files(self) -> tuple[list[Problem], list[Problem]]:
        """The unreadable parts of files, and the torn ends of files that may still be written."""
        if self._stopped is not None:
            return self._stopped
        return self._reader.problems + self._journal_problems, self._reader.unfinished()

    def _read(self) -> int:
        # A reader that refreshes now and then, not ten times a second, can afford the whole listing.
        count, full = 0, True
        while found := self._reader.poll(full=full):
            for attempt, worker, frame in found:
                if (attempt, worker) not in self.tables:
                    self.tables[attempt, worker] = WorkerTables(self._store, steps=self._steps)
                self.tables[attempt, worker].ingest(frame)
            count += len(found)
            full = False
        for stream, frame in self._reader.streams():
            self.streams.ingest(stream, frame)
            count += 1
        for parts in self.streams.parts.values():
            for part in parts:
                part.settle()
        journal = self._reader.journal()
        for frame in journal[self._journal_read :]:
            try:
                self.journal.add(frame)
            except DamagedDataError as error:
                self._journal_problems.append(describe(frame, error))
        count += len(journal) - self._journal_read
        self._journal_read = len(journal)
        return count
