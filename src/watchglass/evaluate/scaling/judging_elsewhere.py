"""Reads and judges a live run in a process of a cluster, for an evaluator that writes the journal and acts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, cast

from watchglass.config import Clock, EvaluatorConfig, absolute
from watchglass.errors import ClusterError, CompactedError, StoreError
from watchglass.evaluate.engine.engine import Engine
from watchglass.evaluate.follower import PLACED, FollowedWorker, Key, Moments
from watchglass.evaluate.live.judging import Judging
from watchglass.evaluate.live.reporting import Reporting
from watchglass.evaluate.live.worker_liveness import WorkerLiveness
from watchglass.evaluate.scaling.cluster import Cluster, in_short
from watchglass.evaluate.scaling.followed_run import WORKER, FollowedRun
from watchglass.evaluate.scaling.rule_files import absolute_rules, read_rule_files
from watchglass.evaluate.scaling.tasks import error_of, setup_of
from watchglass.records import Finding, Observation, RuleStatus
from watchglass.store import Store, read_manifest
from watchglass.tables import WorkerTables


def judging_on(connected: Cluster) -> Callable[[Store, EvaluatorConfig, Clock], Judging]:
    """The factory of an evaluator's :class:`JudgingElsewhere` on a cluster."""
    # It has every member of Judging that an evaluator uses.
    return lambda store, config, _: cast(Judging, JudgingElsewhere(connected, store, config))


