"""An engine whose rules run elsewhere: it is fed like one, and processes of a cluster do what it is told.

Each process follows some workers of the run with statistics and all; here only how far they are is known. Findings
come back a moment later than from an engine in this process; at the end they are the same, in the same order.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from watchglass import errors
from watchglass.config import EvaluatorConfig, absolute
from watchglass.errors import ClusterError, CompactedError, InvalidValueError, StoreError
from watchglass.evaluate.engine.engine import Engine
from watchglass.evaluate.engine.partial import merge
from watchglass.evaluate.engine.runner import Stopped
from watchglass.evaluate.engine.standing import PartialEvaluation, RuleFacts
from watchglass.evaluate.evaluation import Evaluation
from watchglass.evaluate.follower import Order
from watchglass.evaluate.scaling.cluster import Cluster
from watchglass.evaluate.scaling.followed_part import FollowedPart, Key
from watchglass.evaluate.scaling.rule_files import absolute_rules, read_rule_files
from watchglass.records import Finding, Observation, RuleStatus
from watchglass.rules import find_rule
from watchglass.run import StepView
from watchglass.store import layout

#: How often in a row a process that dies is begun again without having got any further.
RETRIES = 4
#: Steps that processes may be behind before the driver waits for them, and how long it does each time, in seconds.
_MOST_BEHIND, _WAIT_S = 512, 0.5
#: Seconds until a process is asked again whose store refused, and how often before that is told.
_AGAIN_S, _MOST_REFUSALS = 1.0, 60


def engines_on(connected: Cluster, processes: int) -> Callable[[EvaluatorConfig], Engine]:
    """Makes engines for evaluators whose rules run on a cluster, each in so many processes at most."""
    # What an evaluator asks of an engine, this one answers; see SpreadEngine.
    return lambda config: cast("Engine", SpreadEngine(connected, config, processes))


@dataclass
class _Process:
    """A process of the cluster and the workers that it follows.

    Attributes:
        actor: What Ray calls it; None while there is none.
        asked: The answer that is waited for; None while nothing is.
        told: Observations that it was told.
        said: How far each worker was at the last request, and whether more was said than that.
        deaths: How often it has died since it last answered.
        refusals: How often its store has refused since it last did not.
    """

    workers: set[str] = field(default_factory=set)
    actor: Any = None
    asked: Any = None
    told: int = 0
    said: tuple[Any, ...] = ()
    deaths: int = 0
    refusals: int = 0
    again_s: float = 0.0
    fed: int = 0
    facts: dict[int, RuleFacts] = field(default_factory=dict)
    train_steps: dict[Key, int] = field(default_factory=dict)
    newest: int = -1


class SpreadEngine:
    """What an evaluator needs of an :class:`Engine`, over processes of a Ray cluster. For one thread."""

    #: Nobody looks at statistics in this process.
    looks_closer = False
    elsewhere = True

    def __init__(self, connected: Cluster, config: EvaluatorConfig, processes: int) -> None:
        """Starts no process before a worker is fed.

        Args:
            connected: The cluster.
            config: The run, the rules, thresholds and limits.
            processes: Most processes that follow the run.

        Raises:
            InvalidValueError: A rule compares with another run: that has to be one moment of it for all workers.
            WatchglassError: A rule is not right.
        """
        for rule in config.rules:
            if getattr(find_rule(rule.name), "compares", ()):
                raise InvalidValueError(
                    f"{rule.name} compares with another run, which follow does with --engine local only"
                )
        self._ray, self._most = connected.ray, processes
        self._config = config
        #: Says what rules say of nothing, and knows their names.
        self._unfed = Engine(config.rules, calibration=config.calibration)
        self.stuck: Callable[[Observation], None] | None = None
        located = replace(config, run=absolute(config.run), rules=absolute_rules(config.rules), actions=())
        files = read_rule_files(config.rules)
        self._begin = json.dumps({"config": located.to_json(), "files": files, "folder": os.getcwd()})
        self._processes: list[_Process] = []
        self._of: dict[str, _Process] = {}
        self._reached: dict[Key, Order] = {}
        self._observed: list[Observation] = []
        self._over = 0
        self._finished = False
        self._seen: set[str] = set()
        self._new: list[Finding] = []
        self._changed: dict[str, Finding] = {}
        self._observations: list[Observation] = []

    def feed(self, views: Sequence[StepView]) -> list[Finding]:
        """Says that a step is complete; returns findings that came back since the last call.

        Raises:
            CompactedError: What was being read has been replaced; all of the run is to be evaluated again.
            ClusterError: A process dies again and again, or the cluster is gone.
        """
        for view in views:
            self._reached[view.attempt, view.worker] = view.records.end.order
            self._process_of(view.worker).fed += 1
        self._turn()
        if any(process.fed > _MOST_BEHIND and process.asked is not None for process in self._processes):
            self._collect(_WAIT_S)
            self._turn()
        return self._take_new()

    def observe(self, seen: Observation) -> None:
        """See :meth:`Engine.observe`."""
        self._observed.append(seen)

    def end_attempts(self, before: int) -> list[Finding]:
        """See :meth:`Engine.end_attempts`."""
        self._over = max(self._over, before)
        self._turn()
        return self._take_new()

    def finish(self, views: Iterable[StepView] = ()) -> list[Finding]:
        """See :meth:`Engine.finish`; waits until every process has evaluated everything."""
        self._finished = True
        while not self._settled():
            self._turn()
            self._collect(_WAIT_S)
        self._unfed.finish()
        return self._take_new()

    def close(self) -> None:
        """Ends the processes."""
        for process in self._processes:
            if process.actor is not None:
                self._ray.kill(process.actor)
            process.actor = process.asked = None

    def __del__(self) -> None:
        if self._ray.is_initialized():
            self.close()

    @property
    def train_steps(self) -> dict[Key, int]:
        """See :attr:`Engine.train_steps`."""
        return {key: count for process in self._processes for key, count in process.train_steps.items()}

    @property
    def findings(self) -> list[Finding]:
        """All findings that have come back, in the order of attempt, step, rule, worker."""
        return list(self._merged().findings)

    def statuses(self) -> tuple[RuleStatus, ...]:
        """Where each rule stands, as far as processes have said."""
        return self._merged().statuses

    def take_changed(self) -> list[Finding]:
        """Findings that were seen again since the last call."""
        self._turn()
        changed, self._changed = self._changed, {}
        return list(changed.values())

    def take_errors(self) -> list[Stopped]:
        """Nothing: what rules raised is among the observations."""
        return []

    def take_observations(self) -> list[Observation]:
        """What is to be written down: rules that raised or took too long."""
        found, self._observations = self._observations, []
        return found

    def _merged(self) -> Evaluation:
        running = () if self._finished else ("",)
        parts = [self._unfed.partial()]
        parts += [
            PartialEvaluation("", process.facts, process.train_steps, process.newest) for process in self._processes
        ]
        newest = max(part.newest for part in parts)
        return merge([replace(part, newest=newest, running=running) for part in parts], self._config.rules)

    def _process_of(self, worker: str) -> _Process:
        """The process that follows a worker: a new one while there may be more, else the one with fewest."""
        if worker not in self._of:
            if len(self._processes) < self._most:
                self._processes.append(_Process())
            least = min(self._processes, key=lambda process: len(process.workers))
            least.workers.add(worker)
            self._of[worker] = least
        return self._of[worker]

    def _turn(self) -> None:
        """Takes the answers that are there, and asks every process that has more to do and is not at it."""
        self._collect(0.0)
        for process in self._processes:
            if process.asked is None and time.monotonic() >= process.again_s and process.said != self._wanted(process):
                self._ask(process)

    def _wanted(self, process: _Process) -> tuple[Any, ...]:
        """All that a process is to know by now."""
        reached = {key: order for key, order in self._reached.items() if key[1] in process.workers}
        return reached, len(self._observed), self._over, self._finished

    def _settled(self) -> bool:
        return all(process.asked is None and process.said == self._wanted(process) for process in self._processes)

    def _ask(self, process: _Process) -> None:
        if process.actor is None:
            # Following is mostly waiting, so processes share cores, and none is waited for; but a node that was given
            # no core, as a head often is, gets none of them.
            options = {"num_cpus": 0.001, "scheduling_strategy": "SPREAD"}
            process.actor = self._ray.remote(FollowedPart).options(**options).remote(self._begin)
            process.told = 0
        wanted = self._wanted(process)
        request = {
            "reached": [[attempt, worker, list(order)] for (attempt, worker), order in wanted[0].items()],
            "observed": [seen.to_json() for seen in self._observed[process.told :]],
            "over": self._over, "finish": self._finished,
        }  # fmt: skip
        process.told = len(self._observed)
        process.said, process.fed = wanted, 0
        process.asked = process.actor.advance.remote(json.dumps(request))

    def _collect(self, seconds: float) -> None:
        """Takes answers, waiting so long for the first."""
        asked = {process.asked: process for process in self._processes if process.asked is not None}
        if not asked:
            if seconds:
                time.sleep(0.0 if self._settled() else seconds / 10)
            return
        ready, _ = self._ray.wait(list(asked), num_returns=1, timeout=seconds)
        if ready and len(asked) > 1:
            ready, _ = self._ray.wait(list(asked), num_returns=len(asked), timeout=0)
        for reference in ready:
            self._take(asked[reference])

    def _take(self, process: _Process) -> None:
        reference, process.asked = process.asked, None
        try:
            data = json.loads(self._ray.get(reference))
        except self._ray.exceptions.RayError as error:
            self._died(process, error)
            return
        if "error" in data:
            self._refused(process, *data["error"])
            return
        process.deaths = process.refusals = 0
        process.newest = data["newest"]
        process.train_steps = {(attempt, worker): count for attempt, worker, count in data["train_steps"]}
        process.facts.update({number: RuleFacts.from_json(facts) for number, facts in data["facts"]})
        self._observations += [Observation.from_json(row) for row in data["observed"]]
        for row in data["new"]:
            finding = Finding.from_json(row)
            if finding.id not in self._seen:  # one that was begun again finds everything again
                self._seen.add(finding.id)
                self._new.append(finding)
        for row in data["changed"]:
            finding = Finding.from_json(row)
            self._changed[finding.id] = finding

    def _died(self, process: _Process, error: Exception) -> None:
        """Begins again with a new process, which is told everything from the start."""
        process.actor, process.said, process.told = None, (), 0
        process.deaths += 1
        if process.deaths > RETRIES:
            workers = ", ".join(sorted(process.workers, key=layout.worker_order))
            reason = " ".join(str(error).split())[:300]
            raise ClusterError(
                f"the process that evaluated {workers} died {process.deaths} times; a rule of yours may end it, or it "
                f"needs more memory than there is: {reason}"
            )

    def _refused(self, process: _Process, name: str, message: str) -> None:
        """What a process could not do: asked again where the store refused, else not."""
        kind = getattr(errors, name, ClusterError)
        process.said, process.told = (), 0
        if isinstance(kind, type) and issubclass(kind, StoreError):
            process.refusals += 1
            process.again_s = time.monotonic() + _AGAIN_S
            if process.refusals > _MOST_REFUSALS:
                process.refusals = 0
                raise StoreError(message)
            return
        if kind is CompactedError:
            raise CompactedError(message)
        raise ClusterError(f"{name}: {message}")

    def _take_new(self) -> list[Finding]:
        found, self._new = self._new, []
        return found
