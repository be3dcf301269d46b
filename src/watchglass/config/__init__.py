"""What users configure, validated once, and the one reader of the environment."""

from watchglass.config import environment
from watchglass.config.collection import BUILT_IN_COLLECTIONS, DEFAULT_COLLECTIONS, PART_OF, Collection
from watchglass.config.evaluation import CALIBRATIONS, ActionSpec, EvaluatorConfig, RuleSpec
from watchglass.config.facts import FACTS, chosen_facts, facts_for
from watchglass.config.files import find_file, read_actions, read_file, read_toml
from watchglass.config.locations import DEFAULT_RUNS, absolute, joined, local_path, scheme_of
from watchglass.config.memory import machine_bytes
from watchglass.config.parameters import (
    ParameterError,
    ParameterInfo,
    build,
    check_names,
    describe,
    parameter,
    suggest,
    validate,
    values,
)
from watchglass.config.plugins import (
    Contract,
    built,
    faults_of,
    find_class,
    name_of,
    names_file,
    seen_from,
    with_parameters,
)
from watchglass.config.regular_files import NotRegularError, near_file, open_regular, read_regular, why_no_file
from watchglass.config.saving import EXACT_REDUCTIONS, MODE_NAMES, REDUCTION_NAMES, ModeSteps, Schedule
from watchglass.config.session import SETTINGS, SessionConfig
from watchglass.config.sources import add_settings, combine

__all__ = [
    "BUILT_IN_COLLECTIONS",
    "CALIBRATIONS",
    "DEFAULT_COLLECTIONS",
    "DEFAULT_RUNS",
    "EXACT_REDUCTIONS",
    "FACTS",
    "MODE_NAMES",
    "PART_OF",
    "REDUCTION_NAMES",
    "SETTINGS",
    "ActionSpec",
    "Collection",
    "Contract",
    "EvaluatorConfig",
    "ModeSteps",
    "NotRegularError",
    "ParameterError",
    "ParameterInfo",
    "RuleSpec",
    "Schedule",
    "SessionConfig",
    "absolute",
    "add_settings",
    "build",
    "built",
    "check_names",
    "chosen_facts",
    "combine",
    "describe",
    "environment",
    "facts_for",
    "faults_of",
    "find_class",
    "find_file",
    "joined",
    "local_path",
    "machine_bytes",
    "name_of",
    "names_file",
    "near_file",
    "open_regular",
    "parameter",
    "read_actions",
    "read_file",
    "read_regular",
    "read_toml",
    "scheme_of",
    "seen_from",
    "suggest",
    "validate",
    "values",
    "why_no_file",
    "with_parameters",
]  # fmt: skip
