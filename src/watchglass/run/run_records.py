"""What was read of a run: its attempts, workers, streams and journal, as far as they are in the store."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from copy import copy
from typing import TYPE_CHECKING

from watchglass.errors import InvalidValueError, UnknownNameError
from watchglass.run.news import Cursor, News, cursor_of, news_of
from watchglass.run.numbering.course import STORED_MODES
from watchglass.run.numbering.lineage import Lineage, Seam, trace
from watchglass.run.numbering.steps import Range, half_open
from watchglass.run.reading import Reading
from watchglass.run.worker import Worker
from watchglass.store import Manifest, Store, attempts, is_alive, layout, read_claims, read_manifest
from watchglass.tables import WorkerTables

if TYPE_CHECKING:
    from typing_extensions import Self


class RunRecords:
    """What was read of a run; abstract, people read it as a :class:`~watchglass.run.Run`.

    Attributes:
        store: The store of the run.
        location: The location of the run, as the caller gave it.
        manifest: The manifest of the run.
        opened_steps: The TRAIN steps that it was opened with, half-open; None for all.
        attempts: Numbers of the attempts that have data, oldest first.
        attempt: The attempt that the caller chose, else the newest with a step, else the newest.
        fixed_attempt: The attempt that the caller chose; None for all attempts.
        seams: The joints between attempts; ``str()`` of one is a sentence.
        workers: Names of the workers, by rank.
        streams: Names of the streams; their rows are in the tables of kinds that are keyed by time.
        modes: Modes with complete steps.
        finished: Whether every worker that joined the newest attempt has left; False while no worker has joined.
        journal: The evaluator's records: findings, statuses, observations.
        cursor: The extent to which the run was read.
        reading: Everything that was read, with the step numbers of the attempts.
    """

    def __init__(
        self,
        store: Store,
        *,
        attempt: int | None = None,
        steps: Range | None = None,
        workers: Collection[str] | None = None,
    ) -> None:
        self.store = store
        self.location = store.location
        self.manifest: Manifest = read_manifest(store)
        self.opened_steps = half_open(steps)
        self.attempt = attempt or 0
        self.seams: tuple[Seam, ...] = ()
        self.cursor = Cursor()
        self.reading = Reading(store, self.opened_steps, workers)
        self.fixed_attempt = attempt
        self._matches: dict[int, int | None] = {}
        self._lineage: Lineage | None = None
        self._tables: dict[str, dict[int, WorkerTables]] = {}
        self._workers: dict[str, Worker] = {}
        self._before: dict[str, Worker] = {}
        if attempt is not None and attempt not in attempts(store):
            raise UnknownNameError(f"{self.location} has no attempt {attempt}; it has {len(attempts(store))}, from 0")
        self.refresh()

    def refresh(self, *, since: Cursor | None = None, again: bool = False) -> News:
        """Read the records since the last call; returns the news, which are false where there are none. Never waits.

        The time depends on the number of new records, not on the length of the run: a reader can follow step by step.

        Args:
            since: Return the news since this cursor, for one of several readers; since the last call if None.
            again: Drop everything and read all of it again.

        Raises:
            InvalidValueError: This is a snapshot.
        """
        if self.is_snapshot:
            raise InvalidValueError("a snapshot cannot be refreshed; refresh its run, and take another snapshot")
        if again:
            self.reading.restart()
        frames = self.reading.refresh()
        before = self.cursor
        if frames or again or not self._workers:
            self._look()
            parts = self._lineage.parts if self._lineage is not None else ()
            self.cursor = cursor_of(parts, self.reading.tables, self.workers, self.journal)
        return news_of(before if since is None else since, self.cursor, frames, self.journal, self.workers, self.worker)

    def snapshot(self) -> Self:
        """The run as it was read so far, which no later refresh changes; for any number of threads.

        It shares its memory with this run, and may be read while this run is refreshed. It cannot be refreshed. Data
        that is read from the store on demand (statistics, whole tensors) raises :class:`CompactedError` where it was
        removed since. ``lost`` shows the present processes, and ``problems`` grow as more data is read.
        """
        found = copy(self)
        found.reading = self.reading.snapshot()
        found._workers, found._before = {}, self._before | self._workers
        found._matches = dict(self._matches)
        found._look()
        for name in found.workers:
            found.worker(name).columns  # noqa: B018  # continues the results of this run, which change
        return found

    @property
    def is_snapshot(self) -> bool:
        """Whether it is a snapshot, which is never refreshed."""
        return self.reading.is_snapshot

    def _look(self) -> None:
        """Set the attributes from what was read."""
        reading = self.reading
        self._tables = defaultdict(dict)
        for (attempt, who), found in reading.tables.items():
            self._tables[who][attempt] = found
        self._before |= self._workers
        self._workers.clear()
        self.journal = reading.journal
        keys = reading.tables
        self.attempts = sorted({attempt for attempt, _ in keys})
        if self.fixed_attempt is None:
            first = reading.first_workers()
            self._lineage = trace(first, self._matches)
            self.seams = self._lineage.seams
            newest = max(self.attempts, default=0)
            self.attempt = max((at for at, tables in first.items() if len(tables.steps.log)), default=newest)
            counting = {part.attempt for part in self._lineage.parts} | {self.attempt, newest}
        else:
            counting = {self.fixed_attempt}
        self.workers = sorted({who for attempt, who in keys if attempt in counting}, key=layout.worker_order)
        self._names = frozenset(self.workers)
        self.streams = sorted(reading.streams.parts)
        team = [Worker(who, {at: found}) for (at, who), found in keys.items() if at == self.attempts[-1]]
        self.finished = bool(team) and all(worker.left for worker in team)
        modes = self.worker().columns["mode"]
        self.modes = [mode for mode in STORED_MODES if (modes == mode).any()]

    def worker(self, name: str | None = None) -> Worker:
        """A worker: its tables, lifecycle and steps; an empty one where the run has no worker yet.

        Raises:
            UnknownNameError: There is no such worker.
        """
        if name is not None and name not in self._names:
            raise UnknownNameError(
                f"{self.location} has no worker {name!r}; it has {', '.join(self.workers) or 'none'}"
            )
        chosen = name if name is not None else self.workers[0] if self.workers else ""
        if chosen not in self._workers:
            tables = self._tables.get(chosen, {})
            if self.fixed_attempt is not None:
                tables = {attempt: found for attempt, found in tables.items() if attempt == self.fixed_attempt}
            over = bool(tables) and max(tables) < max(self.attempts, default=0)
            self._workers[chosen] = Worker(
                chosen, tables or {self.attempt: WorkerTables(self.store)}, self._lineage, steps=self.opened_steps,
                over=over, before=self._before.pop(chosen, None),
            )  # fmt: skip
        return self._workers[chosen]

    @property
    def lost(self) -> list[str]:
        """Workers that never left and whose process is dead, as seen from this machine."""
        waiting = [worker for worker in self.workers if not self.worker(worker).ended]
        claims = read_claims(self.store, self.attempt) if waiting else {}
        return [worker for worker in waiting if worker in claims and is_alive(claims[worker]) is False]
