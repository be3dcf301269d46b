"""Which findings concern an action: of which rules, and of which severity."""

from __future__ import annotations

from abc import ABC

from watchglass.config import Plugin, dataclass_transform, parameter
from watchglass.records import Finding, Severity


@dataclass_transform(kw_only_default=True, eq_default=False, field_specifiers=(parameter,))
class Subscription(Plugin, ABC):
    """The findings that concern an action. Subclasses become keyword-only dataclasses automatically."""

    severity: Severity = parameter(Severity.WARNING, help="lowest severity of a finding")
    rules: tuple[str, ...] = parameter((), help="names of rules; every rule if not given")

    def concerned_by(self, finding: Finding) -> bool:
        """Whether a finding is bad enough, and of one of the rules."""
        return finding.severity.rank >= self.severity.rank and (not self.rules or finding.rule in self.rules)
