"""The news of a run between two reads: cursors, and the difference between two of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from watchglass.records import FACTS, Fact, Finding, Mode, Observation, RuleStatus
from watchglass.run.numbering.lineage import StepRange
from watchglass.run.reading import Journal
from watchglass.run.worker import Worker
from watchglass.tables import RowLog, WorkerTables

#: Rows behind the new ones in which these are looked for first.
_NEAR = 256


@dataclass(frozen=True)
class Cursor:
    """The extent to which a run was read. Never changes; for use with the :class:`Run` that returned it.

    Attributes:
        parts: The TRAIN steps that counted.
        newest: For each worker its newest attempt with steps, which counts where no TRAIN step does; -1 for none.
        ends: The steps of each worker, by attempt.
        facts: The number of facts read of each worker, by attempt.
        journal: The journal, and the number of its records that were read.
    """

    parts: tuple[StepRange, ...] = ()
    newest: Mapping[str, int] = field(default_factory=dict)
    ends: Mapping[tuple[int, str], RowLog] = field(default_factory=dict)
    facts: Mapping[tuple[int, str], int] = field(default_factory=dict)
    journal: tuple[object, int] = (None, 0)


@dataclass(frozen=True)
class News:
    """The new records between two cursors; true where there are any. For the thread of its run.

    Attributes:
        frames: Frames that the refresh read.
        rebuilt: Earlier steps, or their numbers, have changed (an attempt was joined, a compacted run was read again):
            drop everything that you derived from the run. All of the run is new then.
        journal: Findings and statuses of rules in their newest state, and observations, in the order of the journal.
        cursor: The end of these news; pass it to the next :meth:`Run.refresh`.
    """

    frames: int
    rebuilt: bool
    journal: tuple[Finding | RuleStatus | Observation, ...]
    cursor: Cursor
    _since: Cursor
    _names: Sequence[str]
    _worker: Callable[[str | None], Worker]

    def __bool__(self) -> bool:
        return self.frames > 0 or self.rebuilt or bool(self.journal) or bool(self.workers)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Findings that are new or changed, in their newest state."""
        return tuple({each.id: each for each in self.journal if isinstance(each, Finding)}.values())

    @property
    def workers(self) -> tuple[str, ...]:
        """Workers that have new complete steps, by rank."""
        found = {who for (_, who), new in self._ends() if len(new)}
        return tuple(worker for worker in self._names if worker in found)

    def steps(self, mode: Mode | str = Mode.TRAIN, worker: str | None = None) -> NDArray[np.int64]:
        """New complete steps of a mode, ascending int64[n]; a step that was written twice may come again."""
        source, mode = self._worker(worker), Mode.of(mode)
        course, found = source.columns, [np.empty(0, np.int64)]
        for (attempt, who), ends in self._ends():
            if who != source.name or attempt not in source.attempts:
                continue
            own = np.unique(ends["global_step"])
            # Most new steps are at the end.
            rows = course[-len(own) - _NEAR :]
            new = rows[(rows["attempt"] == attempt) & np.isin(rows["own"], own)]
            if len(new) < len(own):
                new = course[(course["attempt"] == attempt) & np.isin(course["own"], own)]
            found.append(new["number"] if mode is Mode.GLOBAL else new["step"][new["mode"] == mode])
        return np.unique(np.concatenate(found))

    def facts(self, kind: str | None = None, worker: str | None = None) -> list[Fact]:
        """New facts of a worker, in the order of :meth:`Run.facts`."""
        source = self._worker(worker)
        was_there = source.name in self._since.newest
        known = {at: count for (at, who), count in self._since.facts.items() if was_there and who == source.name}
        return source.facts(kind, known)

    def _ends(self) -> Iterator[tuple[tuple[int, str], NDArray[Any]]]:
        """The new steps of each worker, by attempt."""
        for key, log in self.cursor.ends.items():
            known = self._since.ends.get(key, ()) if key[1] in self._since.newest else ()
            yield key, log.rows[len(known) :]


def cursor_of(
    parts: tuple[StepRange, ...],
    tables: Mapping[tuple[int, str], WorkerTables],
    workers: Sequence[str],
    journal: Journal,
) -> Cursor:
    """The cursor of a run as it is read now.

    Args:
        parts: The TRAIN steps that count.
        tables: The records of each worker in each attempt.
        workers: Names of the workers that count.
        journal: The journal.
    """
    ends = {key: found.steps.log for key, found in tables.items()}
    recorded = sorted((attempt, who) for (attempt, who), log in ends.items() if len(log) and who in workers)
    newest = dict.fromkeys(workers, -1) | {who: attempt for attempt, who in recorded}
    facts = {key: len(found.log(FACTS)) for key, found in tables.items()}
    return Cursor(parts, newest, ends, facts, (journal, len(journal.arrived)))


def news_of(
    since: Cursor, now: Cursor, frames: int, journal: Journal, workers: Sequence[str],
    worker: Callable[[str | None], Worker],
) -> News:  # fmt: skip
    """The news between two cursors of a run.

    Args:
        since: The earlier one.
        now: The later one.
        frames: Frames that were read between them.
        journal: The journal.
        workers: Names of the workers.
        worker: A worker of this name.
    """
    newest = max((attempt for attempt, _ in now.ends), default=0)
    # A newer attempt may have continued without a worker, which then left the run.
    counted = since.parts != now.parts or any(
        who not in now.newest or (not now.parts and now.newest[who] != attempt)
        for who, attempt in since.newest.items()
        if attempt >= 0
    )
    rebuilt = (counted and max(since.newest.values(), default=-1) >= 0) or any(
        (attempt, who) not in now.ends or _moved(known, now.ends[attempt, who], attempt, newest)
        for (attempt, who), known in since.ends.items()
    )
    read, begin = since.journal
    arrived = journal.arrived[begin if read is journal and not rebuilt else 0 :]
    return News(frames, rebuilt, tuple(arrived), now, since if not rebuilt else Cursor(), workers, worker)


def _moved(known: RowLog, now: RowLog, attempt: int, newest: int) -> bool:
    """Whether the steps of a worker in an attempt, or their numbers in the run, have changed."""
    if now is known:
        return False
    # The numbers of the newest of several attempts go on from those before it, with its first step.
    first_changed = len(known) > 0 and attempt > 0 and now.least < known.least
    return attempt < newest or now.origin is not known.origin or first_changed
