"""Options of an evaluator (rules, actions, causes), and the configuration that follows from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from watchglass.cli.declaring import option
from watchglass.cli.shared_options import check_choice, price_of
from watchglass.config import CALIBRATIONS, EvaluatorConfig
from watchglass.records import Severity
from watchglass.session import action_specs, rule_specs

Rules = Annotated[
    list[str] | None,
    option(
        "--rules NAME[:PARAM=VALUE]",
        "Rules to evaluate instead of the default ones: names of rules or rule sets (see 'watchglass rules'), or "
        "FILE.py:CLASS. Comma-separated or repeatable.",
    ),
]
Calibration = Annotated[
    str,
    option(
        "--calibration default|sagemaker",
        "Default thresholds of the rules: those of watchglass, or those of SageMaker Debugger.",
    ),
]
StopOn = Annotated[
    str | None, option("--stop-on error|warning", "Stop when a finding reaches this severity. [default: never]")
]
Actions = Annotated[
    list[str] | None,
    option(
        "--action NAME[:PARAM=VALUE]",
        "Action for findings: a name from 'watchglass actions', or FILE.py:CLASS. Repeatable.",
    ),
]
Causes = Annotated[
    list[str] | None, option("--causes FILE", "File of custom causes, in addition to the built-in ones. Repeatable.")
]
RuleTimeout = Annotated[float, option("--rule-timeout S", "Time limit of a rule for one step, in seconds.", min=0.001)]


def explain_options(rules: Sequence[str] | None, calibration: str, causes: Sequence[str] | None) -> list[str]:
    """The options for ``explain`` that give the same verdict as these options, ``["--rules", "llm"]``."""
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
    price_per_hour: str | None = None,
    **others: Any,
) -> EvaluatorConfig:
    """The configuration of an evaluator, from the options of a verb.

    Names of rules, actions and files are checked. With ``acts``, ``actions`` and the tables ``[[actions]]`` of
    ``config_file`` (or of the nearest file) apply. ``others`` are further settings of the configuration, by its names.

    Raises:
        WatchglassError: A name that does not exist, or an invalid value.
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
        price_per_hour=price_of(price_per_hour),
        **others,
    )
