"""The runs of a folder or bucket, as rows of a table: searched, read and summed up by one thread, newest first."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from watchglass.config import Clock
from watchglass.dashboard.watched_run import WatchedRun, WatchedRuns
from watchglass.diagnose import BEING_READ, RunSummary, preview_of, summary_of
from watchglass.errors import MissingFileError, in_a_line
from watchglass.records import Severity
from watchglass.run import RunSearch, identifier_of, runs_of
from watchglass.store import open_store

#: Seconds between two rounds while a page is open, and seconds after its last request until it counts as closed.
_PERIOD_S, _UNWATCHED_S = 2.0, 60.0
#: Seconds after which removed runs are missed, and a run that is not kept open is read again if it has not ended.
_LAP_S = 60.0
#: Runs that have not ended, or are still evaluated, and are kept open, the newest.
_KEPT = 16


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
        self._rows: dict[str, RunSummary] = {}
        self._open: dict[str, WatchedRun] = {}
        self._looked_s: dict[str, float] = {}
        self._unsettled: set[str] = set()
        self._again()

    @property
    def rows(self) -> list[RunSummary]:
        """A row of each run, the newest first; who asks looks at them."""
        self.asked()
        return sorted(self._rows.values(), key=lambda row: (-row.listed.created_ns, row.listed.name))

    def asked(self) -> None:
        """Someone looks at them."""
        self._asked_s = self._clock.monotonic()

    def __getitem__(self, identifier: str) -> RunSummary:
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
            partial = not row.read or row.state == BEING_READ
            unsettled = row.identifier in self._unsettled
            if partial or (unsettled and (row.identifier in self._open or since_s > _LAP_S)):
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
                self._put(RunSummary(each, read=bool(each.problem), problem=each.problem))
        return {identifier_of(each.name) for each in listed}

    def preview(self, identifier: str) -> RunSummary:
        """The row of a run; where it was not read yet and has very many workers, what is read quickly.

        Raises:
            KeyError: There is no such run.
            WatchglassError: It cannot be read.
        """
        row = self._rows[identifier]
        found = preview_of(row.listed) if not row.read else None
        if found is not None and not self._rows[identifier].read:
            self._put(found)
        return found or row

    def _put(self, row: RunSummary) -> None:
        if self._rows.get(row.identifier) != row:
            self._rows = {**self._rows, row.identifier: row}
            self.number += 1

    def _read(self, row: RunSummary) -> RunSummary:
        location = row.listed.location
        try:
            if not row.read:
                self.preview(row.identifier)
            known = row.identifier in self._open
            watched = self.runs.opened(location)
            if known and not self.runs.is_watched(location):
                watched.look()
            published = watched.newest_unasked
            found = summary_of(published.run, row.listed, judged=published.verdict, state=watched.state)
        except Exception as error:  # of one run among many
            return replace(row, read=True, problem=in_a_line(error))
        if not watched.is_settled:
            self._unsettled.add(row.identifier)
            self._open[row.identifier] = watched
            for oldest in sorted(self._open, key=lambda each: self._rows[each].listed.created_ns)[:-_KEPT]:
                del self._open[oldest]
        else:
            self._unsettled.discard(row.identifier)
            self._open.pop(row.identifier, None)
        return found


#: How rows are sorted, by the name of a column; the first of each is that of the greatest need.
SORTS: dict[str, Callable[[RunSummary], Any]] = {
    "started": lambda row: -row.listed.created_ns,
    "run": lambda row: row.listed.name,
    "state": lambda row: (not row.live, row.state),
    "verdict": lambda row: (-Severity(row.tone).rank if row.tone else 1, row.headline),
    "steps": lambda row: -row.train_steps,
    "loss": lambda row: math.inf if row.loss is None or math.isnan(row.loss) else row.loss,
}


def chosen(rows: Iterable[RunSummary], query: str, sort: str) -> list[RunSummary]:
    """The rows that have all words of a query, sorted by a column; ``"-loss"`` is the other way round.

    Raises:
        KeyError: There is no such column.
    """
    words = query.lower().split()

    def text(row: RunSummary) -> str:
        return " ".join((row.listed.name, row.state, row.headline, row.worst_diagnosis, row.problem)).lower()

    found = [row for row in rows if all(word in text(row) for word in words)]
    return sorted(found, key=SORTS[sort.removeprefix("-")], reverse=sort.startswith("-"))
