"""What users configure, validated once, and the one reader of the environment."""

from watchglass.config import environment
from watchglass.config.collection import BUILT_IN_ROLES, Collection
from watchglass.config.parameters import ParameterInfo, describe, parameter, suggest, validate, values
from watchglass.config.session import DEFAULT_COLLECTIONS, EvaluatorConfig, RuleSpec, SessionConfig

__all__ = [
    "BUILT_IN_ROLES", "DEFAULT_COLLECTIONS", "Collection", "EvaluatorConfig", "ParameterInfo", "RuleSpec",
    "SessionConfig", "describe", "environment", "parameter", "suggest", "validate", "values",
]  # fmt: skip