class JudgingElsewhere:
    """The members of a :class:`Judging` that an evaluator uses, done by a process of a cluster. For one thread.

    :meth:`read` never waits: it takes an answer that has arrived, or sends a request. No request is under way while an
    answer is reported, nor after :meth:`drained`. So an observation of a worker then follows the same step as in a
    replay. A process that died is replaced, and the run evaluated from its first step, as after a compaction.
    """

    def __init__(self, connected: Cluster, store: Store, config: EvaluatorConfig) -> None:
        """Starts no process yet.

        Args:
            connected: The cluster.
            store: The run's store.
            config: What to evaluate. Its actions and files of causes are not sent to the cluster.

        Raises:
            WatchglassError: A rule or a parameter is invalid, or there is no such run.
        """
        self._connected, self._store = connected, store
        self.run_id = read_manifest(store).run_id
        unfed = Engine(config.rules, calibration=config.calibration)
        #: See :attr:`Engine.ticks`.
        self.ticks = unfed.ticks
        self._unfed, self._placed = unfed.statuses(), PLACED if not unfed.whole else ()
        unfed.close()
        located = replace(config, run=absolute(config.run), rules=absolute_rules(config.rules))
        self._setup = json.dumps(setup_of(located, read_rule_files(config.rules)))
        self._actor: Any = None
        self._asked: Any = None
        self._deaths = self._furthest = 0
        self._new = False
        self._forget()

    def join(self, reporting: Reporting, liveness: WorkerLiveness, stay: Callable[[], None]) -> None:
        """See :meth:`Judging.join`."""
        self._reporting, self._liveness, self._stay = reporting, liveness, stay

    @property
    def waits(self) -> bool:
        """Whether an answer is waited for."""
        return self._asked is not None

    @property
    def findings(self) -> Sequence[Finding]:
        """See :attr:`Engine.findings`."""
        return list(self._findings.values())

    def statuses(self) -> tuple[RuleStatus, ...]:
        """See :meth:`Engine.statuses`."""
        return self._statuses

    def scalars(self) -> Mapping[str, float]:
        """See :meth:`Judging.scalars`."""
        return self._scalars

    def take_changed(self) -> Sequence[Finding]:
        """See :meth:`Engine.take_changed`."""
        changed = list(self._changed.values())
        self._changed.clear()
        return changed

    def remember(self) -> None:
        """See :meth:`Judging.remember`."""
        known = [each for each in self._reporting.journal.known if isinstance(each, Observation)]
        self._observed += [each for each in known if each.kind not in self._placed]

    def observed(self, seen: Sequence[Observation]) -> None:
        """See :meth:`Judging.observed`."""
        self._reporting.journal.write(seen)
        self._observed += seen
        for each in seen:
            worker = self.workers.get((each.attempt, str(each.data.get("worker"))))
            if worker is not None:
                worker.take(each)

    def begin_again(self) -> None:
        """See :meth:`Judging.begin_again`."""
        self.close()
        self._forget()
        self.remember()
        self._reporting.caught_up = False

    def read(self, max_bytes: int) -> bool:
        """See :meth:`Judging.read`; how much is read at once does not depend on ``max_bytes``.

        Raises:
            ClusterError: The process dies again and again.
            StoreError, CompactedError: See :meth:`Judging.read`, or the process died.
        """
        if self._asked is None:
            if not self._new:  # else observations for the news of drained would come while more is read
                self._ask("read")
        elif self._connected.ray.wait([self._asked], timeout=0)[0]:
            self._new |= self._take()
        new = self._new
        self._new = False
        return new

    def drained(self) -> bool:
        """See :meth:`Judging.drained`; waits for the answer."""
        if self._asked is not None:
            self._new |= self._awaited()
        nothing = self._done("drained")
        self._new |= not nothing
        return nothing and not self._new

    def drain(self, is_active: Callable[[], bool]) -> bool:
        """See :meth:`Judging.drain`; waits for the answer."""
        return self._done("drain", is_active)

    def end(self, is_active: Callable[[], bool]) -> bool:
        """See :meth:`Judging.end`; waits for the answer."""
        return self._done("end", is_active)

    def close(self) -> None:
        """Ends the process. A second call does nothing."""
        if self._actor is not None:
            with suppress(Exception):  # the cluster may be gone; the lease must be given back in any case
                self._connected.ray.kill(self._actor)
        self._actor = self._asked = None

    def _forget(self) -> None:
        self.workers: dict[Key, FollowedWorker] = {}
        self.train_steps: dict[Key, int] = {}
        self.problems: Sequence[str] = ()
        self._statuses = self._unfed
        self._scalars: Mapping[str, float] = {}
        self._findings: dict[str, Finding] = {}
        self._changed: dict[str, Finding] = {}
        self._observed: list[Observation] = []
        self._sent = 0
        self._new = False

    def _done(self, what: str, is_active: Callable[[], bool] = lambda: True) -> bool:
        if self._asked is not None:
            self._awaited()
        self._ask(what, is_active())
        return self._awaited()

    def _ask(self, what: str, active: bool = True) -> None:
        if self._actor is None:
            # Following is mostly waiting, so processes share cores and wait for none. A node without cores, as a head
            # often is, gets no process.
            options = {"num_cpus": 0.001, "scheduling_strategy": "SPREAD"}
            self._actor = self._connected.ray.remote(FollowedRun).options(**options).remote(self._setup)
        request = {"what": what, "active": active, "observed": [seen.to_json() for seen in self._observed]}
        self._sent = len(self._observed)
        self._asked = self._actor.answer.remote(json.dumps(request))

    def _awaited(self) -> bool:
        while not self._connected.ray.wait([self._asked], timeout=self._connected.patience.wake_s)[0]:
            self._connected.check()
            self._stay()
        return self._take()

    def _take(self) -> bool:
        """Reports the content of the answer as if this process had judged it; returns the result of the method."""
        ray, asked, self._asked = self._connected.ray, self._asked, None
        try:
            data = json.loads(ray.get(asked))
        except ray.exceptions.RayError as error:
            raise self._died(error) from None
        if "frames" in data:
            del self._observed[: self._sent]
            self._update(data)
            self._report(data["reports"])
            self._stay()
        if data["error"] is None:
            return bool(data["is_so"])
        refused = error_of(*data["error"])
        if isinstance(refused, (StoreError, CompactedError, ClusterError)):
            raise refused
        raise ClusterError(f"a process of the cluster cannot read {self._store.location}: {refused}")

    def _update(self, data: Mapping[str, Any]) -> None:
        groups = {
            group: Moments(shown, tick=None if tick is None else Observation.from_json(tick))
            for group, (shown, tick) in data["groups"].items()
        }
        for row in data["workers"]:
            key = row[0], row[1]
            if key not in self.workers:
                self.workers[key] = FollowedWorker(*key, self._store, WorkerTables(self._store))
            worker = self.workers[key]
            for name, value in zip(WORKER, row, strict=True):
                setattr(worker, name, tuple(value) if isinstance(value, list) else value)
            worker.moments = groups[f"{worker.attempt} {worker.group}"]
        for step in data["steps"]:
            self._liveness.evaluated(*step)
        found = [row for what, rows in data["reports"] if what == "found" for row in rows]
        changed = {row["id"]: Finding.from_json(row) for row in data["changed"]}
        self._changed |= changed
        self._findings |= {**{row["id"]: Finding.from_json(row) for row in found}, **changed}
        if data["order"] is not None:
            self._findings = {each: self._findings[each] for each in data["order"]}
        self._statuses = tuple(map(RuleStatus.from_json, data["statuses"]))
        self.train_steps = {(attempt, name): steps for attempt, name, steps in data["train_steps"]}
        self._scalars, self.problems = data["scalars"], data["problems"]
        if data["frames"] > self._furthest:
            self._furthest, self._deaths = data["frames"], 0

    def _report(self, reports: Sequence[Sequence[Any]]) -> None:
        for what, rows in reports:
            if what == "found":
                self._reporting.findings([Finding.from_json(row) for row in rows], self.workers.values())
            else:
                self._reporting.journal.write([Observation.from_json(row) for row in rows])

    def _died(self, error: Exception) -> Exception:
        """The error that has a new process evaluate the whole run again, or that ends this after too many deaths."""
        place = self._store.location
        self._deaths += 1
        node_died = isinstance(error, self._connected.ray.exceptions.LocalRayletDiedError)
        if node_died or self._deaths > self._connected.patience.retries:
            return self._connected.died(place, self._deaths, error)
        return CompactedError(f"the process that evaluated {place} died: {in_short(error)}")
