"""A process of a cluster that follows a part of a live run: asked one thing after another, begun again if it dies."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from watchglass import errors
from watchglass.errors import ClusterError, CompactedError, StoreError
from watchglass.evaluate.engine.standing import PartialEvaluation, RuleFacts
from watchglass.evaluate.follower import Order
from watchglass.evaluate.scaling.cluster import Cluster
from watchglass.evaluate.scaling.followed_part import FollowedPart, Key
from watchglass.records import Observation
from watchglass.store import layout

#: How often in a row a process that dies is begun again without having got any further.
RETRIES = 4
#: Seconds until a process is asked again whose store refused, and for how long before that is told.
_AGAIN_S, _REFUSED_S = 1.0, 60.0


class PartProcess:
    """One process and the workers that it follows. For one thread; nothing in here waits.

    Attributes:
        workers: Names of the workers.
        behind: Steps that were complete since it was last asked.
        asked: What Ray calls the answer that is waited for; None while none is.
    """

    def __init__(self, connected: Cluster, begin: str) -> None:
        """Starts nothing before it is asked for something.

        Args:
            connected: The cluster.
            begin: What a process is told when it begins, see :class:`FollowedPart`.
        """
        self._ray, self._begin = connected.ray, begin
        self.workers: set[str] = set()
        self.behind = 0
        self.asked: Any = None
        self._actor: Any = None
        self._reached: dict[Key, Order] = {}
        self._changes = self._told = self._deaths = 0
        self._said: tuple[int, int, int, bool] | None = None
        self._again_s = float("-inf")
        self._refused_s: float | None = None
        self._facts: dict[int, RuleFacts] = {}
        self._train_steps: dict[Key, int] = {}
        self._newest = -1
        self._ended = False

    @property
    def train_steps(self) -> Mapping[Key, int]:
        """TRAIN steps that it has evaluated, per attempt and worker."""
        return self._train_steps

    def partial(self) -> PartialEvaluation:
        """What it has said so far."""
        return PartialEvaluation("", self._facts, self._train_steps, self._newest)

    def reach(self, key: Key, order: Order) -> None:
        """A step of one of its workers is complete."""
        self._reached[key] = order
        self._changes += 1
        self.behind += 1

    def knows(self, observed: int, over: int, finished: bool) -> bool:
        """Whether it was asked for all there is: so many observations, attempts that are over, the end."""
        return self._said == (self._changes, observed, over, finished)

    def ask(self, observed: Sequence[Observation], over: int, finished: bool) -> None:
        """Asks it to go on, where it has more to do, is not at it, and was not to be left alone for a moment."""
        if self._ended or self.asked is not None or time.monotonic() < self._again_s:
            return
        if self.knows(len(observed), over, finished):
            return
        if self._actor is None:
            # Following is mostly waiting, so processes share cores, and none is waited for; but a node that was given
            # no core, as a head often is, gets none of them.
            options = {"num_cpus": 0.001, "scheduling_strategy": "SPREAD"}
            self._actor = self._ray.remote(FollowedPart).options(**options).remote(self._begin)
            self._told = 0
        request = {
            "reached": [[attempt, worker, list(order)] for (attempt, worker), order in self._reached.items()],
            "observed": [seen.to_json() for seen in observed[self._told :]], "over": over, "finish": finished,
        }  # fmt: skip
        self._told, self.behind = len(observed), 0
        self._said = (self._changes, len(observed), over, finished)
        self.asked = self._actor.advance.remote(json.dumps(request))

    def take(self) -> dict[str, Any] | None:
        """The answer that is there, see :meth:`FollowedPart.advance`; None where it is to be asked again.

        Raises:
            ClusterError: It dies again and again, or cannot evaluate its workers.
            StoreError: Its store has refused for a minute.
            CompactedError: What it was reading has been replaced; all of the run is to be evaluated again.
        """
        reference, self.asked = self.asked, None
        try:
            data: dict[str, Any] = json.loads(self._ray.get(reference))
        except self._ray.exceptions.RayError as error:
            self._died(error)
            return None
        if "error" in data:
            self._refused(*data["error"])
            return None
        self._deaths, self._refused_s = 0, None
        self._newest = data["newest"]
        self._train_steps = {(attempt, worker): count for attempt, worker, count in data["train_steps"]}
        self._facts.update({number: RuleFacts.from_json(facts) for number, facts in data["facts"]})
        return data

    def end(self) -> None:
        """Ends it for good. A second call does nothing."""
        if self._actor is not None:
            self._ray.kill(self._actor)
        self._actor = self.asked = None
        self._ended = True

    def _died(self, error: Exception) -> None:
        """The next one is told everything from the start."""
        self._actor, self._said = None, None
        self._deaths += 1
        if self._deaths > RETRIES:
            workers = ", ".join(sorted(self.workers, key=layout.worker_order))
            reason = " ".join(str(error).split())[:300]
            raise ClusterError(
                f"the process that evaluated {workers} died {self._deaths} times; a rule of yours may end it, or it "
                f"needs more memory than there is: {reason}"
            )

    def _refused(self, name: str, message: str) -> None:
        """What it could not do is asked again where the store refused, else not."""
        kind = getattr(errors, name, ClusterError)
        self._said, self._told = None, 0
        if isinstance(kind, type) and issubclass(kind, StoreError):
            now_s = time.monotonic()
            self._again_s = now_s + _AGAIN_S
            self._refused_s = now_s if self._refused_s is None else self._refused_s
            if now_s - self._refused_s > _REFUSED_S:
                self._refused_s = None
                raise StoreError(message)
            return
        if kind is CompactedError:
            raise CompactedError(message)
        raise ClusterError(message if kind is ClusterError else f"{name}: {message}")
