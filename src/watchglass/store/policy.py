"""How the program uses a kind of store: one that appends to files in a folder, or one that only writes whole objects.

A store declares :attr:`~watchglass.store.contract.Store.appends`; all that follows from it is stated here. The requests
that a run causes per minute follow from the intervals: docs/object-stores.md has the table.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

#: Workers from which on the intervals of a policy grow no further.
_MANY = 1024


@dataclass(frozen=True)
class PollingIntervals:
    """Seconds between actions that are repeated while a run is written or followed."""

    flush_s: float  #: A worker writes its records.
    control_s: float  #: A worker looks for a request to stop.
    answer_s: float  #: The same, from a request to stop until its commit.
    poll_s: float  #: A follower looks for new segments.
    liveness_s: float  #: A follower looks which workers there are and whether they live.


@dataclass(frozen=True)
class StorePolicy:
    """How writers, readers and followers use a store."""

    #: A writer appends each flush to its newest segment. Otherwise each flush is a new object, which never changes.
    segments_grow: bool
    #: Objects are mapped into memory, and payloads stay there until they are needed. Otherwise each byte is fetched
    #: once, and several objects at a time.
    reads_in_place: bool
    #: A store may be slow or unreachable for a while. A worker writes through a spool on the local disk and polls for
    #: control messages on a separate thread.
    buffers_writes: bool
    #: A lookup of one object is a system call and may be repeated freely. Otherwise it is a request that takes time and
    #: costs money.
    cheap_lookups: bool
    shared_outages: bool  #: A store that refuses one run refuses all. Otherwise a single folder may be unreadable.
    lookup_s: float  #: Seconds between lookups of a process that waits for an object.
    intervals_of_one: PollingIntervals  #: The intervals of a run with one worker.
    #: Seconds between flushes of each of 1,024 workers; between 1 and 1,024 the interval grows linearly.
    flush_of_many_s: float

    def intervals(self, workers: int = 1) -> PollingIntervals:
        """The intervals of a run with this number of workers."""
        one = self.intervals_of_one
        share = min(1.0, max(0, workers - 1) / (_MANY - 1))
        more_s = share * (self.flush_of_many_s - one.flush_s)
        if not more_s:
            return one
        flush_s = one.flush_s + more_s
        return replace(one, flush_s=flush_s, control_s=flush_s, answer_s=max(one.answer_s, flush_s / 6))


#: A folder of a file system: every operation is a system call.
FOLDER = StorePolicy(
    segments_grow=True,
    reads_in_place=True,
    buffers_writes=False,
    cheap_lookups=True,
    shared_outages=False,
    lookup_s=0.05,
    intervals_of_one=PollingIntervals(flush_s=0.5, control_s=0.2, answer_s=0.2, poll_s=0.1, liveness_s=1.0),
    flush_of_many_s=0.5,
)

#: An object store: every operation is a request. With 1,024 workers all of them together make some 52 requests a second
#: at most, a third of them writes and the others lookups of control messages.
OBJECTS = StorePolicy(
    segments_grow=False,
    reads_in_place=False,
    buffers_writes=True,
    cheap_lookups=False,
    shared_outages=True,
    lookup_s=1.0,
    intervals_of_one=PollingIntervals(flush_s=5.0, control_s=5.0, answer_s=1.0, poll_s=1.0, liveness_s=15.0),
    flush_of_many_s=60.0,
)
