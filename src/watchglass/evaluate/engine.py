"""The engine: shows complete steps to rules, folds what they find, and knows where each rule stands."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Sequence

from watchglass.config import RuleSpec
from watchglass.errors import InvalidValueError
from watchglass.evaluate.folding import Folding
from watchglass.records import Finding, Mode, RuleStatus, Severity, Status
from watchglass.rules import Needs, Rule, build_rule
from watchglass.run import StepView
from watchglass.store import layout

#: TRAIN steps after which a rule whose data has never come is called starved while the training still runs.
_STARVED_AFTER = 64


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
        self._runners = [_Runner(spec, calibration) for spec in rules]
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


class _Runner:
    """One rule over all workers."""

    def __init__(self, spec: RuleSpec, calibration: str) -> None:
        self._build: Callable[[], Rule] = lambda: build_rule(spec, calibration)
        prototype = self._build()
        self.name = prototype.name
        self.folding = Folding()
        self._needs = [_Need(need) for need in prototype.needs]
        self._open = list(self._needs)
        self._instances: dict[tuple[int, str], Rule | None] = {}
        self._last: dict[tuple[int, str], StepView] = {}
        self._error = ""
        self._errors: list[tuple[StepView, str, str]] = []

    def check(self, view: StepView) -> list[Finding]:
        for need in self._open:
            need.look(view)
        if any(need.satisfied for need in self._open):
            self._open = [need for need in self._open if not need.satisfied or need.needs.max_interval is not None]
        self._last[view.attempt, view.worker] = view
        return self._ask(view, lambda rule: rule.check(view))

    def finish(self, view: StepView) -> list[Finding]:
        return self._ask(view, lambda rule: rule.finish(view))

    def take_errors(self) -> list[tuple[StepView, str, str]]:
        errors, self._errors = self._errors, []
        return errors

    def status(self, *, ended: bool, train_steps: int) -> RuleStatus:
        if self._error:
            return RuleStatus(self.name, Status.ERROR, self._error)
        found = [finding for _, finding in self.folding.findings()]
        if any(finding.severity is not Severity.INFO for finding in found):
            dropped = self.folding.dropped
            reason = f"{dropped} further findings were counted and not kept" if dropped else ""
            return RuleStatus(self.name, Status.ISSUES_FOUND, reason)
        if ended or train_steps >= _STARVED_AFTER:
            reason = next((need.reason() for need in self._needs if need.reason()), "")
            if ended:
                silent = self._not_applicable()
                if silent:
                    return RuleStatus(self.name, Status.NOT_APPLICABLE, silent)
            # An evaluation may come any time, so only the end shows that there was none.
            live = next((n.reason() for n in self._needs if n.reason() and n.needs.modes == (Mode.TRAIN,)), "")
            if (reason if ended else live) and not found:
                return RuleStatus(self.name, Status.STARVED, reason if ended else live)
        return RuleStatus(self.name, Status.NO_ISSUES_FOUND if ended else Status.IN_PROGRESS)

    def _not_applicable(self) -> str:
        for key, view in self._last.items():
            rule = self._instances.get(key)
            if rule is None:
                continue
            try:
                reason = rule.applicable(view)
            except Exception:
                self._fail(view, key)
                continue
            if reason:
                return reason
        return ""

    def _ask(self, view: StepView, question: Callable[[Rule], Iterable[Finding] | None]) -> list[Finding]:
        key = (view.attempt, view.worker)
        if key not in self._instances:
            self._instances[key] = self._build()
        rule = self._instances[key]
        if rule is None:
            return []
        new: list[Finding] = []
        try:
            for finding in question(rule) or ():
                if not isinstance(finding, Finding):
                    raise TypeError(f"check must give findings, see Rule.finding, but gave {finding!r:.100}")
                kept = self.folding.add(finding, view)
                if kept is not None:
                    new.append(kept)
        except Exception:
            self._fail(view, key)
        return new

    def _fail(self, view: StepView, key: tuple[int, str]) -> None:
        self._instances[key] = None
        text = traceback.format_exc(limit=-8)
        self._error = self._error or f"raised at {view.mode.name} step {view.mode_step} of {view.worker}:\n{text}"
        self._errors.append((view, self.name, text))


class _Need:
    """Whether one of a rule's needs was ever met."""

    def __init__(self, needs: Needs) -> None:
        self.needs = needs
        self.satisfied = False
        self._attempt = 0
        self._last_capture = -1
        self._gap = 0

    def look(self, view: StepView) -> None:
        if view.mode not in self.needs.modes:
            return
        present = self._present(view)
        if view.attempt != self._attempt:
            # It begins where it was resumed, which is no distance from the last capture of the one before.
            self._attempt, self._last_capture = view.attempt, -1
        if present and self.needs.max_interval is not None:
            self._gap = view.mode_step - self._last_capture if self._last_capture >= 0 else 0
            self._last_capture = view.mode_step
        self.satisfied = self.satisfied or present

    def reason(self) -> str:
        """Why the rule starves, or ""."""
        needs = self.needs
        if needs.optional:
            return ""
        why = f" (needed {needs.why})" if needs.why else ""
        if not self.satisfied:
            return f"{needs.describe()} never came{why}"
        if needs.max_interval is not None and self._gap > needs.max_interval:
            return f"{needs.describe()} came every {self._gap} steps; at most {needs.max_interval} are useful{why}"
        return ""

    def _present(self, view: StepView) -> bool:
        needs = self.needs
        if needs.units:
            return any(needs.wants(info) for kind in needs.units for info, _ in view.units(kind))
        if needs.role is not None or needs.statistics or needs.module_types:
            rows = view.statistics(needs.role, module_types=needs.module_types, name_regex=needs.name_regex)
            if not len(rows):
                return False
        if needs.scalars and all(view.scalar(name) is None for name in needs.scalars):
            return False
        return not needs.facts or any(view.latest_fact(kind) is not None for kind in needs.facts)
