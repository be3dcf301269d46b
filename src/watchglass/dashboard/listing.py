"""The runs of a folder or bucket, as rows of a table: searched, read and summed up by one thread, newest first."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from watchglass.config import Clock
from watchglass.dashboard.watched_run import Published, WatchedRun, WatchedRuns
from watchglass.errors import MissingFileError, in_a_line
from watchglass.records import Severity
from watchglass.run import ListedRun, Run, RunSearch, identifier_of, runs_of
from watchglass.store import open_store
from watchglass.view import colour_of, headline, live_tone, tone

#: Seconds between two rounds while a page is open, and seconds after its last request until it counts as closed.
_PERIOD_S, _UNWATCHED_S = 2.0, 60.0
#: Seconds after which removed runs are missed, and a run that is not kept open is read again if it has not ended.
_LAP_S = 60.0
#: Runs that have not ended and are kept open, the newest.
_KEPT = 16
#: Points of the course of a loss.
_POINTS = 60
#: States in which a run may go on.
_LIVE = ("not finished", "no data")


@dataclass(frozen=True)
class RunRow:
    """What the table says about a run.

    Attributes:
        identifier: The run in addresses: a hash of its name.
        listed: Its name and location, the time of its creation.
        read: Whether the rest was read.
        state: ``"finished"``, ``"not finished"`` and so on.
        sentence: The headline of its verdict.
        tone: Severity of the verdict, "" for a clean run.
        worst: The headline of its worst diagnosis, "" for none.
        steps: Training steps.
        planned: The planned number of them; None if unknown.
        seconds: Duration of its steps.
        loss: Course of the training loss, thinned.
        colour: Its colour, by the hash of its identifier.
        problem: Why it cannot be read.
    """

    identifier: str
    listed: ListedRun
    read: bool = False
    state: str = ""
    sentence: str = ""
    tone: str = ""
    worst: str = ""
    steps: int = 0
    planned: int | None = None
    seconds: float = 0.0
    loss: tuple[float, ...] = ()
    colour: str = ""
    problem: str = ""

    @property
    def live(self) -> bool:
        """Whether it may go on."""
        return self.read and self.state in _LIVE and not self.problem

    @property
    def seconds_left(self) -> float | None:
        """Estimated time until its planned end; None if unknown."""
        if not self.live or self.planned is None or not 0 < self.steps < self.planned:
            return None
        return self.seconds * (self.planned - self.steps) / self.steps


class Listing:
    """All runs below a location. For any number of threads; one more searches and reads.

    Args:
        location: A folder or prefix, or a run.
        clock: The time.

    Attributes:
        stopping: To be set when the server stops.
        runs: Those that are open.
        number: Grows with each change.

    Raises:
        MissingFileError: There is no run.
    """

    def __init__(self, location: str, clock: Clock = time) -> None:
        self.location, self._clock = location, clock
        self.stopping = threading.Event()
        self.runs = WatchedRuns(self.stopping, clock)
        self.number = 0
        self._asked_s = clock.monotonic()
        self._rows: dict[str, RunRow] = {}
        self._open: dict[str, WatchedRun] = {}
        self._looked_s: dict[str, float] = {}
        self._again()

    @property
    def rows(self) -> list[RunRow]:
        """A row of each run, the newest first; who asks looks at them."""
        self.asked()
        return sorted(self._rows.values(), key=lambda row: (-row.listed.created_ns, row.listed.name))

    def asked(self) -> None:
        """Someone looks at them."""
        self._asked_s = self._clock.monotonic()

    def __getitem__(self, identifier: str) -> RunRow:
        """The row of a run.

        Raises:
            KeyError: No run that was found has this identifier.
        """
        return self._rows[identifier]

    def follow(self) -> None:
        """Search and read runs until the server stops. Runs in its own thread."""
        while not self.stopping.is_set():
            if self._clock.monotonic() - self._asked_s < _UNWATCHED_S:
                self.look()
            self.stopping.wait(_PERIOD_S)

    def look(self) -> None:
        """Search for runs, and read those that are new or may have gone on. For one thread."""
        now_s = self._clock.monotonic()
        try:
            if now_s - self._begun_s > _LAP_S:
                self._again()
            else:
                self._find()
        except Exception:  # the store does not answer; the next round asks again
            return
        for row in self.rows:
            if self.stopping.is_set():
                return
            since_s = now_s - self._looked_s.get(row.identifier, float("-inf"))
            if not row.read or (row.live and (row.identifier in self._open or since_s > _LAP_S)):
                self._looked_s[row.identifier] = now_s
                self._put(self._read(row))

    def _again(self) -> None:
        """Search again from scratch, so that removed runs disappear."""
        self._begun_s = self._clock.monotonic()
        self._search = RunSearch(open_store(self.location))
        names = self._find()
        if not names:
            raise MissingFileError(
                f"{self.location} holds no runs; give a run, or a folder below which `watchglass run` wrote some"
            )
        if gone := self._rows.keys() - names:
            self._rows = {name: row for name, row in self._rows.items() if name in names}
            self._open = {name: run for name, run in self._open.items() if name not in gone}
            self.number += 1

    def _find(self) -> set[str]:
        """Add the runs that the search finds; returns their identifiers."""
        try:
            listed = runs_of(self.location, self._search).listed
        except MissingFileError:
            return set()
        for each in listed:
            identifier = identifier_of(each.name)
            known = self._rows.get(identifier)
            if known is None or (known.listed != each and known.problem):
                self._put(RunRow(identifier, each, read=bool(each.problem), problem=each.problem))
        return {identifier_of(each.name) for each in listed}

    def _put(self, row: RunRow) -> None:
        if self._rows.get(row.identifier) != row:
            self._rows = {**self._rows, row.identifier: row}
            self.number += 1

    def _read(self, row: RunRow) -> RunRow:
        location = row.listed.location
        try:
            known = row.identifier in self._open
            watched = self.runs.opened(location)
            if known and not self.runs.is_watched(location):
                watched.look()
            found = summed_up(row, watched.newest_unasked, watched.state)
        except Exception as error:  # of one run among many
            return replace(row, read=True, problem=in_a_line(error))
        if found.live:
            self._open[row.identifier] = watched
            for oldest in sorted(self._open, key=lambda each: self._rows[each].listed.created_ns)[:-_KEPT]:
                del self._open[oldest]
        else:
            self._open.pop(row.identifier, None)
        return found


def summed_up(row: RunRow, published: Published, state: str) -> RunRow:
    """The row of a run by what was read of it, and by how its processes are."""
    run, verdict = published.run, published.verdict
    worst = max(verdict.diagnoses, key=lambda each: each.severity.rank, default=None)
    return replace(
        row, read=True, problem="", state=state, sentence=headline(verdict),
        tone=live_tone(verdict) if state in _LIVE else tone(verdict),
        worst=worst.headline if worst is not None else "", steps=verdict.train_steps,
        planned=verdict.planned_train_steps, seconds=verdict.seconds, loss=_thinned(run),
        colour=colour_of(run.manifest.run_id),
    )  # fmt: skip


def _thinned(run: Run) -> tuple[float, ...]:
    """The course of the loss, the mean of each of 60 stretches and then the last loss; what is not finite stays so."""
    if not run.worker().has("loss"):
        return ()
    _, values = run.scalars("loss")
    begins = np.unique(np.linspace(0, len(values), _POINTS + 1).astype(int)[:-1])
    if not len(values):
        return ()
    counts = np.diff([*begins.tolist(), len(values)])
    return (*(np.add.reduceat(values, begins) / counts).tolist()[:-1], float(values[-1]))


#: How rows are sorted, by the name of a column; the first of each is that of the greatest need.
SORTS: dict[str, Callable[[RunRow], Any]] = {
    "started": lambda row: -row.listed.created_ns,
    "run": lambda row: row.listed.name,
    "state": lambda row: (not row.live, row.state),
    "verdict": lambda row: (-Severity(row.tone).rank if row.tone else 1, row.sentence),
    "steps": lambda row: -row.steps,
    "loss": lambda row: row.loss[-1] if row.loss and not math.isnan(row.loss[-1]) else math.inf,
}


def chosen(rows: Iterable[RunRow], query: str, sort: str) -> list[RunRow]:
    """The rows that have all words of a query, sorted by a column; ``"-loss"`` is the other way round.

    Raises:
        KeyError: There is no such column.
    """
    words = query.lower().split()

    def text(row: RunRow) -> str:
        return " ".join((row.listed.name, row.state, row.sentence, row.worst, row.problem)).lower()

    found = [row for row in rows if all(word in text(row) for word in words)]
    return sorted(found, key=SORTS[sort.removeprefix("-")], reverse=sort.startswith("-"))
