"""What a built-in rule looks at, and its parameters, for people who read its results."""

from __future__ import annotations

from dataclasses import dataclass

from watchglass.records import Verdict
from watchglass.rules import BUILT_IN, documentation, find_rule
from watchglass.view import RuleText


@dataclass(frozen=True)
class RuleGuide:
    """The documentation of a rule in short.

    Attributes:
        fires_when: Its condition.
        parameters: Of each parameter name, default, and what it does with its unit.
    """

    fires_when: str
    parameters: tuple[tuple[str, str, str], ...]


def rule_texts(verdict: Verdict) -> dict[str, RuleText]:
    """The documentation of the rules of a verdict by name, of those that are built in."""
    known = (documentation(find_rule(each.rule)) for each in verdict.statuses if each.rule in BUILT_IN)
    return {
        each.name: RuleText(each.summary, each.sections, {one.name: one.default for one in each.parameters})
        for each in known
    }


def rule_guide(name: str) -> RuleGuide | None:
    """The guide of a rule; None for a rule that is not built in, whose code is not loaded to be read about."""
    if name not in BUILT_IN:
        return None
    known = documentation(find_rule(name))
    rows = []
    for each in known.parameters:
        unit = f", {each.unit}" if each.unit else ""
        rows.append((each.name, f"{each.default}", f"{each.help}{unit}"))
    return RuleGuide(known.sections.get("Fires when", ""), tuple(rows))
