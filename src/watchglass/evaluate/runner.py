"""One rule over all workers of a run: an instance for each worker and attempt, its findings, where it stands."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable

from watchglass.config import RuleSpec
from watchglass.evaluate.folding import Folding
from watchglass.evaluate.starvation import NeedSeen
from watchglass.records import Finding, Mode, RuleStatus, Severity, Status
from watchglass.rules import Rule, build_rule
from watchglass.run import StepView

#: TRAIN steps after which a rule whose data has never come is called starved while the training still runs.
_STARVED_AFTER = 64


class RuleRunner:
    """One rule over all workers."""

    def __init__(self, spec: RuleSpec, calibration: str) -> None:
        self._build: Callable[[], Rule] = lambda: build_rule(spec, calibration)
        prototype = self._build()
        self.name = prototype.name
        self.folding = Folding()
        self._needs = [NeedSeen(need) for need in prototype.needs]
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
