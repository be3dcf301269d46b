"""Settings that a run and each collection share: which values of tensors are recorded, and at which steps."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from watchglass.config.parameters import ParameterError, parameter, validate
from watchglass.records import Mode, Reduction

_T = TypeVar("_T")

#: Settings of the interval of steps, which can contradict each other.
STEP_SETTINGS = ("save_interval", "start_step", "end_step")

#: Modes by the names that settings use.
MODE_NAMES = {"train": Mode.TRAIN, "eval": Mode.EVAL, "predict": Mode.PREDICT}

_PLAIN = ("min", "max", "mean", "median", "std", "variance", "sum", "prod", "l1", "l2")

#: Names that ``reductions`` accepts. Most follow from the statistics that are kept of every tensor.
REDUCTION_NAMES = (*_PLAIN, *(f"abs_{name}" for name in _PLAIN))

#: Reductions that do not, with the number that is computed for them.
EXACT_REDUCTIONS = {
    "median": Reduction.MEDIAN, "prod": Reduction.PROD, "abs_median": Reduction.ABS_MEDIAN,
    "abs_prod": Reduction.PROD, "abs_min": Reduction.ABS_MIN,
}  # fmt: skip

#: Other spellings: SageMaker Debugger's configuration files say ``l1_norm``.
_SPELLINGS = {f"{prefix}{norm}_norm": f"{prefix}{norm}" for prefix in ("", "abs_") for norm in ("l1", "l2")}


@dataclass(frozen=True, kw_only=True)
class _StepSettings:
    """The steps that are recorded. Abstract; None takes the more general setting."""

    save_interval: int | None = parameter(None, help="keep every step that is a multiple of it", unit="steps", ge=1)
    start_step: int | None = parameter(None, help="first step that the interval may keep", unit="steps", ge=0)
    end_step: int | None = parameter(
        None, help="first step that the interval may no longer keep; 0 keeps none", unit="steps", ge=0
    )
    save_steps: tuple[int, ...] | None = parameter(
        None, help="steps that are kept in addition to those of the interval", unit="steps", ge=0
    )

    def check_steps(self, owner: str, prefix: str = "") -> None:
        """Refuse settings that contradict each other.

        Raises:
            ParameterError: They leave no step although they do not say so with ``end_step = 0``.
        """
        start, end = self.start_step or 0, self.end_step
        if end is None or self.save_steps or (end == 0 and not start):
            return
        if end <= start:
            raise ParameterError(
                owner,
                f"{prefix}end_step",
                f"must be after start_step ({start}) but got {end}; to keep nothing use end_step = 0 alone",
                related=(f"{prefix}start_step", f"{prefix}end_step"),
            )
        if self.save_interval is not None and _next_multiple(start, self.save_interval) >= end:
            raise ParameterError(
                owner,
                f"{prefix}save_interval",
                f"has no multiple from start_step ({start}) to before end_step ({end}) but got {self.save_interval}; "
                "name single steps with save_steps",
                related=tuple(prefix + name for name in STEP_SETTINGS),
            )


@dataclass(frozen=True, kw_only=True)
class ModeSteps(_StepSettings):
    """The steps of one mode that are recorded; None takes the setting for all modes."""

    def __post_init__(self) -> None:
        validate(self)


@dataclass(frozen=True, kw_only=True)
class SaveSettings(_StepSettings):
    """What is recorded, and when. Abstract; None takes the more general setting.

    The four settings of steps apply to training; for a mode in ``modes``, the settings given there apply.
    """

    modes: Mapping[str, ModeSteps] | None = parameter(
        None, help="the settings of steps for train, eval or predict", choices=tuple(MODE_NAMES)
    )
    reductions: tuple[str, ...] | None = parameter(
        None, help="exact numbers that statistics do not give", choices=REDUCTION_NAMES, aliases=_SPELLINGS
    )
    save_histogram: bool | None = parameter(None, help="keep a histogram with the statistics")
    save_raw: bool | None = parameter(None, help="keep the tensors themselves too")
    save_shape: bool | None = parameter(None, help="keep the shape of every capture")

    def check_modes(self, owner: str) -> None:
        """As :meth:`check_steps`, for all modes."""
        self.check_steps(owner)
        for name, steps in (self.modes or {}).items():
            steps.check_steps(owner, f"modes.{name}.")

    def levels(self, mode: str) -> tuple[_StepSettings, ...]:
        """The settings for the steps of a mode, the most specific first."""
        named = (self.modes or {}).get(mode)
        return (self,) if named is None else (named, self)


class Schedule(NamedTuple):
    """The steps of one mode at which a collection is recorded."""

    interval: int | None  #: Multiples of it are kept; None for those that the budget chooses.
    start: int = 0  #: First step that the interval may keep.
    end: int | None = None  #: First step that it may no longer keep; None for no end.
    steps: tuple[int, ...] = ()  #: Steps that are kept in addition, in order.

    @property
    def empty(self) -> bool:
        """Whether no step can ever be kept."""
        if self.steps or self.end is None:
            return False
        return _next_multiple(self.start, self.interval or 1) >= self.end

    def holds(self, step: int, chosen: bool) -> bool:
        """Whether a step is kept; ``chosen`` is whether the budget keeps it."""
        regular = chosen if self.interval is None else step % self.interval == 0
        in_time = self.start <= step and (self.end is None or step < self.end)
        return (regular and in_time) or self.next_listed(step) == step

    def next_listed(self, step: int) -> int | None:
        """The first of ``steps`` from a step on, None for none."""
        at = bisect_left(self.steps, step)
        return self.steps[at] if at < len(self.steps) else None

    @classmethod
    def merged(cls, mode: str, levels: Iterable[_StepSettings]) -> Schedule:
        """The schedule of a mode from settings, the most specific first."""
        levels = tuple(levels)
        interval = _first(level.save_interval for level in levels)
        end = _first(level.end_step for level in levels)
        steps = _first(level.save_steps for level in levels)
        if interval is None and mode != "train":
            # The budget chooses among training steps only: of others all are kept, or those that are listed.
            interval, end = 1, 0 if steps else end
        return cls(interval, _first(level.start_step for level in levels) or 0, end, tuple(sorted(set(steps or ()))))


def _first(options: Iterable[_T | None]) -> _T | None:
    return next((option for option in options if option is not None), None)


def _next_multiple(step: int, interval: int) -> int:
    return -(-step // interval) * interval
