"""Finds the segments of a run: decides what to list, and when, so that a poll is cheap and misses nothing.

On an object store every poll is one listing of what lies behind the bucket in which the slowest worker writes, minus
two for clocks that differ. On a local folder that has been quiet for a moment a poll only looks at the sizes of the
newest segments. Everything is listed from time to time, for clocks that are further apart and for late data of old
attempts.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

from watchglass.config import TIMING, Clock, Timing
from watchglass.store import layout, manifest
from watchglass.store.contract import Store, StoredObject

#: Buckets before the newest that every poll lists again, for workers whose clocks are behind.
SKEW_BUCKETS = 2
#: Objects that one request lists.
PAGE = 1000
#: In a folder: polls without news after which only the newest segments are checked, and the number of workers checked.
_QUIET_POLLS, _FEW = 2, 4


@dataclass
class _Newest:
    """The newest segment of a worker, and when it was last seen to be new or longer (seconds)."""

    name: layout.SegmentName
    entry: StoredObject
    heard_s: float


class SegmentDiscovery:
    """Finds new and grown segments of a run at each poll. For one thread.

    Args:
        store: The store of the run.
        attempt: Look at this attempt only; at all if None.
        clock: The time.
        timing: How often it lists what.
    """

    def __init__(self, store: Store, attempt: int | None = None, clock: Clock = time, timing: Timing = TIMING) -> None:
        self._store, self._clock, self._timing = store, clock, timing
        self._cheap_lookups = store.policy.cheap_lookups
        self._only = attempt
        #: Attempts found so far.
        self.attempts = 0 if attempt is None else attempt + 1
        self._newest: dict[tuple[int, str], _Newest] = {}
        self._base = 0
        #: Workers of the newest attempt: those of others are listed with everything.
        self._team = 0
        self._full_s = self._probe_s = self._list_s = self._news_s = -math.inf
        self._quiet = 0
        self._first = True

    def find(self, *, full: bool = False) -> list[tuple[layout.SegmentName, StoredObject]]:
        """Segments that may be new or longer than before; those that are known come again.

        Args:
            full: List everything.
        """
        now_s = self._clock.monotonic_ns() / 1e9
        full = full or now_s >= self._full_s
        few = self._team <= _FEW
        if not full and self._cheap_lookups and now_s < self._list_s and (self._quiet >= _QUIET_POLLS or not few):
            found = list(self._glance()) if few else []
            self._note(found, now_s)
            return found
        if self._next_attempts(now_s, full):
            full = True
        found = self._list_all(now_s) if full else self._list_newest()
        if self._cheap_lookups:
            took_s = self._clock.monotonic_ns() / 1e9 - now_s
            self._list_s = now_s + (self._timing.folder_listing_s if few else 0)
            if took_s > self._timing.slow_listing_s:
                self._list_s = max(self._list_s, now_s + 5 * took_s)
        self._note(found, now_s)
        return found

    def _glance(self) -> Iterator[tuple[layout.SegmentName, StoredObject]]:
        """The newest segments that have grown, and their successors where a writer puts them now."""
        for newest in self._newest.values():
            name = newest.name
            if name.attempt == self.attempts - 1:
                size = self._store.size(newest.entry.path)
                if size is not None and size != newest.entry.size:
                    yield name, StoredObject(newest.entry.path, size)
                following = name._replace(bucket=max(name.bucket, self._today()), seq=name.seq + 1)
                path = layout.segment(*following)
                size = self._store.size(path)
                if size is not None:
                    yield following, StoredObject(path, size)

    def _today(self) -> int:
        """The bucket of this minute."""
        return self._clock.time_ns() // (layout.BUCKET_SECONDS * 1_000_000_000)

    def _next_attempts(self, now_s: float, full: bool) -> bool:
        """Looks for attempts behind the known ones; whether there are any."""
        if self._only is not None:
            return False
        due = full or self._cheap_lookups
        quiet = now_s - self._news_s >= self._timing.quiet_run_s
        due = due or (quiet and now_s - self._probe_s >= self._timing.attempt_probe_s)
        if not due:
            return False
        self._probe_s, before = now_s, self.attempts
        while manifest.has_attempt(self._store, self.attempts):
            self.attempts += 1
        return self.attempts > before

    def _list_all(self, now_s: float) -> list[tuple[layout.SegmentName, StoredObject]]:
        found: list[tuple[layout.SegmentName, StoredObject]] = []
        requests = 0
        for attempt in range(self._only or 0, self.attempts):
            entries = self._store.list(layout.segments(attempt))
            requests += 1 + len(entries) // PAGE
            found += _named(entries)
        self._full_s = now_s + max(self._timing.full_listing_s, self._timing.listing_request_s * requests)
        return found

    def _list_newest(self) -> list[tuple[layout.SegmentName, StoredObject]]:
        if not self.attempts:
            return []
        newest = self.attempts - 1
        after = layout.segments(newest, self._base - SKEW_BUCKETS)
        return _named(self._store.list(layout.segments(newest), after))

    def _note(self, found: list[tuple[layout.SegmentName, StoredObject]], now_s: float) -> None:
        """Remember the newest segment of each worker, and from which bucket on to list."""
        latest: dict[tuple[int, str], tuple[layout.SegmentName, StoredObject]] = {}
        for name, entry in found:
            known = latest.get((name.attempt, name.worker))
            if known is None or (name.seq, name.bucket) >= (known[0].seq, known[0].bucket):
                latest[name.attempt, name.worker] = (name, entry)
        # At the first look the workers with a bucket of these minutes count as writing.
        oldest = self._today() - SKEW_BUCKETS - 1 if self._first else 0
        news = False
        for key, (name, entry) in latest.items():
            newest = self._newest.get(key)
            if newest is None:
                self._newest[key] = _Newest(name, entry, now_s if name.bucket >= oldest else -math.inf)
            elif name.seq > newest.name.seq or (name.seq == newest.name.seq and entry != newest.entry):
                newest.name, newest.entry, newest.heard_s = name, entry, now_s
            else:
                continue
            news = True
        self._first = False
        if news:
            self._news_s = now_s
        self._quiet = 0 if news else self._quiet + 1
        team = [newest for (attempt, _), newest in self._newest.items() if attempt == self.attempts - 1]
        self._team = len(team)
        writing = [newest.name.bucket for newest in team if newest.heard_s > now_s - self._timing.writer_silence_s]
        if writing:
            self._base = min(writing)
        elif not self._base:
            self._base = max((newest.name.bucket for newest in team), default=0)


def _named(entries: list[StoredObject]) -> list[tuple[layout.SegmentName, StoredObject]]:
    named = ((layout.parse_segment(entry.path), entry) for entry in entries)
    return [(name, entry) for name, entry in named if name is not None]
