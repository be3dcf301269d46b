"""Rules: judgements over a training, each one file, and the knowledge of what causes what."""

from watchglass.config import parameter
from watchglass.rules.causes import CAUSES, CONCRETE_ADVICE, CONSEQUENCES, LINKS, Link, likely, links_of
from watchglass.rules.needs import Needs
from watchglass.rules.registry import (
    RuleDocumentation,
    build_rule,
    default_rules,
    documentation,
    find_rule,
    rule_names,
)
from watchglass.rules.rule import Rule, state

__all__ = [
    "CAUSES", "CONCRETE_ADVICE", "CONSEQUENCES", "LINKS", "Link", "Needs", "Rule", "RuleDocumentation", "build_rule",
    "default_rules", "documentation", "find_rule", "likely", "links_of", "parameter", "rule_names", "state",
]  # fmt: skip
