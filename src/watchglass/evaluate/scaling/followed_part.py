"""The part of a live run that one process of a cluster follows: some workers, evaluated as far as it is told.

The driver follows the run too, but reads no statistics: it knows which steps are complete, and says so. A part reads
what it is told of and shows it to its rules; so its findings are those of an engine that was fed the same steps, and a
part that is begun again and told the same says the same.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from dataclasses import replace
from typing import Any

from watchglass.config import EvaluatorConfig
from watchglass.errors import StoreError, WatchglassError
from watchglass.evaluate.engine.engine import Engine
from watchglass.evaluate.follower import FollowedWorker, Order
from watchglass.evaluate.scaling.rule_files import RuleFiles
from watchglass.records import Finding, Observation
from watchglass.run import WorkerTables
from watchglass.store import FrameKind, RunReader, layout, open_store, pace_of, read_manifest

#: Seconds after which a step that the driver has read, and that cannot be read here, is given up.
_PATIENCE_S = 60.0
#: Seconds until it is looked for again, at first; then ever more, up to the pace of the store. Everything is listed at
#: every so many looks that found nothing.
_PAUSE_S, _LIST_ALL = 0.05, 8

Key = tuple[int, str]


class FollowedPart:
    """Some workers of a run, some steps further with every request. For one thread; what is asked and said is text."""

    def __init__(self, request: str) -> None:
        """Does nothing yet: what goes wrong with the run or a rule is an answer, and the process lives on.

        Args:
            request: JSON with ``config``, ``files`` (source of rule files by path) and ``folder``.
        """
        self._request = request
        self._part: _Part | None = None

    def advance(self, request: str) -> str:
        """Evaluates up to where the request says, and tells what is new.

        Args:
            request: JSON with ``observed`` (observations that were not told before), ``reached`` (rows of attempt,
                worker and order of the last complete step), ``over`` (attempts before this one have ended) and
                ``finish`` (whether the training has ended).

        Returns:
            JSON with ``new`` and ``changed`` findings, ``observed``, ``train_steps``, and ``facts`` of rules where
            these changed; or with ``error``.
        """
        try:
            if self._part is None:
                self._part = _Part(json.loads(self._request))
            return self._part.advance(json.loads(request))
        except WatchglassError as error:
            return json.dumps({"error": [type(error).__name__, str(error)]})


class _Part:
    """What a process has read and evaluated."""

    def __init__(self, data: dict[str, Any]) -> None:
        """Opens the run and builds the rules."""
        with suppress(OSError):
            os.chdir(data["folder"])
        config = EvaluatorConfig.from_json(data["config"])
        rules, self._moved = RuleFiles().place(config.rules, data["files"])
        self._config = replace(config, rules=rules)
        self._store = open_store(config.run)
        self._run_id = read_manifest(self._store).run_id
        self._readers: list[RunReader] = []
        self._workers: dict[Key, FollowedWorker] = {}
        self._known: set[str] = set()
        self._done: dict[Key, Order] = {}
        self._finished = False
        self._told: dict[str, str] = {}
        #: Found and not told yet: a request that failed in the middle has told nothing.
        self._new: list[Finding] = []
        self._engine = Engine(self._config.rules, calibration=config.calibration, rule_timeout_s=config.rule_timeout_s)
        # What not even an exception ends would hang the driver too. A process that dies is noticed.
        self._engine.stuck = lambda seen: os._exit(1)

    def advance(self, data: dict[str, Any]) -> str:
        """See :meth:`FollowedPart.advance`."""
        for row in data["observed"]:
            self._engine.observe(Observation.from_json(row))
        self._evaluate({(attempt, worker): tuple(order) for attempt, worker, order in data["reached"]})
        self._new += self._engine.end_attempts(data["over"])
        for (attempt, _), worker in self._workers.items():
            if attempt < data["over"] and not worker.queue:
                worker.let_go()
        if data["finish"] and not self._finished:
            self._finished = True
            self._new += self._engine.finish()
        return self._said()

    def _evaluate(self, reached: dict[Key, Order]) -> None:
        """Feeds the engine all steps up to those given, in the order of attempt, step, worker."""
        unknown = {worker for _, worker in reached} - self._known
        if unknown:
            self._known |= unknown
            reader = RunReader(
                self._store, leave=(FrameKind.STATISTICS,), attempt=self._config.attempt, workers=unknown
            )
            self._readers.append(reader)
        give_up_s, looks = time.monotonic() + _PATIENCE_S, 0
        while behind := [key for key, order in reached.items() if self._done.get(key, (-1, -1, -1)) < order]:
            ready = [
                (key[0], self._workers[key].queue[0].end.order, layout.worker_order(key[1]), key)
                for key in behind
                if key in self._workers and self._workers[key].queue
            ]
            if len(ready) == len(behind):
                attempt, order, _, _ = min(ready)
                for _, _, _, key in sorted(row for row in ready if row[:2] == (attempt, order)):
                    worker = self._workers[key]
                    # All that a rule may look at: a store that refuses does so before the step counts as evaluated.
                    worker.fetch(closely=self._engine.looks_closer)
                    views = worker.next_views(self._run_id)
                    self._done[key] = order
                    self._new += self._engine.feed(views)
                give_up_s, looks = time.monotonic() + _PATIENCE_S, 0
            elif self._read(full=looks % _LIST_ALL == _LIST_ALL - 1):
                give_up_s, looks = time.monotonic() + _PATIENCE_S, 0
            elif time.monotonic() > give_up_s:
                attempt, name = behind[0]
                raise StoreError(f"steps of {name} that were read elsewhere cannot be read here for {_PATIENCE_S:g} s")
            else:
                time.sleep(min(_PAUSE_S * 1.5**looks, max(_PAUSE_S, pace_of(self._store).poll_s)))
                looks += 1

    def _read(self, *, full: bool) -> bool:
        """Reads what is new, looking for it everywhere where ``full``; returns whether anything was."""
        found = False
        for reader in self._readers:
            for attempt, name, frame in reader.poll(full=full):
                found = True
                key = (attempt, name)
                if key not in self._workers:
                    self._workers[key] = FollowedWorker(attempt, name, WorkerTables(self._store))
                self._workers[key].ingest(frame)
        return found

    def _said(self) -> str:
        partial = self._engine.partial(run=self._store.location).to_json()
        facts = []
        for number, rule in partial["rules"]:
            text = json.dumps(rule)
            if self._told.get(number) != text:
                self._told[number] = text
                facts.append([number, rule])
        errors = [
            Observation("rule_error", view.attempt, view.records.end.order, {"rule": rule, "traceback": text})
            for view, rule, text in self._engine.take_errors()
        ]
        answer: dict[str, Any] = {
            "new": [finding.to_json() for finding in self._new],
            "changed": [finding.to_json() for finding in self._engine.take_changed()],
            "observed": [seen.to_json() for seen in (*errors, *self._engine.take_observations())],
            "facts": facts, "train_steps": partial["train_steps"], "newest": partial["newest"],
        }  # fmt: skip
        self._new = []
        said = json.dumps(answer)
        for here, original in self._moved.items():
            said = said.replace(json.dumps(here)[1:-1], json.dumps(original)[1:-1])
        return said
