"""What a built-in rule looks at, and its parameters, for people who read its results."""

from __future__ import annotations

from dataclasses import dataclass

from watchglass.rules import BUILT_IN, documentation, find_rule


@dataclass(frozen=True)
class RuleGuide:
    """The documentation of a rule in short.

    Attributes:
        fires_when: Its condition.
        parameters: Of each parameter name, default, and what it does with its unit.
    """

    fires_when: str
    parameters: tuple[tuple[str, str, str], ...]


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
