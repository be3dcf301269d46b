"""The time that a step spent in each module of a model, as a fact of the step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from watchglass.records.fact import DeclaredFact

_NUMBERS = ("calls", "forward_s", "backward_s")


@dataclass(frozen=True)
class ModuleSeconds:
    """One module in one step; times without those of its submodules, in seconds.

    Attributes:
        module: Its path; "" for the model.
        module_type: Its type.
        model: Number of its model.
        calls: Number of its calls.
        forward_s: Time of its forwards.
        backward_s: Time of its backwards.
    """

    module: str
    module_type: str
    model: int
    calls: int
    forward_s: float
    backward_s: float


class UntimedModules(DeclaredFact):
    """A model whose modules were to be timed and are not."""

    KIND = "modules_not_timed"

    model: str
    reason: str


class StepModules(DeclaredFact):
    """The modules of one step."""

    KIND = "module_times"

    modules: tuple[ModuleSeconds, ...]
    on_device: bool = False

    def to_data(self) -> dict[str, Any]:
        """The data of the fact."""
        columns = {name: [getattr(each, name) for each in self.modules] for name in ("module", "module_type", "model")}
        numbers = {name: [_short(getattr(each, name)) for each in self.modules] for name in _NUMBERS}
        return {**columns, **numbers, "on_device": self.on_device}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> StepModules | None:
        """What :meth:`to_data` wrote; None if the data are not valid."""
        try:
            texts = [_column(data, name, str) for name in ("module", "module_type")]
            whole = [_column(data, name, int) for name in ("model", "calls")]
            times = [[float(each) for each in data[name]] for name in ("forward_s", "backward_s")]
            rows = zip(*texts, *whole, *times, strict=True)
            modules = tuple(ModuleSeconds(*row) for row in rows)
        except (KeyError, TypeError, ValueError, OverflowError):
            return None
        if not all(math.isfinite(each.forward_s) and math.isfinite(each.backward_s) for each in modules):
            return None
        return cls(modules, data.get("on_device") is True)


def _short(number: float) -> float:
    return round(number, 9)


def _column(data: Mapping[str, Any], name: str, kind: type) -> Sequence[Any]:
    column = data[name]
    if not isinstance(column, list) or not all(type(each) is kind for each in column):
        raise TypeError(name)
    return column
