"""One tensor of a run over its steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from watchglass.errors import UnknownNameError
from watchglass.records import Mode, TensorInfo
from watchglass.run.histograms import Histogram
from watchglass.run.statistics import EXACT, check_reduction
from watchglass.run.steps import StepNumbers
from watchglass.stats import Histograms, column, exact_reduction, of_array, quantiles
from watchglass.store import read_tensor

if TYPE_CHECKING:
    from watchglass.run.run import Run


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
        for row_id, value, _ in tables.scalars(global_step):
            if row_id == info.tensor_id:
                return value
        raise UnknownNameError(
            f"no value of {self.name} was recorded at {mode.name} step {step}; to keep whole tensors save it in a "
            f"collection, and for its statistics use reduction(); {self._where(mode, worker)}"
        )

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
        """One number at a step, from :data:`~watchglass.run.REDUCTIONS`; NaN where the tensor had no finite value.

        ``median``, ``prod``, ``abs_median``, ``abs_min`` and ``abs_prod`` are exact and recorded only where a
        collection asks for them; :meth:`quantiles` estimates a median. What was not recorded is computed from the
        whole tensor where that was kept.

        Raises:
            InvalidValueError: There is no such reduction.
            UnknownNameError: It was not captured at that step.
        """
        check_reduction(name)
        tables, tensor_id = self.run.tables(worker), self._info(worker).tensor_id
        global_step = self._global_step(step, mode, worker)
        if name in EXACT:
            which, finish = EXACT[name]
            found = tables.reductions(global_step).get((tensor_id, which))
            if found is not None:
                return float(finish(np.asarray(found)))
        else:
            rows = tables.statistics(global_step)
            chosen = np.flatnonzero(rows.ids == tensor_id)
            if len(chosen):
                return float(column(rows.values[chosen[0]], name))
        place = tables.raw(global_step).get(tensor_id)
        if place is not None:
            return _reduced(read_tensor(self.run.store, place.file, place.key), name)
        what = f"{name} of {self.name} was" if name in EXACT else f"statistics of {self.name} were"
        cure = f"; ask for it in a collection (reductions={name!r})" if name in EXACT else ""
        raise UnknownNameError(f"no {what} captured at {mode.name} step {step}{cure}; {self._where(mode, worker)}")

    def reductions(
        self, name: str, mode: Mode = Mode.TRAIN, worker: str | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The course of one number: steps int64[n], ascending, and values float64[n], as far as it was recorded.

        Rows that were written because of a finding are left out, as rules never see them.

        Raises:
            InvalidValueError: There is no such reduction.
        """
        check_reduction(name)
        tables, tensor_id = self.run.tables(worker), self._info(worker).tensor_id
        if name in EXACT:
            which, finish = EXACT[name]
            global_steps, values = tables.reduction_history(tensor_id, which)
            values = finish(values)
        else:
            global_steps, rows = tables.statistics_history(tensor_id)
            values = column(rows, name)
        steps, chosen = self.run.step_numbers(mode, worker).of_global(global_steps)
        return steps, values[chosen]

    def histogram(self, step: int, mode: Mode = Mode.TRAIN, worker: str | None = None) -> Histogram:
        """How the elements were spread at a step.

        Raises:
            UnknownNameError: No histogram was captured at that step.
        """
        rows = self.run.tables(worker).statistics(self._global_step(step, mode, worker))
        chosen = np.flatnonzero(rows.ids == self._info(worker).tensor_id)
        if rows.histograms is not None and len(chosen):
            found = rows.histograms.take(chosen).get()
            if found.seen[0] > 0:
                return Histogram.of(found, rows.values[chosen[0]])
        raise UnknownNameError(
            f"no histogram of {self.name} was captured at {mode.name} step {step}; ask for it in a collection "
            f"(save_histogram=True); {self._where(mode, worker)}"
        )

    def histograms(self, mode: Mode = Mode.TRAIN, worker: str | None = None) -> dict[int, Histogram]:
        """Step -> histogram, for the steps that have one."""
        steps, rows, histograms = self._histograms(mode, worker)
        return {int(step): Histogram.of(histograms.take([i]), rows[i]) for i, step in enumerate(steps)}

    def quantiles(
        self, q: ArrayLike, mode: Mode = Mode.TRAIN, worker: str | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The course of quantiles (0 to 1): steps int64[n], ascending, and values float64[n, len(q)].

        From histograms: right within a factor of 1.5, see :func:`watchglass.stats.quantiles`.

        Raises:
            InvalidValueError: A quantile is not from 0 to 1.
        """
        steps, rows, histograms = self._histograms(mode, worker)
        return steps, quantiles(histograms, rows, q)

    def _histograms(self, mode: Mode, worker: str | None) -> tuple[NDArray[np.int64], NDArray[np.float64], Histograms]:
        """Steps with a histogram, ascending, their rows of statistics and the histograms."""
        global_steps, rows, lazy = self.run.tables(worker).histogram_history(self._info(worker).tensor_id)
        found = lazy.get() if lazy is not None else Histograms.none(len(rows))
        known = np.flatnonzero(found.seen > 0)
        steps, chosen = self.run.step_numbers(mode, worker).of_global(global_steps[known])
        return steps, rows[known[chosen]], found.take(known[chosen])

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


def _reduced(array: NDArray[Any], name: str) -> float:
    """A reduction of a whole tensor."""
    if name in EXACT:
        which, finish = EXACT[name]
        return float(finish(np.asarray(exact_reduction(array, which))))
    return float(column(of_array(array), name))
