"""The engine: shows complete steps to rules, folds what they find, and knows where each rule stands."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from watchglass.config import RuleSpec
from watchglass.errors import InvalidValueError
from watchglass.evaluate.runner import RuleRunner
from watchglass.records import Finding, Mode, RuleStatus
from watchglass.run import StepView
from watchglass.store import layout


class Engine:
    """Evaluates rules over the steps of a run, one instance of each rule per worker and attempt. For one thread.

    What a rule finds on a worker depends on that worker's steps in their order and on nothing else, so that live and
    replayed findings are equal. A rule that raises stops on that worker, with its traceback as the status; the others
    go on.
    """

    def __init__(self, rules: Sequence[RuleSpec], *, calibration: str = "default") -> None:
        """Builds every rule once, so that a wrong name or parameter shows before any step.

        Raises:
            UnknownNameError, InvalidValueError, MissingFileError, PluginFileError: See :func:`build_rule`.
        """
        self._runners = [RuleRunner(spec, calibration) for spec in rules]
        names = [runner.name for runner in self._runners]
        doubles = sorted({name for name in names if names.count(name) > 1})
        if doubles:
            raise InvalidValueError(
                f"a rule may be named once but {doubles[0]} was named {names.count(doubles[0])} times"
            )
        #: TRAIN steps seen, per attempt and worker.
        self.train_steps: dict[tuple[int, str], int] = {}
        self._ended = False

    def feed(self, views: Sequence[StepView]) -> list[Finding]:
        """Shows one step (a view per worker, in order) to all rules; returns what is new, by rule, then worker."""
        for view in views:
            if view.mode is Mode.TRAIN:
                key = (view.attempt, view.worker)
                self.train_steps[key] = self.train_steps.get(key, 0) + 1
        return [finding for runner in self._runners for view in views for finding in runner.check(view)]

    def finish(self, views: Iterable[StepView]) -> list[Finding]:
        """Tells the rules that the training has ended; ``views`` are the workers' last steps."""
        self._ended = True
        last = [view.finished() for view in views]
        return [finding for runner in self._runners for view in last for finding in runner.finish(view)]

    @property
    def findings(self) -> list[Finding]:
        """All findings in their newest state, in the order of attempt, step, rule, worker."""
        rows = [
            (*key, number, layout.worker_order(finding.worker), finding)
            for number, runner in enumerate(self._runners)
            for key, finding in runner.folding.findings()
        ]
        return [row[-1] for row in sorted(rows, key=lambda row: row[:-1])]

    def take_changed(self) -> list[Finding]:
        """Findings that were seen again since the last call."""
        return [finding for runner in self._runners for finding in runner.folding.take_changed()]

    def statuses(self) -> tuple[RuleStatus, ...]:
        """Where each rule stands, in the order of the rules."""
        most = max(self.train_steps.values(), default=0)
        return tuple(runner.status(ended=self._ended, train_steps=most) for runner in self._runners)

    def take_errors(self) -> list[tuple[StepView, str, str]]:
        """(view, rule, traceback) of rules that raised since the last call."""
        return [error for runner in self._runners for error in runner.take_errors()]
