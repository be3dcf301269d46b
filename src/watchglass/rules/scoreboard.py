"""What the built-in rules found in the last scoring of the zoo, as the scoring wrote it."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from watchglass.config import read_toml

#: Written by ``benchmarks/zoo/score.py`` together with docs/scoreboard.md.
SCOREBOARD_FILE = Path(__file__).with_name("knowledge") / "scoreboard.toml"


class RuleScore(NamedTuple):
    """What one rule found on one half of the zoo: findings of severity ``warning`` or ``error``.

    Attributes:
        half: ``"development"``, on which rules are developed, or ``"held-out"``, which their authors do not see.
        found: Sick runs with a finding.
        sick: Sick runs, of all classes of faults; most of them are none of this rule's business.
        alarms: Healthy runs with a finding.
        healthy: Healthy runs.
    """

    half: str
    found: int
    sick: int
    alarms: int
    healthy: int


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


@cache
def _scoring() -> dict[str, Any]:
    return read_toml(SCOREBOARD_FILE, "scoreboard")
