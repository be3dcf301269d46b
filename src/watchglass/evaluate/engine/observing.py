"""What the evaluator observed of a training, on its way to the rules: at the same step live and in replay."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress

from watchglass.errors import DamagedDataError
from watchglass.evaluate.engine.standing import Order, SeatKey
from watchglass.records import Observation
from watchglass.store import FrameKind, RunReader, Store, decode_observation

#: Kinds that rules are shown: what becomes of workers. Others are about rules and actions themselves.
SHOWN = frozenset({"worker_lost", "worker_returned"})


class Observed:
    """Observations in the order of the steps that they came after. For one thread."""

    def __init__(self) -> None:
        self._by_attempt: dict[int, list[Observation]] = {}
        self._known: set[str] = set()
        self._shown: dict[SeatKey, int] = {}

    def add(self, seen: Observation) -> bool:
        """Takes an observation in; returns whether it was new. One that says the same again counts once."""
        key = json.dumps([seen.kind, seen.attempt, seen.data], sort_keys=True, default=str)
        if key in self._known:
            return False
        self._known.add(key)
        if seen.kind in SHOWN:
            self._by_attempt.setdefault(seen.attempt, []).append(seen)
        return True

    def before(self, attempt: int, worker: str, model: int, order: Order | None) -> tuple[Observation, ...]:
        """What was observed before the step with this order and was not given for this model of this worker yet.

        Args:
            attempt: The attempt.
            worker: The worker.
            model: The model.
            order: None for the end of the training: all that is left.
        """
        rows = self._by_attempt.get(attempt)
        if not rows:
            return ()
        given = self._shown.get((attempt, worker, model), 0)
        end = given
        # In the order in which they were written down: one that waits keeps those behind it waiting.
        while end < len(rows) and _is_before(rows[end], order):
            end += 1
        self._shown[attempt, worker, model] = end
        return tuple(rows[given:end])


def journal_of(store: Store) -> tuple[list[Observation], bool]:
    """The observations of a run's journal, and whether any evaluator has written one.

    Raises:
        StoreError: The store refused.
    """
    frames = RunReader(store).journal()
    return list(_observations(frame.payload for frame in frames if frame.kind == FrameKind.OBSERVATION)), bool(frames)


def _observations(payloads: Iterable[bytes | memoryview]) -> Iterable[Observation]:
    for payload in payloads:
        with suppress(DamagedDataError):
            yield decode_observation(bytes(payload))


def _is_before(seen: Observation, order: Order | None) -> bool:
    return order is None or seen.after is None or seen.after < order
