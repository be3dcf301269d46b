"""Changes that workers apply, and the three messages that make all apply them at one step: JSON below ``control/``.

A rank that acts alone leaves the others blocked in a collective. So the evaluator writes a change as a request, each
worker acknowledges it with the step that it has seen, and the evaluator commits a step that lies ahead of all of them.
A profiled window blocks no other rank: it is committed at once, and a worker that reads it late begins it late.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar, TypeVar

from watchglass.config import MOST_PROFILED_STEPS, ProfilerConfig, check_names
from watchglass.errors import DamagedDataError, InvalidValueError
from watchglass.records import PYTHON_PROFILERS

T = TypeVar("T")

#: Settings of the profiler that change while a run goes on.
CHANGEABLE = ("enabled", "sample_interval_s", "module_times")


@dataclass(frozen=True)
class Stop:
    """The training run ends.

    Attributes:
        reason: One sentence for people.
        finding: Identifier of the finding that requested it; "" for none.
    """

    kind: ClassVar[str] = "stop"
    agreed: ClassVar[bool] = True
    reason: str = ""
    finding: str = ""


@dataclass(frozen=True)
class ProfileWindow:
    """Some steps are profiled, or the profiler's settings change.

    Raises:
        InvalidValueError: It is not a whole number in this range, something else is to be profiled, or a setting is
            invalid.
    """

    kind: ClassVar[str] = "profile"
    agreed: ClassVar[bool] = False
    steps: int = 1  #: How many, 1 to :data:`~watchglass.config.MOST_PROFILED_STEPS`; 0 where settings change alone.
    reason: str = ""  #: As for :class:`Stop`, like ``finding``.
    finding: str = ""
    #: What is profiled: ``"operators"``, or Python's functions by ``"cprofile"`` or ``"pyinstrument"``.
    profile: str = "operators"
    #: Those of :class:`~watchglass.config.ProfilerConfig` that change, of :data:`CHANGEABLE`.
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_names(self.settings, CHANGEABLE, "a profile window")
        known = ProfilerConfig(**self.settings)
        object.__setattr__(self, "settings", {name: getattr(known, name) for name in self.settings})
        _check("steps of a profile window", self.steps, 0 if self.settings else 1)
        if self.profile not in (profiles := ("operators", *PYTHON_PROFILERS)):
            raise InvalidValueError(f"a profile window must be one of {', '.join(profiles)} but got {self.profile!r}")
        if self.steps > MOST_PROFILED_STEPS:
            raise InvalidValueError(
                f"steps of a profile window must be at most {MOST_PROFILED_STEPS} but got {self.steps}; "
                "PyTorch keeps every event of a window in memory until its end"
            )


Change = Stop | ProfileWindow


@dataclass(frozen=True)
class Acknowledgement:
    """A worker has seen the request."""

    train_step: int  #: Last TRAIN step that the worker has seen; -1 for none.

    def __post_init__(self) -> None:
        _check("train_step", self.train_step, -1)


@dataclass(frozen=True)
class Commit:
    """All workers act at one step."""

    at_step: int  #: The TRAIN step before which they do, or after it where they need not agree.
    change: Change  #: What they do.
    number: int = 0  #: Number of the change among those of its kind in this attempt, from 0 on.

    def __post_init__(self) -> None:
        _check("at_step", self.at_step, 0)
        _check("number", self.number, 0)


def encode(message: Change | Acknowledgement | Commit, wall_ns: int) -> bytes:
    """A message as JSON; a request holds its change.

    Args:
        message: The message.
        wall_ns: When it is written, in nanoseconds since 1970.
    """
    data = asdict(message)
    return json.dumps({**data.pop("change", {}), **data, "wall_ns": wall_ns}).encode()


def decode_acknowledgement(data: bytes) -> Acknowledgement:
    """The acknowledgement in ``data``.

    Raises:
        DamagedDataError: There is none, or not all of it yet.
    """
    return _made(Acknowledgement, _read(data))


def decode_commit(kind: type[Change], data: bytes) -> Commit:
    """The commit of a change in ``data``. Unknown keys are omitted.

    Raises:
        DamagedDataError: There is none, or not all of it yet.
    """
    read = _read(data)
    return _made(Commit, {**read, "change": _made(kind, read)})


def _read(data: bytes) -> dict[str, Any]:
    try:
        read = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DamagedDataError(f"a control message is not JSON: {error}") from None
    if not isinstance(read, dict):
        raise DamagedDataError(f"a control message must be a JSON object but is {type(read).__name__}")
    return read


def _made(cls: type[T], data: Mapping[str, Any]) -> T:
    try:
        return cls(**{each.name: data[each.name] for each in fields(cls) if each.name in data})  # type: ignore[arg-type]
    except (TypeError, AttributeError, InvalidValueError) as error:
        raise DamagedDataError(f"a control message is not a {cls.__name__}: {error}") from None


def _check(name: str, value: Any, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise InvalidValueError(f"{name} must be a whole number of at least {least} but got {value!r}")
