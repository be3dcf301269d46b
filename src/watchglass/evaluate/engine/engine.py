"""The engine: shows complete steps to rules, folds what they find, and knows where each rule stands."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from watchglass.config import RuleSpec
from watchglass.errors import CompactedError, InvalidValueError, StoreError
from watchglass.evaluate.engine.beside import OtherRun
from watchglass.evaluate.engine.folding import Folded
from watchglass.evaluate.engine.guard import Guard, wakeable
from watchglass.evaluate.engine.observing import Observed
from watchglass.evaluate.engine.runner import RuleRunner, Stopped
from watchglass.evaluate.engine.standing import PartialEvaluation, SeatKey
from watchglass.records import Finding, Mode, Observation, RuleStatus
from watchglass.run import StepView
from watchglass.store import layout, open_store


class Engine:
    """Evaluates rules over the steps of a run, one instance of each rule per attempt, worker and model. For one thread.

    What a rule finds on a worker depends on that worker's steps in their order and on nothing else, so that live and
    replayed findings are equal. A rule that raises, or takes too long, stops on that model of that worker, with its
    traceback as the status; the others go on.
    """

    def __init__(
        self,
        rules: Sequence[RuleSpec],
        *,
        calibration: str = "default",
        rule_timeout_s: float = 30.0,
        followed: bool = True,
        variants: bool = False,
    ) -> None:
        """Builds every rule once, so that a wrong name or parameter shows before any step.

        Args:
            rules: The rules, in the order in which they are evaluated.
            calibration: Which set of thresholds.
            rule_timeout_s: How long a rule may take over one step.
            followed: Whether an evaluator follows the training, or has; else rules about what one observes are not
                applicable.
            variants: Whether one rule may be there several times, with different parameters: for back-tests.

        Raises:
            UnknownNameError, InvalidValueError, MissingFileError, PluginFileError: See :func:`build_rule`.
        """
        self._guard = Guard(rule_timeout_s)
        with wakeable():
            self._runners = [RuleRunner(spec, calibration, self._guard) for spec in rules]
        names = [runner.name for runner in self._runners]
        doubles = sorted({name for name in names if names.count(name) > 1})
        if doubles and not variants:
            raise InvalidValueError(
                f"a rule may be named once but {doubles[0]} was named {names.count(doubles[0])} times"
            )
        self._guard.stuck = _tell_stuck(weakref.ref(self))
        #: Told in another thread of a rule that takes too long and that nothing ends.
        self.stuck: Callable[[Observation], None] | None = None
        for runner in self._runners:
            if runner.lives_on and not followed:
                runner.not_applicable = (
                    f"it lives on what an evaluator observes ({', '.join(runner.lives_on)}), and none followed this run"
                )
        #: TRAIN steps seen, per attempt and worker.
        self.train_steps: dict[tuple[int, str], int] = {}
        self._compares = any(runner.compares for runner in self._runners)
        self._others = {location: OtherRun(location, open_store) for location in self._compared()}
        self._observed = Observed()
        self._pins: list[Observation] = []
        self._last: dict[SeatKey, StepView] = {}
        self._findings: list[tuple[tuple[Any, ...], Folded]] = []
        self._newest = -1
        self._ended = False

    def feed(self, views: Sequence[StepView]) -> list[Finding]:
        """Shows one step (a view per worker and model, in order) to all rules; returns what is new, by rule first.

        Raises:
            CompactedError: Something that a rule looked at could not be fetched, or is gone: no rule can go on from
                here, and all of the run is to be evaluated again, by a new engine.
        """
        new: list[Finding] = []
        seen = [self._entered(view) for view in views]
        others = [self._beside(view) for view in seen] if self._compares else []
        with wakeable():
            for runner in self._runners:
                if runner.compares:
                    for view, found in zip(seen, others, strict=True):
                        new += runner.check(view, {p: found.get(run) for p, run in runner.compares.items()})
                else:
                    for view in seen:
                        new += runner.check(view)
        return new

    def observe(self, seen: Observation) -> None:
        """Takes in what was observed of the training, by this evaluator or one before; rules see it at the next step.

        What says the same again counts once. Of what is for the engine itself, a rule that took too long is not asked
        again where it did, and another run is looked at as far as it was.
        """
        if not self._observed.add(seen):
            return
        if seen.kind == "rule_timed_out":
            for runner in self._runners:
                if runner.name == seen.data.get("rule"):
                    runner.stop(seen)
        elif seen.kind == "other_run" and seen.data.get("run") in self._others:
            self._others[str(seen.data["run"])].pinned(seen)

    def finish(self, views: Iterable[StepView] = ()) -> list[Finding]:
        """Tells the rules that the training has ended. ``views`` may be left out: the engine knows the last steps.

        Raises:
            CompactedError: See :meth:`feed`.
        """
        for runner in self._runners:
            runner.remember()
        self._ended = True
        new = self._finish(list(self._last))
        self.close()
        return new

    def end_attempts(self, before: int) -> list[Finding]:
        """Tells the rules that all attempts before this one have ended, and lets go of what it keeps for them.

        Raises:
            CompactedError: See :meth:`feed`.
        """
        old = [key for key in self._last if key[0] < before]
        if not old:
            return []
        for other in self._others.values():
            other.forget(before)
        return self._finish(old)

    def close(self) -> None:
        """Nothing more is asked for now; lets go of the watching thread and of other runs."""
        for other in self._others.values():
            other.close()
        self._guard.close()

    @property
    def looks_closer(self) -> bool:
        """Whether a rule looks at what is fetched only when somebody does; the follower then fetches it before."""
        return any(runner.looks_closer for runner in self._runners)

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
        """Where each rule stands, in the order of the rules."""
        return tuple(runner.status(ended=self._ended) for runner in self._runners)

    def take_errors(self) -> list[Stopped]:
        """(view, rule, traceback) of rules that raised since the last call."""
        return [error for runner in self._runners for error in runner.take_errors()]

    def take_observations(self) -> list[Observation]:
        """What is to be written down so that another evaluation goes the same way: timeouts, other runs."""
        pins, self._pins = self._pins, []
        return [*pins, *(seen for runner in self._runners for seen in runner.take_timeouts())]

    def partial(self, rules: Sequence[int] | None = None, *, run: str = "") -> PartialEvaluation:
        """What was found so far, to be put together with what other engines found of the same run.

        Args:
            rules: The place of each of its rules in the list of all rules; as they come if None.
            run: Location of the run.
        """
        numbers = range(len(self._runners)) if rules is None else rules
        facts = {number: runner.facts() for number, runner in zip(numbers, self._runners, strict=True)}
        return PartialEvaluation(run, facts, dict(self.train_steps), self._newest)

    def _entered(self, view: StepView) -> StepView:
        """Counts a step; returns its view with what was observed since the one before."""
        key = (view.attempt, view.worker)
        self._last[view.attempt, view.worker, view.model] = view
        if view.attempt > self._newest:
            self._newest = view.attempt
        if view.mode is Mode.TRAIN and view.leads:
            self.train_steps[key] = self.train_steps.get(key, 0) + 1
        observed = self._observed.before(view.attempt, view.worker, view.model, view.records.end.order)
        return replace(view, observed=observed) if observed else view

    def _finish(self, keys: Sequence[SeatKey]) -> list[Finding]:
        last: dict[SeatKey, StepView] = {}
        for key in sorted(keys, key=lambda key: (key[0], layout.worker_order(key[1]), key[2])):
            last[key] = replace(self._last.pop(key).finished(), observed=self._observed.before(*key, None))
        with wakeable():
            return [
                found for runner in self._runners for key, view in last.items() for found in runner.finish(key, view)
            ]

    def _compared(self) -> dict[str, None]:
        return {run: None for runner in self._runners for run in runner.compares.values() if run}

    def _beside(self, view: StepView) -> dict[str, StepView | None]:
        found: dict[str, StepView | None] = {}
        for location, other in self._others.items():
            try:
                if not other.is_pinned:
                    self._pins.append(other.pin(view.attempt))
                found[location] = other.at(view)
            except StoreError as error:
                raise CompactedError(f"{location} could not be looked at: {error}") from error
        return found


def _tell_stuck(engine: weakref.ref[Engine]) -> Callable[[str], None]:
    """What a guard tells. Without a reference to the engine: one that nobody else has any more is not watched."""

    def tell(place: str) -> None:
        alive = engine()
        for runner in alive._runners if alive is not None else ():
            if alive is not None and alive.stuck is not None and (asking := runner.asking) is not None:
                alive.stuck(runner.timed_out(*asking, place))

    return tell
