"""Specifications of the rules and actions that a script or a command line names, and the capture for the rules."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from watchglass.config import (
    CALIBRATIONS,
    ActionSpec,
    Contract,
    EvaluatorConfig,
    RuleSpec,
    find_file,
    name_of,
    read_actions,
    seen_from,
    values,
)
from watchglass.errors import InvalidValueError
from watchglass.records import Severity

_Spec = TypeVar("_Spec", RuleSpec, ActionSpec)


def rule_specs(
    rules: str | Iterable[Any] | None, calibration: str = "default", source: str = "rules"
) -> tuple[RuleSpec, ...]:
    """Specifications of rules for an evaluator; each rule and its parameters are checked.

    Args:
        rules: As on the command line, ``"default"``, ``"llm,DeadRelu:window=5"``, ``"my_rules.py:MyRule"``; or a list
            of such texts, of rule classes and of rule instances. None for the default ones.
        calibration: Their set of default thresholds.
        source: The option or argument, for errors.

    Raises:
        InvalidValueError: A rule that another process cannot import, or an invalid parameter.
        UnknownNameError: An unknown name.
    """
    if calibration not in CALIBRATIONS:
        raise InvalidValueError(f"calibration must be one of {', '.join(CALIBRATIONS)} but got {calibration!r}")
    if rules is None:
        from watchglass.rules import default_rules

        return default_rules()
    if not rules and not isinstance(rules, str):
        return ()
    from watchglass.rules import CONTRACT, build_rule, expand, parse_rules

    specs = expand(_specs(rules, RuleSpec, CONTRACT, lambda text: parse_rules([text], source)))
    for spec in specs:
        build_rule(spec, calibration)
    return _found_from_everywhere(specs)


def action_specs(
    actions: str | Iterable[Any] | None,
    rules: Sequence[RuleSpec] | None,
    config_file: str | os.PathLike[str] | None = None,
    *,
    thorough: bool = False,
) -> tuple[ActionSpec, ...]:
    """Specifications of actions for an evaluator: those of the configuration file, then the given ones.

    Args:
        actions: A text as on the command line, ``"Webhook:url=$HOOK"``, an action class, an action; or a list of them.
        rules: The rules that are evaluated; None if they do not matter.
        config_file: File of settings; by default the nearest ``watchglass.toml``, if any.
        thorough: Also check that each action can work, which may import libraries that only the delivering process
            needs; False inside a training process.

    Raises:
        InvalidValueError: An action that another process cannot import, or an invalid parameter.
        UnknownNameError: An action or a rule that does not exist.
    """
    found = find_file(config_file)
    in_file = () if found is None else read_actions(found, named=config_file is not None)
    if not in_file and actions in (None, [], ()):
        return ()
    from watchglass.actions import CONTRACT, checked_actions, parse_action
    from watchglass.rules import find_rule

    given = _specs(() if actions is None else actions, ActionSpec, CONTRACT, lambda text: [parse_action(text)])
    names = None if rules is None else [find_rule(rule.name).__name__ for rule in rules]
    return _found_from_everywhere(checked_actions([*in_file, *given], names, thorough=thorough))


def capture_of_rules(
    evaluator: EvaluatorConfig | None, *given: Mapping[str, Any], **kept: Sequence[Any]
) -> dict[str, Any]:
    """Settings that record what the rules of an evaluator need; none without an evaluator.

    Args:
        evaluator: The configuration of the evaluator.
        *given: The settings of the user, in code or in a file.
        **kept: See :func:`watchglass.rules.capture_for`.
    """
    from watchglass.rules import capture_for

    if evaluator is None or not evaluator.rules:
        return {}
    return capture_for(evaluator.rules, evaluator.calibration, given=[name for each in given for name in each], **kept)


def severity_of(stop_on: Severity | str | None) -> Severity | None:
    """The severity at which to stop.

    Raises:
        InvalidValueError: An unknown severity.
    """
    if stop_on is None:
        return None
    try:
        return Severity(stop_on)
    except ValueError:
        raise InvalidValueError(f'stop_on must be "error", "warning" or "info" but got {stop_on!r}') from None


def _specs(given: Any, kind: type[_Spec], contract: Contract, parse: Callable[[str], Iterable[_Spec]]) -> list[_Spec]:
    """Specifications from one or several texts, classes and instances."""
    alone = isinstance(given, (str, kind, type)) or not isinstance(given, Iterable)
    specs: list[_Spec] = []
    for each in [given] if alone else given:
        cls = each if isinstance(each, type) else type(each)
        if isinstance(each, str):
            specs += parse(each)
        elif isinstance(each, kind):
            specs.append(each)
        elif issubclass(cls, contract.base):
            specs.append(kind(name_of(cls, contract), {} if cls is each else values(each)))
        else:
            word = contract.word
            raise InvalidValueError(f"{word}s must be texts, {word} classes or {word}s but got {each!r:.100}")
    return specs


def _found_from_everywhere(specs: Iterable[_Spec]) -> tuple[_Spec, ...]:
    """The same for an evaluator, which starts at the first training step, maybe in another working directory."""
    return tuple(replace(spec, name=seen_from(spec.name, os.getcwd())) for spec in specs)
