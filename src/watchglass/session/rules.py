"""Rules as a script gives them, and what its training captures for them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from watchglass.config import CALIBRATIONS, EvaluatorConfig, RuleSpec, name_of, seen_from, values
from watchglass.errors import InvalidValueError
from watchglass.records import Severity


def rule_specs(rules: str | Iterable[Any], calibration: str = "default") -> tuple[RuleSpec, ...]:
    """What an evaluator is told of the rules that a script gave.

    Args:
        rules: As on the command line, ``"default"``, ``"llm,DeadRelu:window=5"``, ``"my_rules.py:MyRule"``; or a list
            of such texts, of rule classes and of rule instances.
        calibration: Which set of thresholds they begin with.

    Raises:
        InvalidValueError: A rule that another process could not import, or a parameter that cannot be so.
        UnknownNameError: A name that no rule has.
    """
    from watchglass.rules import build_rule, expand, parse_rules

    if calibration not in CALIBRATIONS:
        raise InvalidValueError(f"calibration must be one of {', '.join(CALIBRATIONS)} but got {calibration!r}")
    specs: list[RuleSpec] = []
    for rule in [rules] if isinstance(rules, (str, RuleSpec, type)) else rules:
        if isinstance(rule, str):
            specs += parse_rules([rule], "rules")
        else:
            specs.append(rule if isinstance(rule, RuleSpec) else _spec(rule))
    # The evaluator begins at the first training step, in what is then the working directory.
    expanded = tuple(replace(spec, name=seen_from(spec.name, os.getcwd())) for spec in expand(specs))
    for spec in expanded:
        build_rule(spec, calibration)
    return expanded


def capture_of_rules(told: EvaluatorConfig | None, *given: Mapping[str, Any], **kept: Sequence[Any]) -> dict[str, Any]:
    """Settings with which the rules of an evaluator get what they need; none where nothing is evaluated.

    Args:
        told: What the evaluator is told.
        *given: What the user sets, in code or in a file.
        **kept: See :func:`watchglass.rules.capture_for`.
    """
    from watchglass.rules import capture_for

    if told is None or not told.rules:
        return {}
    return capture_for(told.rules, told.calibration, given=[name for each in given for name in each], **kept)


def severity_of(stop_on: Severity | str | None) -> Severity | None:
    """The severity at which to stop.

    Raises:
        InvalidValueError: None that there is.
    """
    if stop_on is None:
        return None
    try:
        return Severity(stop_on)
    except ValueError:
        raise InvalidValueError(f'stop_on must be "error", "warning" or "info" but got {stop_on!r}') from None


def _spec(rule: Any) -> RuleSpec:
    from watchglass.rules import CONTRACT, Rule

    cls = rule if isinstance(rule, type) else type(rule)
    if not issubclass(cls, Rule):
        raise InvalidValueError(f"rules must be names, rule classes or rule instances but got {rule!r:.100}")
    given = {} if isinstance(rule, type) else values(rule)
    return RuleSpec(name_of(cls, CONTRACT), given)
