"""The configuration of an evaluator, validated before it is passed to the process."""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass, field
from typing import Any, ClassVar

from watchglass.config.evaluator_timing import EvaluatorTiming
from watchglass.config.parameters import parameter, validate
from watchglass.config.process_config import ProcessConfig
from watchglass.records import Severity

#: Sets of thresholds: those of watchglass, and those that SageMaker Debugger documents.
CALIBRATIONS = ("default", "sagemaker")


@dataclass(frozen=True)
class Spec(ABC):
    """Names a class with the parameters that differ from its defaults."""

    name: str  #: Built-in name, or ``"path/to/file.py:ClassName"``.
    #: Values by parameter name; strings are converted to the parameter's type.
    parameters: dict[str, Any] = field(default_factory=dict)


class RuleSpec(Spec):
    """Names a rule to evaluate, ``"DeadRelu"`` or ``"path/to/file.py:MyRule"``, with parameters."""


class ActionSpec(Spec):
    """Names an action to take, ``"Webhook"`` or ``"path/to/file.py:MyAction"``, with parameters."""


@dataclass(frozen=True)
class EvaluatorConfig(ProcessConfig):
    """The configuration of an evaluator process.

    Attributes:
        attempt: The attempt to follow; None for all of the run.
        rules: Rules to evaluate.
        calibration: The set of default thresholds.
        stop_on: Stop the run when a finding reaches this severity; None for never.
        actions: Further actions for findings and changes of status.
        causes: Files of causes and links in addition to the built-in knowledge.
        grace_s: Seconds to wait for a step boundary before a stop by signal.
        poll_s: Seconds between reads of the run; None for the interval of its store.
        lost_after_s: Silence after which a worker on another machine counts as lost.
        rule_timeout_s: Time limit of a rule for one step.
        price_per_hour: Price of an hour of the whole run; None if unknown.
        quiet: Do not print findings.
        concludes: Print the location of the run at the start and the verdict at the end, without a launcher.
        continues: An earlier evaluator of the same launch has printed the findings of the journal.
        timing: How long it waits.
    """

    title: ClassVar[str] = "the evaluator"
    module: ClassVar[str] = "watchglass.evaluate"

    attempt: int | None
    rules: tuple[RuleSpec, ...]
    stop_on: Severity | None = None
    actions: tuple[ActionSpec, ...] = ()
    calibration: str = parameter("default", choices=CALIBRATIONS)
    causes: tuple[str, ...] = parameter((), split=False)
    grace_s: float = parameter(30.0, gt=0)
    poll_s: float | None = parameter(None, gt=0)
    lost_after_s: float = parameter(600.0, gt=0)
    rule_timeout_s: float = parameter(30.0, gt=0)
    price_per_hour: float | None = parameter(None, ge=0)
    quiet: bool = parameter(False)
    concludes: bool = parameter(False)
    continues: bool = parameter(False)
    timing: EvaluatorTiming = field(default_factory=EvaluatorTiming)

    def __post_init__(self) -> None:
        validate(self)

    @property
    def termination_s(self) -> float:
        """See :attr:`EvaluatorTiming.termination_s`."""
        return self.timing.termination_s
