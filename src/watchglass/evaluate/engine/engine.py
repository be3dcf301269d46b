"""The engine: shows moments to rules, folds their findings, and keeps the status of each rule."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Sequence
from typing import Any

from watchglass.config import EvaluatorTiming, RuleSpec
from watchglass.errors import CompactedError, InvalidValueError, StoreError
from watchglass.evaluate.engine.examined import count_examined
from watchglass.evaluate.engine.folding import Folded
from watchglass.evaluate.engine.reference_run import ReferenceRun
from watchglass.evaluate.engine.rule_status import Examined, ExaminedKey, PartialEvaluation
from watchglass.evaluate.engine.runner import RuleRunner
from watchglass.evaluate.engine.watchdog import Watchdog, wakeable
from watchglass.records import Finding, Mode, Observation, RuleStatus
from watchglass.rules import Windows
from watchglass.store import layout
from watchglass.tables import JointStep, Moment, Readable, StepView, Written


class Engine:
    """Shows the moments of a run to rules. For one thread.

    One instance of a rule sees one model of one attempt, on one worker or, where it looks at several at once, on all
    that train together. Its findings depend only on the moments that it sees, in their order, so live and replayed
    findings are equal. An instance that raises, or takes too long, stops, with its traceback as the
    status of the rule; the others go on.
    """

    def __init__(
        self,
        rules: Sequence[RuleSpec],
        *,
        calibration: str = "default",
        rule_timeout_s: float = 30.0,
        observed: Collection[str] | None = None,
        run_id: str = "",
        variants: bool = False,
        call_checks_s: tuple[float, float] = EvaluatorTiming.call_checks_s,
    ) -> None:
        """Builds every rule once, so that a wrong name or parameter shows before any step.

        Args:
            rules: The rules, in the order in which they are evaluated.
            calibration: Which set of thresholds.
            rule_timeout_s: How long a rule may take over one step.
            observed: Kinds of what evaluators of this run observe, or have: a rule about others is not applicable. None
                for all.
            run_id: Identifier of the run, for findings ahead of its first step.
            variants: Whether one rule may be there several times, with different parameters: for back-tests.
            call_checks_s: See :attr:`EvaluatorTiming.call_checks_s`.

        Raises:
            UnknownNameError, InvalidValueError, MissingFileError, PluginFileError: See :func:`build_rule`.
        """
        self._watchdog = Watchdog(rule_timeout_s, checks_s=call_checks_s)
        #: The statistics that rules read; the follower that makes the views for this engine puts it into them.
        self.readable = Readable(None)
        with wakeable():
            self._runners = [RuleRunner(spec, calibration, self._watchdog, run_id, self.readable) for spec in rules]
        names = [runner.name for runner in self._runners]
        doubles = sorted({name for name in names if names.count(name) > 1})
        if doubles and not variants:
            raise InvalidValueError(
                f"a rule may be named once but {doubles[0]} was named {names.count(doubles[0])} times"
            )
        self._watchdog.stuck = _without_a_reference(self._report_stuck)
        #: Called in another thread about a rule that takes too long and cannot be ended.
        self.stuck: Callable[[Observation], None] | None = None
        for runner in self._runners:
            missing = [kind for kind in runner.required_observations if observed is not None and kind not in observed]
            if missing:
                runner.not_applicable = "it can only be evaluated while the run goes on, and " + (
                    "it was not" if observed else "no evaluator followed this run"
                )
        #: TRAIN steps seen, per attempt and worker.
        self.train_steps: dict[tuple[int, str], int] = {}
        self._examined: dict[ExaminedKey, Examined] = {}
        self._compares = any(runner.compares for runner in self._runners)
        compared = [run for runner in self._runners for run in runner.compares.values() if run]
        self._others = {location: ReferenceRun(location, self.readable) for location in compared}
        self._pins: list[Observation] = []
        #: What :meth:`Rule.finish` is shown: the last training step, so that findings have its number.
        self._last: dict[tuple[int, str], dict[tuple[str, int], StepView]] = {}
        self._findings: list[tuple[tuple[Any, ...], Folded]] = []
        self._newest = -1
        self._ended = False

    def show(self, moment: Moment) -> list[Finding]:
        """Shows the next moment to all rules that take it; returns new findings, ordered by rule.

        Raises:
            CompactedError: Data that a rule needed could not be read, or was removed. No rule can continue from here:
                a new engine must evaluate all of the run again.
        """
        if isinstance(moment, JointStep):
            return self._step(moment)
        with wakeable():
            if isinstance(moment, Written):
                return [found for runner in self._runners for found in runner.written(moment)]
            if isinstance(moment, Observation):
                return [found for runner in self._runners for found in runner.observe(moment)]
            return self._end(moment.attempt)

    def heed(self, seen: Observation) -> None:
        """Takes what an earlier evaluation observed of rules; call it before the first moment.

        A rule that took too long is not called there again, and another run is read up to the same steps.
        """
        if seen.kind == "rule_timed_out":
            for runner in self._runners:
                if runner.name == seen.data.get("rule"):
                    runner.stop(seen)
        elif seen.kind == "other_run" and seen.data.get("run") in self._others:
            self._others[str(seen.data["run"])].pinned(seen)

    def close(self) -> None:
        """Ends the watch over calls and closes other runs, until the next moment."""
        for other in self._others.values():
            other.close()
        self._watchdog.close()

    @property
    def ticks(self) -> bool:
        """Whether a rule looks at ticks."""
        return any(runner.ticks for runner in self._runners)

    @property
    def whole(self) -> tuple[int, ...]:
        """Which rules read more than single workers: several workers, ticks, windows, workers that are lost."""
        rows = enumerate(self._runners)
        return tuple(n for n, each in rows if each.joint or each.ticks or each.observes or each.cutting)

    @property
    def windows(self) -> tuple[Windows, ...]:
        """The windows that rules look at."""
        return tuple(runner.cutting.windows for runner in self._runners if runner.cutting is not None)

    @property
    def findings(self) -> list[Finding]:
        """All findings in their newest state, in the order of attempt, step, rule, worker."""
        new = [
            ((kept.attempt, kept.folded.order, number, layout.worker_order(kept.worker), kept.model), kept.folded)
            for number, runner in enumerate(self._runners)
            for kept in runner.take_kept()
        ]
        if new:
            self._findings += new
            self._findings.sort(key=lambda row: row[0])
        return [folded.finding for _, folded in self._findings]

    def take_changed(self) -> list[Finding]:
        """Findings that were seen again since the last call."""
        return [finding for runner in self._runners for finding in runner.take_changed()]

    def statuses(self) -> tuple[RuleStatus, ...]:
        """The status of each rule, in the order of the rules."""
        return tuple(runner.status(self._examined, ended=self._ended) for runner in self._runners)

    def take_observations(self) -> list[Observation]:
        """Observations for the journal: failures of rules, and the other runs and timeouts that a replay needs."""
        pins, self._pins = self._pins, []
        return [*pins, *(seen for runner in self._runners for seen in runner.take_observations())]

    def remember(self) -> None:
        """Keeps the facts of each rule before it sees the end, for :meth:`partial`."""
        for runner in self._runners:
            runner.remember()

    def partial(self, rules: Sequence[int] | None = None, *, run: str = "") -> PartialEvaluation:
        """What was found so far, to be put together with what other engines found of the same run.

        Args:
            rules: The place of each of its rules in the list of all rules; as they come if None.
            run: Location of the run.
        """
        numbers = range(len(self._runners)) if rules is None else rules
        facts = {number: runner.facts() for number, runner in zip(numbers, self._runners, strict=True)}
        return PartialEvaluation(run, facts, dict(self.train_steps), self._newest, examined=dict(self._examined))

    def _step(self, step: JointStep) -> list[Finding]:
        last = self._last.setdefault((step.attempt, step.worker), {})
        self._newest = max(self._newest, step.attempt)
        count_examined(self._examined, step)
        for view in step.views:
            place = view.worker, view.model
            if view.mode is Mode.TRAIN or place not in last or last[place].mode is not Mode.TRAIN:
                last[place] = view
            if view.mode is Mode.TRAIN and view.leads:
                key = (view.attempt, view.worker)
                self.train_steps[key] = self.train_steps.get(key, 0) + view.covers
        others = [self._references(view) for view in step.views] if self._compares else []
        new: list[Finding] = []
        with wakeable():
            for runner in self._runners:
                new += runner.step(step, others)
        return new

    def _end(self, attempt: int | None) -> list[Finding]:
        if attempt is None:
            self._ended = True
        new: list[Finding] = []
        separate: dict[int, list[StepView]] = {}
        for key in sorted(key for key in self._last if attempt in (None, key[0])):
            last = self._last.pop(key)
            places = sorted(last, key=lambda place: (layout.worker_order(place[0]), place[1]))
            views = tuple(last[place].finished() for place in places)
            new += [found for runner in self._runners for found in runner.finish(JointStep(views, key[1]))]
            separate.setdefault(key[0], []).extend(views)
        # The instances of windows belong to no single worker; those that ended with the ranks of the run are left out.
        for all_views in separate.values():
            new += [found for runner in self._runners for found in runner.finish(JointStep(tuple(all_views)))]
        if attempt is None:
            self.close()
        else:
            for other in self._others.values():
                other.forget(attempt + 1)
        return new

    def _report_stuck(self, place: str) -> None:
        """From the watchdog's thread: the call at this place takes too long and cannot be ended."""
        for runner in self._runners:
            if self.stuck is not None and (asking := runner.asking) is not None:
                self.stuck(runner.timed_out(*asking, place))

    def _references(self, view: StepView) -> dict[str, StepView | None]:
        found: dict[str, StepView | None] = {}
        for location, other in self._others.items():
            try:
                if not other.is_pinned:
                    self._pins.append(other.pin(view.attempt))
                found[location] = other.at(view)
            except StoreError as error:
                raise CompactedError(f"{location} could not be read: {error}") from error
        return found


def _without_a_reference(method: Callable[[str], None]) -> Callable[[str], None]:
    """A callback that holds no reference to its object, so that an unused engine is freed."""
    weak = weakref.WeakMethod(method)

    def call(place: str) -> None:
        if (alive := weak()) is not None:
            alive(place)

    return call
