"""Following all runs below a prefix, and finding out whether a location is a run or a prefix."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Literal, TextIO

from watchglass.config import Clock, EvaluatorConfig, EvaluatorTiming
from watchglass.errors import ForkedError, MissingFileError, StoreError
from watchglass.evaluate.live.evaluator import Evaluator
from watchglass.evaluate.live.following import INTERRUPTED, Pause, take_turns
from watchglass.evaluate.live.judging import Judging
from watchglass.evaluate.live.snapshot import Snapshots
from watchglass.evaluate.many.fleet import Fleet
from watchglass.evaluate.many.member import Audience, Member
from watchglass.run import RunSearch
from watchglass.store import Store, layout, open_store

_TIMING = EvaluatorTiming()


def what_is_at(
    location: str,
    pause: Pause,
    *,
    wait_s: float = 600.0,
    report: Callable[[str], None] = lambda _: None,
    opened: Callable[[str], Store] = open_store,
    timing: EvaluatorTiming = _TIMING,
) -> Literal["run", "prefix", ""]:
    """Whether a location is a run or holds some, waiting until it is one of the two; "" where waiting was ended.

    A location under which nothing is may become either: what comes first decides.

    Args:
        location: A folder, or an address of an object store.
        pause: Waits.
        wait_s: Seconds to wait. An unreachable store is retried as long.
        report: Takes a sentence for the user.
        opened: Opens the location.
        timing: How long to pause between looks.

    Raises:
        MissingFileError: No run has begun there in time.
        StoreError: The store has not answered to the end of that time.
        InvalidValueError: The location holds too many folders.
    """
    give_up_s, search_s = time.monotonic() + wait_s, float("-inf")
    refused: StoreError | None = None
    with closing(opened(location)) as store:
        search, pause_s = RunSearch(store), store.policy.intervals().poll_s
        while True:
            try:
                if store.size(layout.MANIFEST) is not None:
                    return "run"
                begun_s = time.monotonic()
                if begun_s >= search_s:
                    if below := search.look():
                        return "run" if "" in below else "prefix"
                    search_s = begun_s + (time.monotonic() - begun_s) * timing.search_ratio[1]
                    if not store.policy.cheap_lookups:
                        search_s = begun_s + max(timing.longest_wait_s, timing.search_request_s[1] * search.requests)
                if refused is not None:
                    report("store reachable again")
                refused = None
            except ForkedError:
                raise
            except StoreError as error:
                if refused is None:
                    report(f"store unreachable, retrying: {error}")
                refused = error
            if time.monotonic() > give_up_s:
                raise refused or MissingFileError(
                    f"no run at or below {store.location}; check the location, or wait longer with --wait"
                )
            if not pause(pause_s):
                return ""
            pause_s = min(timing.longest_wait_s, 1.5 * pause_s)


def follow_runs(
    config: EvaluatorConfig,
    pause: Pause,
    audience: Audience,
    *,
    wait_s: float = 600.0,
    timeout_s: float | None = None,
    until_idle_s: float | None = None,
    output: TextIO | None = None,
    snapshots: Snapshots | None = None,
    judging: Callable[[Store, EvaluatorConfig, Clock], Judging] = Judging,
    opened: Callable[..., Store] = open_store,
) -> tuple[Fleet, str]:
    """Evaluates all runs below a prefix while they are written, also those that begin meanwhile.

    Args:
        config: With which rules; its ``run`` is the prefix.
        pause: Waits so many seconds, or less; returns False to end following.
        audience: Is notified of what happens to the runs.
        wait_s: Seconds to wait for the first training step of each run.
        timeout_s: Seconds after which following ends, None for no limit.
        until_idle_s: Following ends when no run is followed or waited for and none has appeared for this time; None for
            never.
        output: Where findings are printed, a line each, with the name of the run.
        snapshots: Where snapshots are published for other threads.
        judging: Makes the object that reads a run and evaluates the rules.
        opened: Opens the prefix, see :func:`~watchglass.store.open_store`.

    Returns:
        The fleet, and why following ended, in words; "" where all runs had ended.

    Raises:
        InvalidValueError: There is too much below the prefix.
    """
    left_off = INTERRUPTED
    with closing(opened(config.run, quick=True)) as store:  # one slow request delays all runs
        member = partial(Member, evaluator=partial(Evaluator, judging=judging))
        fleet = Fleet(
            config, store, audience, wait_s=wait_s, output=output, snapshots=snapshots, pause=pause, member=member
        )

        def is_idle() -> bool:
            return until_idle_s is not None and fleet.idle_s >= until_idle_s

        try:
            left_off = take_turns(fleet.turn, is_idle, pause, timeout_s)
        finally:
            fleet.close(left_off, 0.0 if left_off == INTERRUPTED else config.timing.end_s)
        return fleet, left_off
