"""One tensor of a run over its steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from watchglass.errors import InvalidValueError, UnknownNameError
from watchglass.records import STATISTIC_FIELDS, Mode, TensorInfo
from watchglass.run.steps import StepNumbers
from watchglass.stats import DERIVED, column
from watchglass.store import read_tensor

if TYPE_CHECKING:
    from watchglass.run.run import Run

#: Reductions that can be asked for: stored and derived columns.
REDUCTIONS = (*STATISTIC_FIELDS, *DERIVED)


@dataclass(frozen=True)
class Tensor:
    """A named tensor, parameter, output or scalar of a run. Made by :meth:`Run.tensor`; sees what the run has read.

    Steps are steps of a mode, counted from 0 within the mode (``Mode.GLOBAL``: over all modes). ``worker`` is a name
    such as ``"worker_1"``, the one with the lowest rank where it is None.

    Attributes:
        run: The run.
        name: The tensor's name.
    """

    run: Run
    name: str

    @property
    def info(self) -> TensorInfo:
        """The catalog row: role, module, shape, dtype."""
        return self._info(None)

    def __repr__(self) -> str:
        info = self.info
        owner = f" of {info.module} ({info.module_type})" if info.module else ""
        shape = f"{info.dtype}{list(info.shape)}" if info.shape else info.dtype or "scalar"
        return f"Tensor({self.name!r}: {info.role.value}{owner}, {shape}, {len(self.steps())} TRAIN steps)"

    def steps(self, mode: Mode = Mode.TRAIN, worker: str | None = None) -> list[int]:
        """Complete steps of a mode at which anything of the tensor was recorded, ascending."""
        numbers = self.run.step_numbers(mode, worker)
        captured = self.run.tables(worker).captured(self._info(worker).tensor_id)
        return [step for step in numbers if numbers.global_step(step) in captured]

    def value(self, step: int, mode: Mode = Mode.TRAIN, worker: str | None = None) -> Any:
        """The value at a step: a float for a scalar, else the whole tensor as a NumPy array (read-only).

        bfloat16 comes as float32.

        Raises:
            UnknownNameError: Neither was recorded there; the message says at which steps it was.
        """
        info, tables = self._info(worker), self.run.tables(worker)
        global_step = self._global_step(step, mode, worker)
        place = tables.raw(global_step).get(info.tensor_id)
        if place is not None:
            return read_tensor(self.run.store, place.file, place.key)
        rows = [(value, weight) for row_id, value, weight in tables.scalars(global_step) if row_id == info.tensor_id]
        if not rows:
            raise UnknownNameError(
                f"no value of {self.name} was recorded at {mode.name} step {step}; to keep whole tensors save it in a "
                f"collection, and for its statistics use reduction(); {self._where(mode, worker)}"
            )
        return _mean(rows)

    def values(self, mode: Mode = Mode.TRAIN, worker: str | None = None) -> dict[int, Any]:
        """Step -> value as by :meth:`value`, for the steps that have one."""
        info, tables, numbers = self._info(worker), self.run.tables(worker), self.run.step_numbers(mode, worker)
        found: dict[int, Any] = {}
        for step in numbers:
            global_step = numbers.global_step(step)
            stored = info.tensor_id in tables.raw(global_step)
            if stored or any(row[0] == info.tensor_id for row in tables.scalars(global_step)):
                found[step] = self.value(step, mode, worker)
        return found

    def reduction(self, step: int, name: str, mode: Mode = Mode.TRAIN, worker: str | None = None) -> float:
        """One statistic at a step, from :data:`REDUCTIONS`; NaN where the tensor had no finite value.

        Raises:
            InvalidValueError: There is no such reduction.
            UnknownNameError: No statistics were captured at that step.
        """
        steps, values = self.reductions(name, mode, worker)
        index = int(np.searchsorted(steps, step))
        if index == len(steps) or steps[index] != step:
            raise UnknownNameError(
                f"no statistics of {self.name} were captured at {mode.name} step {step}; {self._where(mode, worker)}"
            )
        return float(values[index])

    def reductions(
        self, name: str, mode: Mode = Mode.TRAIN, worker: str | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The course of one statistic: steps int64[n], ascending, and values float64[n].

        Rows that were written because of a finding are left out, as rules never see them.

        Raises:
            InvalidValueError: There is no such reduction.
        """
        if name not in REDUCTIONS:
            raise InvalidValueError(f"a reduction must be one of {', '.join(REDUCTIONS)} but got {name!r}")
        global_steps, rows = self.run.tables(worker).statistics_history(self._info(worker).tensor_id)
        steps, chosen = self.run.step_numbers(mode, worker).of_global(global_steps)
        return steps, column(rows[chosen], name)

    def _info(self, worker: str | None) -> TensorInfo:
        info = self.run.tables(worker).catalog.by_name(self.name)
        if info is None:
            raise UnknownNameError(f"{worker or 'the run'} has no tensor {self.name!r}; ask tensor_names() for all")
        return info

    def _global_step(self, step: int, mode: Mode, worker: str | None) -> int:
        numbers: StepNumbers = self.run.step_numbers(mode, worker)
        if step not in numbers:
            raise UnknownNameError(f"{self.run.location} has no complete {mode.name} step {step}; it has {numbers}")
        return numbers.global_step(step)

    def _where(self, mode: Mode, worker: str | None) -> str:
        steps = self.steps(mode, worker)
        if not steps:
            return f"nothing of it was recorded at {mode.name} steps"
        shown = ", ".join(map(str, steps[:8])) + (f" and {len(steps) - 8} more" if len(steps) > 8 else "")
        return f"it was recorded at {shown}"


def _mean(rows: list[tuple[float, float]]) -> float:
    """Mean of a scalar that was saved several times in a step, by weight where weights are known."""
    total = sum(weight for _, weight in rows)
    if total > 0:
        return sum(value * weight for value, weight in rows) / total
    return sum(value for value, _ in rows) / len(rows)
