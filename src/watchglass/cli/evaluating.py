"""Options that say what an evaluator does: its rules, its actions, its knowledge; and how their values are read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from watchglass.cli.options import check_choice, price_of
from watchglass.errors import InvalidValueError
from watchglass.records import Severity

if TYPE_CHECKING:
    from watchglass.config import ActionSpec, EvaluatorConfig, RuleSpec

Rules = Annotated[
    list[str] | None,
    typer.Option(
        "--rules",
        metavar="NAME[:PARAM=VALUE,...]",
        help="Rules to evaluate instead of the default ones: rules and sets of rules from 'watchglass rules' or "
        "FILE.py:CLASS, separated by commas or given repeatedly.",
    ),
]
Calibration = Annotated[
    str,
    typer.Option(
        "--calibration",
        metavar="default|sagemaker",
        help="Thresholds that rules begin with: ours, or those that SageMaker Debugger documents.",
    ),
]
StopOn = Annotated[
    str | None,
    typer.Option(
        "--stop-on", metavar="error|warning", help="Stop the training at a finding this bad. Without it nothing stops."
    ),
]
Actions = Annotated[
    list[str] | None,
    typer.Option(
        "--action",
        metavar="NAME[:PARAM=VALUE,...]",
        help="What to do about findings: a name from 'watchglass actions' or FILE.py:CLASS. Repeatable.",
    ),
]
Causes = Annotated[
    list[str] | None,
    typer.Option(
        "--causes", metavar="FILE", help="Causes and links of your own, beside the built-in ones. Repeatable."
    ),
]
RuleTimeout = Annotated[
    float, typer.Option("--rule-timeout", metavar="S", min=0.001, help="Seconds that a rule may take over one step.")
]


def asked_of_explain(rules: Sequence[str] | None, calibration: str, causes: Sequence[str] | None) -> list[str]:
    """Options with which ``explain`` tells of a verdict what these options made of the run, ``["--rules", "llm"]``."""
    given = [("--rules", rule) for rule in rules or ()] + [("--causes", file) for file in causes or ()]
    if calibration != "default":
        given.append(("--calibration", calibration))
    return [word for option in given for word in option]


def evaluator_config(
    *,
    run: str = "",
    rules: list[str] | None,
    calibration: str,
    stop_on: str | None = None,
    actions: list[str] | None = None,
    config_file: Path | None = None,
    config_named: bool = False,
    causes: list[str] | None = None,
    rule_timeout: float = 30.0,
    lost_after: float = 600.0,
    price_per_hour: str | None = None,
    quiet: bool = False,
) -> EvaluatorConfig:
    """What an evaluator is told, from the options of a verb; everything that is named is known to exist.

    ``config_file`` is one whose tables ``[[actions]]`` come before ``actions``; None for no file. ``config_named``
    says whether somebody named it.

    Raises:
        WatchglassError: Something that does not exist, or cannot be so.
    """
    from watchglass.config import CALIBRATIONS, EvaluatorConfig

    check_choice("--calibration", calibration, CALIBRATIONS)
    if causes:
        from watchglass.rules import load_knowledge

        load_knowledge(causes)
    specs = rules_to_evaluate(rules, calibration)
    return EvaluatorConfig(
        run,
        None,
        specs,
        severity_to_stop_on(stop_on),
        actions_to_take(actions, config_file, specs, config_named),
        calibration=calibration,
        causes=tuple(causes or ()),
        rule_timeout_s=rule_timeout,
        lost_after_s=lost_after,
        price_per_hour=price_of(price_per_hour),
        quiet=quiet,
    )


def rules_to_evaluate(texts: list[str] | None, calibration: str = "default") -> tuple[RuleSpec, ...]:
    """The rules that were asked for, each known to exist and to accept its parameters; the default ones for None.

    Raises:
        UnknownNameError: A rule that does not exist, with near names.
        InvalidValueError: A parameter it does not have, or a value it does not take.
        PluginFileError: A file of rules that cannot be imported.
    """
    from watchglass.rules import default_rules, expand, parse_rules

    if not texts:
        return default_rules()
    from watchglass.rules import build_rule  # here, for what it imports

    specs = expand(parse_rules(texts))
    for spec in specs:
        build_rule(spec, calibration)
    return specs


def actions_to_take(
    texts: list[str] | None, config_file: Path | None, rules: Sequence[RuleSpec], config_named: bool
) -> tuple[ActionSpec, ...]:
    """The actions that were asked for, each known to exist, to accept its parameters and to be able to work.

    Raises:
        WatchglassError: What is wrong, in one line.
    """
    from watchglass.config import read_actions

    in_file = read_actions(config_file, named=config_named) if config_file is not None else ()
    if not texts and not in_file:
        return ()
    from watchglass.actions import checked_actions, parse_action
    from watchglass.rules import find_rule

    specs = [*in_file, *map(parse_action, texts or ())]
    return checked_actions(specs, [find_rule(rule.name).__name__ for rule in rules])


def severity_to_stop_on(text: str | None) -> Severity | None:
    """What ``--stop-on`` says; None where it was not given.

    Raises:
        InvalidValueError: Neither error nor warning.
    """
    if text is None:
        return None
    if text not in (Severity.ERROR.value, Severity.WARNING.value):
        raise InvalidValueError(f"--stop-on must be error or warning but got {text!r}")
    return Severity(text)
