"""Rules: judgements over a training, each one file, and the knowledge of what causes what."""

from typing import TYPE_CHECKING, Any

from watchglass.config import parameter
from watchglass.rules.capturing import capture_for, capture_of, collections_for
from watchglass.rules.knowledge import Knowledge, Link, Symptom, built_in_knowledge, load_knowledge
from watchglass.rules.naming import parse_rules
from watchglass.rules.needs import Needs
from watchglass.rules.registry import (
    CONTRACT,
    RuleDocumentation,
    build_rule,
    default_rules,
    documentation,
    find_rule,
    rule_names,
)
from watchglass.rules.rule import Rule, state
from watchglass.rules.sets import RULE_SETS, RuleSet, expand, rules_of_set

__all__ = [
    "BUILT_IN",
    "CONTRACT",
    "RULE_SETS",
    "Knowledge",
    "Link",
    "Needs",
    "Rule",
    "RuleDocumentation",
    "RuleSet",
    "Symptom",
    "build_rule",
    "built_in_knowledge",
    "capture_for",
    "capture_of",
    "collections_for",
    "default_rules",
    "documentation",
    "expand",
    "find_rule",
    "load_knowledge",
    "parameter",
    "parse_rules",
    "rule_names",
    "rules_of_set",
    "state",
]  # fmt: skip

if TYPE_CHECKING:
    BUILT_IN: Knowledge  # the knowledge that comes with watchglass


def __getattr__(name: str) -> Any:
    """``BUILT_IN``, the knowledge that comes with watchglass, is read when it is first asked for."""
    if name == "BUILT_IN":
        return built_in_knowledge()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
