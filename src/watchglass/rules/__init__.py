"""Rules, one per file, which evaluate a training run, and the knowledge of causes and symptoms."""

from typing import TYPE_CHECKING

from watchglass.config import parameter as parameter
from watchglass.lazy_imports import lazily

if TYPE_CHECKING:
    from watchglass.rules.built_in import (
        BUILT_IN as BUILT_IN,
        default_rules as default_rules,
        rule_names as rule_names,
    )
    from watchglass.rules.capture_settings import (
        capture_for as capture_for,
        capture_of as capture_of,
        collections_for as collections_for,
    )
    from watchglass.rules.knowledge import (
        Knowledge as Knowledge,
        built_in_knowledge as built_in_knowledge,
        cause_of_crash as cause_of_crash,
        load_knowledge as load_knowledge,
    )
    from watchglass.rules.memory_growth import (
        MEMORY_COURSE_S as MEMORY_COURSE_S,
        growth_at_the_end as growth_at_the_end,
    )
    from watchglass.rules.needs import (
        Needs as Needs,
        Windows as Windows,
        readable_statistics as readable_statistics,
    )
    from watchglass.rules.registry import (
        CONTRACT as CONTRACT,
        RULE_SETS as RULE_SETS,
        RuleDocumentation as RuleDocumentation,
        build_rule as build_rule,
        documentation as documentation,
        expand as expand,
        find_rule as find_rule,
        installed_rules as installed_rules,
        rules_of_set as rules_of_set,
    )
    from watchglass.rules.reported_symptoms import symptoms_of as symptoms_of
    from watchglass.rules.rule import Rule as Rule, state as state, state_of as state_of
    from watchglass.rules.rule_texts import parse_rules as parse_rules
    from watchglass.rules.scoreboard import (
        SCOREBOARD_FILE as SCOREBOARD_FILE,
        scored_commit as scored_commit,
        scores_of as scores_of,
        why_not_scored as why_not_scored,
    )
    from watchglass.rules.signals import without_kinds as without_kinds, without_layers as without_layers
    from watchglass.rules.stack_places import frames_of as frames_of, place_of as place_of, standing as standing
    from watchglass.rules.streaks import Streaks as Streaks

if not TYPE_CHECKING:
    __getattr__ = lazily(__name__)
