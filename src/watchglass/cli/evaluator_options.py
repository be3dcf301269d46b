"""Options that say what an evaluator does: its rules, its actions, its knowledge; and how their values are read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from watchglass.cli.shared_options import check_choice, price_of
from watchglass.config import CALIBRATIONS, EvaluatorConfig
from watchglass.records import Severity
from watchglass.session import action_specs, rule_specs

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
    config_file: str | None = None,
    acts: bool = False,
    causes: list[str] | None = None,
    rule_timeout: float = 30.0,
    lost_after: float = 600.0,
    price_per_hour: str | None = None,
    quiet: bool = False,
) -> EvaluatorConfig:
    """What an evaluator is told, from the options of a verb; everything that is named is known to exist.

    With ``acts`` it takes ``actions`` and the tables ``[[actions]]`` of ``config_file``, or of the nearest file.

    Raises:
        WatchglassError: Something that does not exist, or cannot be so.
    """
    check_choice("--calibration", calibration, CALIBRATIONS)
    if stop_on is not None:
        check_choice("--stop-on", stop_on, (Severity.ERROR.value, Severity.WARNING.value))
    if causes:
        from watchglass.rules import load_knowledge

        load_knowledge(causes)
    specs = rule_specs(rules, calibration, source="--rules")
    return EvaluatorConfig(
        run,
        None,
        specs,
        None if stop_on is None else Severity(stop_on),
        action_specs(actions, specs, config_file, thorough=True) if acts else (),
        calibration=calibration,
        causes=tuple(causes or ()),
        rule_timeout_s=rule_timeout,
        lost_after_s=lost_after,
        price_per_hour=price_of(price_per_hour),
        quiet=quiet,
    )
