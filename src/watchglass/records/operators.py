"""The operators that ran in a window of profiled training steps, as a fact of the run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar

from watchglass.records.training import Fact

#: Operators of a window that are kept, by time: house. A model has some hundred.
MOST_OPERATORS = 500
#: Steps before a window whose times its steps are compared with: house.
COMPARED_STEPS = 32
#: Characters of a name that are kept: house. Kernels made from templates have names of some thousand.
_MOST_CHARACTERS = 200


@dataclass(frozen=True)
class OperatorTotals:
    """All calls of one operator, or of one kernel, in a window.

    Attributes:
        name: Its name, ``"aten::addmm"``; the name of a kernel where it ran on a device.
        calls: Number of calls.
        self_cpu_s: Seconds of the host in it, without the operators that it calls.
        cpu_s: The same with them.
        self_device_s: Seconds of the device in kernels that it launched itself; of a kernel, its own.
        device_s: The same with those of the operators that it calls.
        self_memory_bytes: Host memory that it allocated less what it freed, without the operators that it calls.
        self_device_memory_bytes: The same of device memory.
        on_device: Whether it is a kernel or a copy on a device, whose time an operator of the host has as well.
    """

    name: str
    calls: int
    self_cpu_s: float
    cpu_s: float
    self_device_s: float = 0.0
    device_s: float = 0.0
    self_memory_bytes: int = 0
    self_device_memory_bytes: int = 0
    on_device: bool = False


@dataclass(frozen=True)
class WindowCost:
    """What a window cost the training run, in seconds; NaN where unknown.

    Attributes:
        inside_s: Median time of its steps.
        outside_s: Median time of the steps before it, at most 32.
        begin_s: Time between two steps to begin it.
        end_s: Time between two steps to end it.
    """

    inside_s: float = math.nan
    outside_s: float = math.nan
    begin_s: float = math.nan
    end_s: float = math.nan


@dataclass(frozen=True)
class OperatorWindow:
    """A window of profiled training steps.

    Attributes:
        first_step: Its first TRAIN step.
        end_step: The TRAIN step after its last one.
        operators: By time without the operators that they call, longest first.
        cost: What it cost.
        omitted: Number of further operators, which took the least time.
        note: Why it has fewer steps than requested, as a sentence; "" if it has all.
        request: Number of the request of the attempt that it answers; None if the configuration names it.
    """

    KIND: ClassVar = "operator_window"

    first_step: int
    end_step: int
    operators: tuple[OperatorTotals, ...]
    cost: WindowCost = WindowCost()
    omitted: int = 0
    note: str = ""
    request: int | None = None

    def to_fact(self, source: str) -> Fact:
        """This as a fact of the run; ``source`` is the observer."""
        kept = self.operators[:MOST_OPERATORS]
        columns = {field.name: [getattr(each, field.name) for each in kept] for field in fields(OperatorTotals)}
        columns["name"] = [_shortened(each.name) for each in kept]
        known = {name: value for name, value in asdict(self.cost).items() if not math.isnan(value)}
        data = {"first_step": self.first_step, "end_step": self.end_step, "operators": columns, "cost": known}
        omitted = self.omitted + len(self.operators) - len(kept)
        return Fact(self.KIND, -1, source, {**data, "omitted": omitted, "note": self.note, "request": self.request})

    @classmethod
    def from_fact(cls, fact: Fact) -> OperatorWindow | None:
        """The record that :meth:`to_fact` wrote; None if the fact is not valid."""
        data = fact.data
        columns, cost, note = data.get("operators"), data.get("cost"), data.get("note", "")
        steps, request = [data.get("first_step"), data.get("end_step"), data.get("omitted", 0)], data.get("request")
        if not isinstance(columns, Mapping) or not isinstance(cost, Mapping) or not isinstance(note, str):
            return None
        if not all(type(step) is int for step in steps) or not 0 <= steps[0] < steps[1]:
            return None
        if request is not None and type(request) is not int:
            return None
        try:
            rows = zip(*(_column(columns, field.name) for field in fields(OperatorTotals)), strict=True)
            operators = tuple(OperatorTotals(*row) for row in rows)
            known = WindowCost(**{field.name: float(cost.get(field.name, math.nan)) for field in fields(WindowCost)})
        except (KeyError, TypeError, ValueError, OverflowError):
            return None
        return cls(steps[0], steps[1], operators, known, steps[2], note, request)


@dataclass(frozen=True)
class WindowRefusal:
    """A requested window that was not profiled.

    Attributes:
        first_step: Its first TRAIN step.
        end_step: The TRAIN step after its last one.
        reason: Why, as a clause without a full stop.
        request: As for :class:`OperatorWindow`.
    """

    KIND: ClassVar = "operator_window_refused"

    first_step: int
    end_step: int
    reason: str
    request: int | None = None

    def to_fact(self, source: str) -> Fact:
        """This as a fact of the run; ``source`` is the observer."""
        return Fact(self.KIND, -1, source, asdict(self))


_TYPES = {"name": str, "on_device": bool}


def _column(columns: Mapping[str, Any], name: str) -> list[Any]:
    column = columns[name]
    if not isinstance(column, list):
        raise TypeError(name)
    if name in _TYPES:
        if not all(type(each) is _TYPES[name] for each in column):
            raise TypeError(name)
        return column
    return [float(each) if name.endswith("_s") else int(each) for each in column]


def _shortened(name: str) -> str:
    return name if len(name) <= _MOST_CHARACTERS else name[: _MOST_CHARACTERS - 3] + "..."
