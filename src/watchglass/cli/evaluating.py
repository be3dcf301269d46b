"""Options that say what an evaluator does: its rules, its actions, its knowledge; and how their values are read."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from watchglass.cli.options import check_choice
from watchglass.errors import InvalidValueError
from watchglass.records import Severity

if TYPE_CHECKING:
    from watchglass.config import EvaluatorConfig, RuleSpec

Rules = Annotated[
    list[str] | None,
    typer.Option(
        "--rules",
        metavar="NAME[:PARAM=VALUE,...]",
        help="Rules to evaluate instead of the default ones: names from 'watchglass rules' or FILE.py:CLASS, "
        "separated by commas or given repeatedly.",
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
Causes = Annotated[
    list[str] | None,
    typer.Option(
        "--causes", metavar="FILE", help="Causes and links of your own, beside the built-in ones. Repeatable."
    ),
]
RuleTimeout = Annotated[
    float, typer.Option("--rule-timeout", metavar="S", min=0.001, help="Seconds that a rule may take over one step.")
]

_RULE = re.compile(r"(?P<name>.+?\.py(?::[A-Za-z_]\w*(?=:|$))?|[^:=]+)(?::(?P<parameters>.*))?", re.DOTALL)


def evaluator_config(
    *,
    run: str = "",
    rules: list[str] | None,
    calibration: str,
    stop_on: str | None = None,
    causes: list[str] | None = None,
    rule_timeout: float = 30.0,
    lost_after: float = 600.0,
    quiet: bool = False,
) -> EvaluatorConfig:
    """What an evaluator is told, from the options of a verb; everything that is named is known to exist.

    Raises:
        WatchglassError: Something that does not exist, or cannot be so.
    """
    from watchglass.config import CALIBRATIONS, EvaluatorConfig

    check_choice("--calibration", calibration, CALIBRATIONS)
    return EvaluatorConfig(
        run,
        None,
        rules_to_evaluate(rules, calibration),
        severity_to_stop_on(stop_on),
        calibration=calibration,
        causes=tuple(causes or ()),
        rule_timeout_s=rule_timeout,
        lost_after_s=lost_after,
        quiet=quiet,
    )


def parse_rules(texts: Iterable[str]) -> tuple[RuleSpec, ...]:
    """Rules as written on a command line: ``"DeadRelu:threshold=0.5,window=5,Overfit"`` and ``"my.py:MyRule"``.

    A part between commas that is only ``name=value`` belongs to the rule before it.

    Raises:
        InvalidValueError: A text that does not read so.
    """
    from watchglass.config import RuleSpec

    specs: list[tuple[str, dict[str, str]]] = []
    for text in texts:
        begun = False
        for part in filter(None, (piece.strip() for piece in text.split(","))):
            if begun and _is_parameter(part):
                specs[-1][1].update([_parameter(part, specs[-1][0])])
                continue
            match = _RULE.fullmatch(part)
            if match is None:
                raise InvalidValueError(
                    f"--rules takes NAME or NAME:PARAM=VALUE or FILE.py:CLASS, separated by commas, but got {part!r}"
                )
            name, first = match["name"].strip(), match["parameters"]
            specs.append((name, dict([_parameter(first, name)]) if first else {}))
            begun = True
    if not specs:
        raise InvalidValueError("--rules names no rule; watchglass run evaluates none with --evaluator none")
    return tuple(RuleSpec(name, dict(parameters)) for name, parameters in specs)


def rules_to_evaluate(texts: list[str] | None, calibration: str = "default") -> tuple[RuleSpec, ...]:
    """The rules that were asked for, each known to exist and to accept its parameters; the default ones for None.

    Raises:
        UnknownNameError: A rule that does not exist, with near names.
        InvalidValueError: A parameter it does not have, or a value it does not take.
        PluginFileError: A file of rules that cannot be imported.
    """
    from watchglass.rules import build_rule, default_rules

    if not texts:
        return default_rules()
    specs = parse_rules(texts)
    for spec in specs:
        build_rule(spec, calibration)
    return specs


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


def _is_parameter(part: str) -> bool:
    name, equals, _ = part.partition("=")
    return bool(equals) and ":" not in name


def _parameter(part: str, rule: str) -> tuple[str, str]:
    name, equals, value = part.partition("=")
    if not equals or not name.strip().isidentifier():
        raise InvalidValueError(f"a parameter of rule {rule} must read PARAM=VALUE but got {part!r}")
    return name.strip(), value.strip()
