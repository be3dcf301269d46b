"""Rules: judgements over a training, each one file, and the knowledge of what causes what."""

from typing import TYPE_CHECKING

from watchglass.config import parameter
from watchglass.lazy_imports import lazily

if TYPE_CHECKING:
    from watchglass.rules.built_in import default_rules, rule_names
    from watchglass.rules.capturing import capture_for, capture_of, collections_for
    from watchglass.rules.knowledge import Knowledge, built_in_knowledge, load_knowledge
    from watchglass.rules.naming import parse_rules
    from watchglass.rules.needs import Needs, Windows
    from watchglass.rules.registry import CONTRACT, RuleDocumentation, build_rule, documentation, find_rule
    from watchglass.rules.rule import Rule, state
    from watchglass.rules.sets import RULE_SETS, expand, rules_of_set
    from watchglass.rules.signals import without_layers

_HOMES = {
    "built_in": ("default_rules", "rule_names"),
    "capturing": ("capture_for", "capture_of", "collections_for"),
    "knowledge": ("Knowledge", "built_in_knowledge", "load_knowledge"),
    "naming": ("parse_rules",),
    "needs": ("Needs", "Windows"),
    "registry": ("CONTRACT", "RuleDocumentation", "build_rule", "documentation", "find_rule"),
    "rule": ("Rule", "state"),
    "sets": ("RULE_SETS", "expand", "rules_of_set"),
    "signals": ("without_layers",),
}  # fmt: skip

__all__ = [
    "CONTRACT",
    "RULE_SETS",
    "Knowledge",
    "Needs",
    "Rule",
    "RuleDocumentation",
    "Windows",
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
    "without_layers",
]  # fmt: skip

if not TYPE_CHECKING:
    __getattr__ = lazily(__name__, _HOMES)
