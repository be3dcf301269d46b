"""Observations of evaluators, from the journal of a run."""

from __future__ import annotations

from contextlib import suppress

from watchglass.errors import DamagedDataError
from watchglass.records import Observation, facts
from watchglass.store import FrameKind, RunReader, Store, decode_observation
from watchglass.tables import Tick

#: Kinds that every evaluator observes, and that rules see with the next step.
SHOWN = frozenset({"worker_lost", "worker_returned"})


def journal_of(store: Store) -> tuple[list[Observation], frozenset[str]]:
    """The observations in a run's journal, and the kinds that its evaluators looked for; none without an evaluator.

    Raises:
        StoreError: The store refused.
    """
    frames = RunReader(store).journal()
    seen = []
    for frame in frames:
        if frame.kind == FrameKind.OBSERVATION:
            with suppress(DamagedDataError):
                seen.append(decode_observation(bytes(frame.payload)))
    more = {"tick" for each in seen if each.kind == "ticks_recorded"}
    return seen, SHOWN | more if frames else frozenset()


def tick_of(seen: Observation, run_id: str) -> Tick:
    """The tick of an observation, which any program may have written."""
    seconds, living = seen.data.get("seconds"), seen.data.get("living")
    rows = seconds.items() if isinstance(seconds, dict) else ()
    names = living if isinstance(living, list) else ()
    stacks = seen.data.get("stacks")
    read = (
        {str(worker): facts.Stacks.from_data(data) for worker, data in stacks.items()}
        if isinstance(stacks, dict)
        else {}
    )
    silent = {str(worker): float(s) for worker, s in rows if type(s) in (int, float)}
    return Tick(
        run_id=run_id, attempt=seen.attempt, worker=seen.group, seconds=silent, living=frozenset(map(str, names)),
        stacks={worker: each for worker, each in read.items() if each is not None},
    )  # fmt: skip
