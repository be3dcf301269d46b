"""A live run that a process of a cluster reads and judges, one request in text after another.

The evaluator that sends the requests holds the journal with its lease, knows which workers live, and runs actions. The
process has an ordinary :class:`Judging`; its reports are collected and sent with each answer.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Sequence
from typing import Any, cast

from watchglass.errors import WatchglassError
from watchglass.evaluate.live.judging import Judging
from watchglass.evaluate.live.reporting import Reporting
from watchglass.evaluate.live.worker_liveness import WorkerLiveness
from watchglass.evaluate.scaling.tasks import apply_setup, error_to_json
from watchglass.records import Finding, Observation
from watchglass.store import Store, open_store

#: The fields of a worker that are sent, as :class:`FollowedWorker` names them.
WORKER = ("attempt", "worker", "reached", "alone", "left", "lost", "events", "losses", "ended", "lost_at")
#: Bytes that are read before an answer, so that no run keeps another one waiting.
_MOST_BYTES = 16 << 20


class FollowedRun:
    """A run, read and judged as far as requested. For one thread; requests and answers are text."""

    def __init__(self, setup: str, opened: Callable[[str], Store] = open_store) -> None:
        """Reads nothing yet: an error of the run or a rule is an answer, and must not end the process.

        Args:
            setup: JSON of :func:`setup_of`.
            opened: Opens the store of the run.
        """
        self._setup, self._opened = json.loads(setup), opened
        self._reports = _Reports()
        self._judging: Judging | None = None

    def answer(self, request: str) -> str:
        """Carries out a request, and reports the result.

        Args:
            request: JSON with ``what`` (``"read"``, ``"drained"``, ``"drain"`` or ``"end"``, a method of
                :class:`Judging`), ``active`` (whether more may come) and ``observed`` (new observations).

        Returns:
            JSON with ``is_so`` (the result of the method), ``steps`` and ``reports`` since the last answer, and the
            present state; with ``error`` where the request failed.
        """
        is_so, error = False, None
        try:
            if self._judging is None:
                self._judging = self._begun()
            is_so = _done(self._judging, **json.loads(request))
        except WatchglassError as raised:
            error = error_to_json(raised)
        if self._judging is None:
            return json.dumps({"error": error})
        return self._renamed(json.dumps({"is_so": is_so, "error": error, **self._state(self._judging)}))

    def _begun(self) -> Judging:
        config, self._renamed = apply_setup(self._setup)
        judging = Judging(self._opened(config.run), config)
        # A rule that not even an exception ends would hang the evaluator too. The evaluator notices a dead process.
        judging.engine.stuck = lambda seen: os._exit(1)
        judging.join(cast(Reporting, self._reports), cast(WorkerLiveness, self._reports), lambda: None)
        return judging

    def _state(self, judging: Judging) -> dict[str, Any]:
        changed = [finding.to_json() for finding in judging.take_changed()]
        steps, reports = self._reports.take()  # also what was noted for these
        workers = judging.workers.values()
        groups = {f"{worker.attempt} {worker.group}": worker.moments for worker in workers}
        return {
            "steps": steps, "reports": reports,
            "workers": [[getattr(worker, name) for name in WORKER] for worker in workers],
            "groups": {group: [at.shown, at.tick and at.tick.to_json()] for group, at in groups.items()},
            "frames": judging.follower.frames,
            "order": [finding.id for finding in judging.findings] if reports else None,
            "changed": changed,
            "statuses": [status.to_json() for status in judging.statuses()],
            "train_steps": [[*key, steps] for key, steps in judging.train_steps.items()],
            "scalars": judging.scalars(), "problems": judging.problems,
        }  # fmt: skip


def _done(judging: Judging, what: str, active: bool, observed: Sequence[dict[str, Any]]) -> bool:
    for seen in map(Observation.from_json, observed):
        judging.engine.heed(seen)
        judging.follower.observe(seen)
    arguments: dict[str, list[Any]] = {"read": [_MOST_BYTES], "drained": []}
    return bool(getattr(judging, what)(*arguments.get(what, [lambda: active])))


class _Reports:
    """Takes the place of the evaluator's reporting, journal and liveness of workers, which the calling process has."""

    def __init__(self) -> None:
        self.journal = self
        self._steps: list[Any] = []
        self._reports: list[Any] = []

    def take(self) -> tuple[list[Any], list[Any]]:
        """Steps and reports since the last call, in their order."""
        taken = self._steps, self._reports
        self._steps, self._reports = [], []
        return taken

    def evaluated(self, *step: Any) -> None:
        """See :meth:`WorkerLiveness.evaluated`."""
        self._steps.append(step)

    def write(self, seen: Sequence[Observation]) -> None:
        """See :meth:`BufferedJournal.write`."""
        if seen:
            self._reports.append(["observed", [each.to_json() for each in seen]])

    def findings(self, findings: Sequence[Finding], workers: Collection[object]) -> None:
        """See :meth:`Reporting.findings`."""
        if findings:
            self._reports.append(["found", [each.to_json() for each in findings]])
