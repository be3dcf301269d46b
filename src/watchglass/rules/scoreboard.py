"""What the built-in rules found in the last scoring of the zoo, as the scoring wrote it."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from watchglass.config import read_toml
from watchglass.rules.built_in import BUILT_IN

#: Written by ``benchmarks/zoo/score.py`` together with docs/scoreboard.md.
SCOREBOARD_FILE = Path(__file__).with_name("knowledge") / "scoreboard.toml"


class RuleScore(NamedTuple):
    """What one rule found on one half of the zoo: findings of severity ``warning`` or ``error``."""

    half: str  #: ``"development"``, on which rules are developed, or ``"held-out"``, which their authors do not see.
    found: int  #: Sick runs with a finding.
    sick: int  #: Sick runs, of all classes of faults; most of them are none of this rule's business.
    alarms: int  #: Healthy runs with a finding.
    healthy: int  #: Healthy runs.


def scored_commit() -> str:
    """The commit at which the rules were last scored."""
    return str(_scoring()["commit"])


def scores_of(rule: str) -> list[RuleScore]:
    """What a rule found on each half of the zoo, the development half first; none if it was not scored.

    Args:
        rule: Name of a rule. Those of the default set are scored, as of :func:`scored_commit`.
    """
    return [
        RuleScore(half, of_rule["found"], row["sick"], of_rule["alarms"], row["healthy"])
        for half, row in _scoring()["halves"].items()
        if (of_rule := row["rules"].get(rule))
    ]


def why_not_scored(rule: str) -> str:
    """Why a built-in rule has no scores, and what its tests show instead, as half a sentence; "" where it has some."""
    built_in = BUILT_IN[rule]
    if scores_of(rule):
        return ""
    if "default" in built_in.sets.split():
        return f"the last scoring of the zoo, at {scored_commit()}, did not include the rule"
    if built_in.built_only:
        tests = f"have a sick run and a healthy twin made of numbers, because {built_in.built_only}"
    else:
        tests = "train a run on which it fires, and a healthy twin on which it does not"
    return f"the zoo measures the default set, which does not hold the rule; its tests {tests}"


@cache
def _scoring() -> dict[str, Any]:
    return read_toml(SCOREBOARD_FILE, "scoreboard")
