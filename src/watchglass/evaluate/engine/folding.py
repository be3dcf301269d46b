"""Repeats become one finding, and findings of one rule are limited, so that no rule fills the memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from watchglass.evaluate.engine.rule_status import Order
from watchglass.records import Finding

#: Distinct findings that are kept per rule, worker and attempt; further ones are counted.
MOST_FINDINGS = 100

_Key = tuple[str, str]


@dataclass
class Folded:
    """A finding that may be seen again."""

    finding: Finding  #: Its newest state.
    order: Order  #: Order of the step at which it was first seen.
    last_order: Order  #: Order of the step at which it was last seen.


@dataclass
class Folding:
    """The findings of one rule on one worker of one attempt. Those of the same severity and subject are one.

    It has the words and values of the first of them. If they state when the run ends, it has those of the newest.
    """

    most: int = MOST_FINDINGS
    dropped: int = 0  #: Number of findings beyond the limit, which are not kept.
    _folded: dict[_Key, Folded] = field(default_factory=dict)
    _changed: dict[_Key, None] = field(default_factory=dict)

    def would_keep(self, finding: Finding) -> bool:
        """Whether its words and values would be kept: it is new, or a newer estimate of when the run ends."""
        known = self._folded.get(_key(finding))
        return len(self._folded) < self.most if known is None else _ends_otherwise(finding, known.finding)

    def add(self, finding: Finding, order: Order) -> Folded | None:
        """Takes in a finding at a step; returns it if it is new and kept, None for a repeat or one too many."""
        key = _key(finding)
        known = self._folded.get(key)
        if known is None:
            if len(self._folded) >= self.most:
                self.dropped += 1
                return None
            known = self._folded[key] = Folded(finding, order, order)
            return known
        if order != known.last_order:
            first = known.finding
            last_step = finding.step if finding.mode is first.mode else first.last_step
            if _ends_otherwise(finding, first):
                first = replace(
                    first, value=finding.value, limit=finding.limit, message=finding.message, causes=finding.causes,
                    what_to_try=finding.what_to_try, evidence=finding.evidence,
                )  # fmt: skip
            known.finding = replace(first, last_step=last_step, count=first.count + 1)
            known.last_order = order
            self._changed[key] = None
        return None

    def findings(self) -> Iterator[tuple[Order, Finding]]:
        """All findings that are kept, each with the order of its first step, in the order in which they came."""
        for folded in self._folded.values():
            yield folded.order, folded.finding

    def take_changed(self) -> list[Finding]:
        """Findings that were seen again since the last call."""
        if not self._changed:
            return []
        changed, self._changed = self._changed, {}
        return [self._folded[key].finding for key in changed]


def _ends_otherwise(finding: Finding, known: Finding) -> bool:
    return finding.ends_in_s != known.ends_in_s


def _key(finding: Finding) -> _Key:
    return finding.severity.value, str(finding.evidence.get("subject", ""))
