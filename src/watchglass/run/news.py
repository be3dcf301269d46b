"""What is new of a run since somebody looked: cursors, and what lies between two of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from watchglass.records import Finding, Mode, Observation, RuleStatus
from watchglass.run.lineage import Part

if TYPE_CHECKING:
    from watchglass.run.run import Run

#: Rows behind the new ones in which these are looked for first.
_NEAR = 256


@dataclass(frozen=True)
class Cursor:
    """How far a run was read. Never changes; of use with the :class:`Run` that gave it.

    Attributes:
        parts: Which TRAIN steps counted.
        newest: Of each worker of the run the newest attempt with steps, which counts where no TRAIN step does.
        ends: Of each worker of each attempt the log of its steps, and how many were there.
        journal: The same of the journal.
    """

    parts: tuple[Part, ...] = ()
    newest: Mapping[str, int] = field(default_factory=dict)
    ends: Mapping[tuple[int, str], tuple[object, int]] = field(default_factory=dict)
    journal: tuple[object, int] = (None, 0)


@dataclass(frozen=True)
class News:
    """What came between two cursors; true where anything did. For the thread of its run.

    Attributes:
        frames: Frames that the refresh read.
        rebuilt: Earlier steps are not what they were (an attempt was joined, a compacted run was read again): forget
            what you have of the run. All of it is new then.
        journal: Findings and statuses of rules in their newest state, and observations, in the order of the journal.
        cursor: Where this ends; the next :meth:`Run.refresh` takes it.
    """

    frames: int
    rebuilt: bool
    journal: tuple[Finding | RuleStatus | Observation, ...]
    cursor: Cursor
    _since: Cursor
    _run: Run

    def __bool__(self) -> bool:
        return self.frames > 0 or self.rebuilt or bool(self.journal) or bool(self.workers)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Findings that are new or changed, in their newest state."""
        return tuple({each.id: each for each in self.journal if isinstance(each, Finding)}.values())

    @property
    def workers(self) -> tuple[str, ...]:
        """Workers that have new complete steps, by rank."""
        found = {who for (_, who), (_, begin, end) in self._stretches() if end > begin}
        return tuple(worker for worker in self._run.workers if worker in found)

    def steps(self, mode: Mode = Mode.TRAIN, worker: str | None = None) -> NDArray[np.int64]:
        """New complete steps of a mode, ascending int64[n]; one that was written twice may come again.

        Of ``Mode.GLOBAL`` as they are numbered now: where an attempt was joined, steps that end late may move others.
        """
        source = self._run.worker(worker)
        course, found = source.columns, [np.empty(0, np.int64)]
        for (attempt, who), (origin, begin, end) in self._stretches():
            tables = source.attempts.get(attempt)
            if who != source.name or tables is None or tables.steps.log.origin is not origin:
                continue
            own = np.unique(tables.steps.log.rows["global_step"][begin:end])
            # Most of what is new stands at the end.
            rows = course[-len(own) - _NEAR :]
            new = rows[(rows["attempt"] == attempt) & np.isin(rows["own"], own)]
            if len(new) < len(own):
                new = course[(course["attempt"] == attempt) & np.isin(course["own"], own)]
            found.append(new["number"] if mode is Mode.GLOBAL else new["step"][new["mode"] == mode])
        return np.unique(np.concatenate(found))

    def _stretches(self) -> Iterator[tuple[tuple[int, str], tuple[object, int, int]]]:
        """Of each worker of each attempt the log of its steps, and which of them are new."""
        for key, (origin, end) in self.cursor.ends.items():
            known, begin = self._since.ends.get(key, (origin, 0))
            yield key, (origin, begin if known is origin and not self.rebuilt else 0, end)


def cursor_of(run: Run, parts: tuple[Part, ...]) -> Cursor:
    """How far a run was read by now."""
    logs = {key: tables.steps.log for key, tables in run._reading.tables.items()}
    ends = {key: (log.origin, len(log)) for key, log in logs.items()}
    known = sorted((attempt, who) for (attempt, who), (_, count) in ends.items() if count and who in run.workers)
    newest = {who: attempt for attempt, who in known}
    return Cursor(parts, newest, ends, (run.journal, len(run.journal.arrived)))


def news_of(run: Run, since: Cursor, now: Cursor, frames: int) -> News:
    """What came between two cursors of a run."""
    newest = max((attempt for attempt, _ in now.ends), default=0)
    changed = [key for key, known in since.ends.items() if now.ends.get(key) != known]
    # A worker may also be of the run no more, where a newer attempt went on without it.
    counted = since.parts != now.parts or any(
        who not in now.newest or (not now.parts and now.newest[who] != attempt) for who, attempt in since.newest.items()
    )
    rebuilt = (counted and bool(since.newest)) or any(
        attempt < newest or now.ends.get((attempt, who), (None, 0))[0] is not since.ends[attempt, who][0]
        for attempt, who in changed
    )
    journal, begin = since.journal
    arrived = run.journal.arrived[begin if journal is run.journal and not rebuilt else 0 :]
    return News(frames, rebuilt, tuple(arrived), now, since if not rebuilt else Cursor(), run)
