"""Memory of a run that grows to its limit soon, whether or not a rule looked at it. Pure functions."""

from __future__ import annotations

import numpy as np

from watchglass.errors import UnknownNameError
from watchglass.records import Mode
from watchglass.rules import MEMORY_COURSE_S, growth_at_the_end
from watchglass.run import Run

#: Time until the limit that is stated without a rule.
_SOON_S = 3600.0
#: Growth for so long is more than the start of a run, which loads its data and fills its caches. Shorter growth is
#: stated if a run of twice the length would reach the limit.
_LEAST_S = 60.0


def growing_memory(run: Run) -> dict[str, float] | None:
    """How memory grows at the end of a run, in the windows of the rule MemoryLeak; None if no limit is near.

    Returns:
        ``bytes`` of growth in ``seconds``, the ``limit_bytes`` and the seconds ``left_s`` to it at this rate.
    """
    worker = run.worker()
    steps = worker.columns[(worker.columns["mode"] == Mode.TRAIN) & (worker.columns["attempt"] == run.attempt)]
    if not len(steps):
        return None
    first_ns, last_ns = worker.ends(steps[[0, -1]])["end_ns"].tolist()
    start_ns = max(first_ns, int(last_ns - MEMORY_COURSE_S * 1e9))
    # A process that ends frees its memory.
    soonest = [found for stream in run.streams if (found := _growing(run, stream, start_ns, last_ns)) is not None]
    return min(soonest, key=lambda each: each["left_s"], default=None)


def _growing(run: Run, stream: str, start_ns: int, stop_ns: int) -> dict[str, float] | None:
    try:
        memory, limits = (run.samples(name, stream=stream, start=start_ns, stop=stop_ns) for name in _METRICS)
    except UnknownNameError:  # the machine has no such samples
        return None
    known = np.isfinite(memory.values)
    seconds, values = memory.time_ns[known] / 1e9, memory.values[known]
    if not len(seconds) or np.any(np.diff(seconds) < 0):  # of attempts with different clocks
        return None
    found = growth_at_the_end(seconds, values)
    if found is None:
        return None
    limit = float(limits.values[-1])
    left_s = (limit - found.reached) * found.seconds / found.bytes
    soon_s = _SOON_S if found.seconds >= _LEAST_S else (stop_ns - start_ns) / 1e9
    # What the run has survived before leads to no limit.
    if not 0 < left_s <= soon_s or found.highest_before > found.reached:
        return None
    return {"bytes": found.bytes, "seconds": found.seconds, "limit_bytes": limit, "left_s": left_s}


_METRICS = ("processes.memory", "memory.limit")
