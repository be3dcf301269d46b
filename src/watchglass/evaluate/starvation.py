"""Whether rules are given what they need, and why one starves."""

from __future__ import annotations

from watchglass.rules import Needs
from watchglass.run import StepView


class NeedSeen:
    """Whether one of a rule's needs was ever met. For one rule over all workers."""

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
