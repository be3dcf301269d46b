"""An engine whose rules run elsewhere: it is fed like one, and processes of a cluster do what it is told.

Each process follows some workers of the run with statistics and all; here only how far they are is known. Findings
come back a moment later than from an engine in this process; at the end they are the same, in the same order.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, cast

from watchglass.config import EvaluatorConfig, absolute
from watchglass.errors import InvalidValueError
from watchglass.evaluate.engine.engine import Engine
from watchglass.evaluate.engine.partial import merge
from watchglass.evaluate.engine.runner import Stopped
from watchglass.evaluate.evaluation import Evaluation
from watchglass.evaluate.scaling.cluster import Cluster
from watchglass.evaluate.scaling.followed_part import Key
from watchglass.evaluate.scaling.part_process import PartProcess
from watchglass.evaluate.scaling.rule_files import absolute_rules, read_rule_files
from watchglass.records import Finding, Observation, RuleStatus
from watchglass.rules import find_rule
from watchglass.run import StepView

#: Steps that processes may be behind before the driver waits for them, and how long it does each time, in seconds.
_MOST_BEHIND, _WAIT_S = 512, 0.5


def engines_on(connected: Cluster, processes: int) -> Callable[[EvaluatorConfig], Engine]:
    """Makes engines for evaluators whose rules run on a cluster, each in so many processes at most."""
    # What an evaluator asks of an engine, this one answers; see SpreadEngine.
    return lambda config: cast("Engine", SpreadEngine(connected, config, processes))


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
        self._connected, self._most = connected, processes
        for rule in config.rules:
            if getattr(find_rule(rule.name), "compares", ()):
                raise InvalidValueError(
                    f"{rule.name} compares with another run, which follow does with --engine local only"
                )
        self._config = config
        #: Says what rules say of nothing, and knows their names.
        self._unfed = Engine(config.rules, calibration=config.calibration)
        self.stuck: Callable[[Observation], None] | None = None
        located = replace(config, run=absolute(config.run), rules=absolute_rules(config.rules), actions=())
        files = read_rule_files(config.rules)
        self._begin = json.dumps({"config": located.to_json(), "files": files, "folder": os.getcwd()})
        self._processes: list[PartProcess] = []
        self._of: dict[str, PartProcess] = {}
        self._observed: list[Observation] = []
        self._over = 0
        self._finished = False
        self._seen: set[str] = set()
        self._new: list[Finding] = []
        self._changed: dict[str, Finding] = {}
        self._observations: list[Observation] = []
        self._evaluation: Evaluation | None = None

    def feed(self, views: Sequence[StepView]) -> list[Finding]:
        """Says that a step is complete; returns findings that came back since the last call.

        Raises:
            CompactedError: What was being read has been replaced; all of the run is to be evaluated again.
            ClusterError: A process dies again and again, or the cluster is gone.
        """
        for view in views:
            self._process_of(view.worker).reach((view.attempt, view.worker), view.records.end.order)
        self._turn()
        if any(process.behind > _MOST_BEHIND and process.asked is not None for process in self._processes):
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
        self._finished, self._evaluation = True, None
        while not self._settled():
            self._turn()
            self._collect(_WAIT_S)
        self._unfed.finish()
        self._evaluation = None
        return self._take_new()

    def close(self) -> None:
        """Ends the processes."""
        for process in self._processes:
            process.end()

    def __del__(self) -> None:
        if self._connected.ray.is_initialized():
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
        """All that was said, put together anew only when more was: it is asked for several times a turn."""
        if self._evaluation is None:
            running = () if self._finished else ("",)
            parts = [self._unfed.partial(), *(process.partial() for process in self._processes)]
            newest = max(part.newest for part in parts)
            parts = [replace(part, newest=newest, running=running) for part in parts]
            self._evaluation = merge(parts, self._config.rules)
        return self._evaluation

    def _process_of(self, worker: str) -> PartProcess:
        """The process that follows a worker: a new one while there may be more, else the one with fewest."""
        if worker not in self._of:
            if len(self._processes) < self._most:
                self._processes.append(PartProcess(self._connected, self._begin))
            least = min(self._processes, key=lambda process: len(process.workers))
            least.workers.add(worker)
            self._of[worker] = least
        return self._of[worker]

    def _turn(self) -> None:
        """Takes the answers that are there, and asks every process that has more to do and is not at it."""
        self._collect(0.0)
        for process in self._processes:
            process.ask(self._observed, self._over, self._finished)

    def _settled(self) -> bool:
        said = len(self._observed), self._over, self._finished
        return all(process.asked is None and process.knows(*said) for process in self._processes)

    def _collect(self, seconds: float) -> None:
        """Takes answers, waiting so long for the first.

        Raises:
            ClusterError: Nothing came, and the cluster is gone.
        """
        asked = {process.asked: process for process in self._processes if process.asked is not None}
        if not asked:
            if seconds:
                time.sleep(0.0 if self._settled() else seconds / 10)
            return
        ray = self._connected.ray
        ready, _ = ray.wait(list(asked), num_returns=1, timeout=seconds)
        if ready and len(asked) > 1:
            ready, _ = ray.wait(list(asked), num_returns=len(asked), timeout=0)
        if not ready:
            self._connected.check()
        for reference in ready:
            self._take(asked[reference].take())

    def _take(self, data: dict[str, Any] | None) -> None:
        self._evaluation = None
        if data is None:
            return
        self._observations += [Observation.from_json(row) for row in data["observed"]]
        for row in data["new"]:
            finding = Finding.from_json(row)
            if finding.id not in self._seen:  # one that was begun again finds everything again
                self._seen.add(finding.id)
                self._new.append(finding)
        for row in data["changed"]:
            finding = Finding.from_json(row)
            self._changed[finding.id] = finding

    def _take_new(self) -> list[Finding]:
        found, self._new = self._new, []
        return found
