"""How often each party touches a store: often where that is a system call, rarely where it is a request.

Everything that is done again and again while a run is written or followed takes its interval from here, so that the
requests of a run per minute can be stated: docs/object-stores.md has the table.
"""

from __future__ import annotations

from dataclasses import dataclass

from watchglass.store.contract import Store

#: Seconds between the flushes of a worker on an object store: of one alone, and of each of :data:`_MANY`.
_FLUSH_S, _FLUSH_OF_MANY_S, _MANY = 5.0, 60.0, 1024


@dataclass(frozen=True)
class PollingIntervals:
    """Seconds between what is done again and again.

    Attributes:
        flush_s: A worker writes what it recorded.
        control_s: A worker looks for a request to stop.
        answer_s: The same, once a stop was requested and until it is committed.
        poll_s: A follower looks for new segments.
        liveness_s: A follower looks at who the workers are and whether they live.
    """

    flush_s: float
    control_s: float
    answer_s: float
    poll_s: float
    liveness_s: float


def intervals_for(store: Store, workers: int = 1) -> PollingIntervals:
    """The interval for a store that ``workers`` workers write to.

    A local folder is looked at many times a second. Workers of an object store write every 5 s, and ever more rarely
    the more of them there are, up to every 60 s at 1,024: so all of them together make some 35 requests per second at
    most, half of them writing and half looking for a stop.
    """
    if store.appends:
        return PollingIntervals(flush_s=0.5, control_s=0.2, answer_s=0.2, poll_s=0.1, liveness_s=1.0)
    share = min(1.0, max(0, workers - 1) / (_MANY - 1))
    flush_s = _FLUSH_S + share * (_FLUSH_OF_MANY_S - _FLUSH_S)
    return PollingIntervals(
        flush_s=flush_s, control_s=flush_s, answer_s=max(1.0, flush_s / 6), poll_s=1.0, liveness_s=15.0
    )
