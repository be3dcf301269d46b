"""Repeats of one thing become one finding, and a rule that finds everything wrong cannot fill the memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

from watchglass.records import Finding
from watchglass.run import StepView

#: Distinct findings that are kept per rule, worker and attempt; further ones are counted.
MOST_FINDINGS = 100


@dataclass
class _Folded:
    finding: Finding
    key: tuple[int, tuple[int, int, int]]
    last_global_step: int


class Folding:
    """The findings of one rule. Findings of the same worker, severity and subject are one, seen several times."""

    def __init__(self, most: int = MOST_FINDINGS) -> None:
        self._most = most
        self._folded: dict[tuple[int, str, str, str], _Folded] = {}
        self._kept: dict[tuple[int, str], int] = {}
        self._changed: set[tuple[int, str, str, str]] = set()
        #: Findings beyond the limit, which were counted and not kept.
        self.dropped = 0

    def add(self, finding: Finding, view: StepView) -> Finding | None:
        """Takes in a finding; returns it if it is new and kept, None for a repeat or one too many."""
        subject = str(finding.evidence.get("subject", ""))
        key = (finding.attempt, finding.worker, finding.severity.value, subject)
        known = self._folded.get(key)
        if known is None:
            kept = self._kept.get(key[:2], 0)
            if kept >= self._most:
                self.dropped += 1
                return None
            self._kept[key[:2]] = kept + 1
            self._folded[key] = _Folded(finding, (finding.attempt, view.records.end.order), view.global_step)
            return finding
        if view.global_step != known.last_global_step:
            known.finding = replace(known.finding, last_step=finding.step, count=known.finding.count + 1)
            known.last_global_step = view.global_step
            self._changed.add(key)
        return None

    def findings(self) -> list[tuple[tuple[int, tuple[int, int, int]], Finding]]:
        """All findings that are kept, each with its (attempt, order) of first sight."""
        return [(folded.key, folded.finding) for folded in self._folded.values()]

    def take_changed(self) -> list[Finding]:
        """Findings that were seen again since the last call."""
        changed, self._changed = self._changed, set()
        return [self._folded[key].finding for key in changed]
