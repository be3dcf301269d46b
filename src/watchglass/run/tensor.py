"""One tensor of a run over its steps."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from importlib import import_module
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from watchglass.errors import InvalidValueError, MissingExtraError, StepNotRecordedError
from watchglass.records import (
    RAW,
    REDUCTIONS,
    SCALARS,
    STATISTIC_FIELDS,
    UNITS,
    Mode,
    RowKind,
    TensorInfo,
    UnitKind,
    facts,
    read_facts,
)  # fmt: skip
from watchglass.run.markup import page
from watchglass.run.numbering.steps import Range, half_open
from watchglass.run.run_records import RunRecords
from watchglass.run.waiting import locate, reading_again
from watchglass.stats import Histograms, column, exact_reduction, of_array, quantiles, stored_fields
from watchglass.store import StoredTensor, as_numbers
from watchglass.tables import (
    EXACT,
    Histogram,
    WorkerTables,
    as_array,
    check_reduction,
    last_index_of_each,
    stored_tensor,
)

#: Reductions shown in a notebook, where they were captured.
_SHOWN = ("mean", "std", "min", "max", "l2", "zero_ratio")


_Given = ParamSpec("_Given")
_Found = TypeVar("_Found")


def reads_again(method: Callable[Concatenate[Tensor, _Given], _Found]) -> Callable[Concatenate[Tensor, _Given], _Found]:
    """A method that is repeated once, after a refresh, where the run was compacted since it was read."""

    @wraps(method)
    def read(tensor: Tensor, /, *args: _Given.args, **kwargs: _Given.kwargs) -> _Found:
        return reading_again(tensor.run, lambda: method(tensor, *args, **kwargs))

    return read


@dataclass(frozen=True)
class Tensor:
    """A named tensor, parameter, output or scalar of a run. Made by :meth:`Run.tensor`; sees what the run has read.

    Steps are steps of a mode, counted from 0 within the mode (``Mode.GLOBAL``: over all modes). ``worker`` is a name
    such as ``"worker_1"``, the one with the lowest rank where it is None.

    Methods that take a step raise :class:`StepNotReadyError` for a step that is still to come, :class:`EndOfRunError`
    for one after the end of the run, and :class:`StepNotRecordedError` for one that was not recorded. All three are
    :class:`UnknownNameError`.

    Attributes:
        run: The run.
        name: The tensor's name.
    """

    run: RunRecords
    name: str

    @property
    def info(self) -> TensorInfo:
        """The catalog row: role, module, shape, dtype."""
        return self.run.worker().info(self.name)

    def __repr__(self) -> str:
        info = self.info
        owner = f" of {info.module} ({info.module_type})" if info.module else ""
        shape = f"{info.dtype}{list(info.shape)}" if info.shape else info.dtype or "scalar"
        return f"Tensor({self.name!r}: {info.role.value}{owner}, {shape}, {len(self.steps())} TRAIN steps)"

    def _repr_html_(self) -> str:
        info, steps = self.info, self.steps()
        owner = f", of {info.module} ({info.module_type})" if info.module else ""
        note = f"{info.role.value}{owner}, {info.dtype}{list(info.shape) if info.shape else ''}"
        rows: list[tuple[object, ...]] = []
        for name in _SHOWN:
            found, values = self.reductions(name)
            if len(found):
                ends = float(values[0]), float(values.min()), float(values.max()), float(values[-1])
                rows.append((name, *ends))
        header = ("", "first", "least", "greatest", "last")
        if not rows and steps:
            return page(self.name, note, ("step", "value"), [(step, self._shown(step)) for step in steps[-3:]])
        more = f"captured at {len(steps)} TRAIN steps, {steps[0]} to {steps[-1]}" if steps else "no TRAIN steps"
        return page(self.name, note, header, rows, more)

    @reads_again
    def steps(self, mode: Mode | str = Mode.TRAIN, worker: str | None = None) -> list[int]:
        """Complete steps of a mode at which anything of the tensor was recorded, ascending; see :meth:`Run.steps`."""
        found: list[int] = []

        def captured(tables: WorkerTables, tensor_id: int) -> tuple[NDArray[np.uint64]]:
            numbers = tables.captured(tensor_id)
            return (np.fromiter(sorted(numbers), np.uint64, len(numbers)),)

        for steps, _, _ in self.run.worker(worker).pieces(self.name, Mode.of(mode), captured):
            found += steps.tolist()
        return found

    def prev_steps(
        self, step: int, n: int | None = None, mode: Mode | str = Mode.TRAIN, worker: str | None = None
    ) -> list[int]:
        """The last ``n`` steps up to and including ``step`` at which it was recorded, ascending; all if n is None."""
        steps = self.steps(mode, worker)
        found = steps[: bisect_right(steps, step)]
        return found if n is None else found[max(0, len(found) - n) :]

    @reads_again
    def shape(
        self, step: int | None = None, mode: Mode | str = Mode.TRAIN, worker: str | None = None
    ) -> tuple[int, ...]:
        """Its shape; ``()`` for a scalar.

        Args:
            step: The shape that a collection with ``save_shape`` had recorded at that step; the one first seen where
                it had none recorded, and where ``step`` is None.
            mode: Of which steps.
            worker: Whose tensor.

        Raises:
            StepNotReadyError, StepNotRecordedError, EndOfRunError: There is no such complete step.
        """
        info = self.run.worker(worker).info(self.name)
        if step is None:
            return info.shape
        tables, number, row = self._recorded(step, Mode.of(mode), worker)
        shapes = {each.tensor: each.shape for each in read_facts(tables.facts(number), facts.TensorShape)}
        return shapes.get(self.name, row.shape)

    def value(
        self, step: int, mode: Mode | str = Mode.TRAIN, worker: str | None = None, *, as_float32: bool = False
    ) -> Any:
        """The value at a step: a float for a scalar, else the whole tensor as a NumPy array in its own dtype.

        Of a run in a local folder the array is a private mapping of a file: the caller may change it, which does not
        change the run. It stays valid when the run is removed.

        Args:
            step: The step.
            mode: Of which steps.
            worker: Whose tensor.
            as_float32: Give bfloat16 and float8, which NumPy lacks, as float32, which holds them exactly; else they
                come with the dtypes of ml-dtypes.

        Raises:
            StepNotRecordedError: Neither was recorded there, or it was removed since; the message names the steps that
                have one.
            StepNotReadyError, EndOfRunError: There is no such complete step.
            MissingExtraError: The dtype needs ml-dtypes, which is not installed.
        """
        found = self._value(step, Mode.of(mode), worker)
        if not isinstance(found, StoredTensor):
            return found
        return as_numbers(found) if as_float32 else as_array(found)

    def torch(self, step: int, mode: Mode | str = Mode.TRAIN, worker: str | None = None) -> Any:
        """The whole tensor at a step as a ``torch.Tensor`` on the CPU, over the same memory as :meth:`value`.

        Raises:
            MissingExtraError: torch is not installed.
            InvalidValueError: The installed torch lacks the dtype.
            Others as :meth:`value`.
        """
        found = self._value(step, Mode.of(mode), worker)
        try:
            torch = import_module("torch")
        except ImportError:
            raise MissingExtraError("torch tensors need torch, which is not installed: pip install torch") from None
        stored = found if isinstance(found, StoredTensor) else StoredTensor(np.array(found))
        elements, name = stored.elements, stored.dtype or stored.elements.dtype.name
        dtype = getattr(torch, name, None)
        if not isinstance(dtype, torch.dtype):
            raise InvalidValueError(f"torch {torch.__version__} has no dtype {name}; take the tensor with value()")
        if not elements.size:
            return torch.empty(elements.shape, dtype=dtype)  # an empty array has no memory to share
        return torch.frombuffer(elements.reshape(-1).data, dtype=dtype).reshape(elements.shape)

    @reads_again
    def values(
        self, mode: Mode | str = Mode.TRAIN, worker: str | None = None, *, as_float32: bool = False
    ) -> dict[int, Any]:
        """Step -> value as by :meth:`value`, for the steps that have one; what was removed since is omitted."""
        source, mode = self.run.worker(worker), Mode.of(mode)
        found: dict[int, Any] = {}
        for steps, index, (_, values, _) in source.pieces(self.name, mode, WorkerTables.scalar_history):
            found.update(zip(steps.tolist(), values[index].tolist(), strict=True))
        numbers = source.numbers(mode)
        for step in numbers:
            place = numbers.place(step)
            tables = source.attempts[place.attempt]
            info = tables.catalog.by_name(self.name)
            if info is not None and _of(tables, RAW, place.global_step, info):
                try:
                    found[step] = self.value(step, mode, worker, as_float32=as_float32)
                except StepNotRecordedError:
                    found.pop(step, None)
        return dict(sorted(found.items()))

    @reads_again
    def reduction(self, step: int, name: str, mode: Mode | str = Mode.TRAIN, worker: str | None = None) -> float:
        """One number at a step, from :data:`~watchglass.tables.REDUCTIONS`; NaN where the tensor had no finite value.

        ``median``, ``prod``, ``abs_median``, ``abs_min`` and ``abs_prod`` are exact and recorded only where a
        collection requests them; :meth:`quantiles` estimates a median. Where one was not recorded, it is computed from
        the whole tensor, if that was recorded.

        Raises:
            InvalidValueError: There is no such reduction.
            StepNotRecordedError: It was not captured at that step.
            StepNotReadyError, EndOfRunError: There is no such complete step.
        """
        check_reduction(name)
        mode = Mode.of(mode)
        tables, number, info = self._recorded(step, mode, worker)
        if name in EXACT:
            which, finish = EXACT[name]
            for row in _of(tables, REDUCTIONS, number, info):
                if row.reduction is which:
                    return float(finish(np.asarray(row.value)))
        else:
            rows = tables.statistics.at(number)
            chosen = np.flatnonzero(rows.ids == info.tensor_id)
            if len(chosen):
                return float(column(rows.values[chosen[0]], name))
        for place in _of(tables, RAW, number, info):
            return _reduced(as_numbers(stored_tensor(self.run.store, place, self.name, f"step {step}")), name)
        what = f"{name} of {self.name} was" if name in EXACT else f"statistics of {self.name} were"
        cure = f"; to record it set reductions={name!r} in a collection" if name in EXACT else ""
        raise StepNotRecordedError(f"no {what} captured at {mode.name} step {step}{cure}; {self._where(mode, worker)}")

    @reads_again
    def reductions(
        self, name: str, mode: Mode | str = Mode.TRAIN, worker: str | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The course of one number: steps int64[n], ascending, and values float64[n], as far as it was recorded.

        Rows that were written because of a finding are omitted, as rules never see them.

        Raises:
            InvalidValueError: There is no such reduction.
        """
        check_reduction(name)
        exact, stored = EXACT.get(name), stored_fields([name])

        def read(tables: WorkerTables, tensor_id: int) -> tuple[NDArray[np.uint64], NDArray[np.float64]]:
            if exact is None:
                steps, rows, _ = tables.statistics.of_tensor(tensor_id, fields=stored)
                return steps, column(rows, name, stored)
            steps, values = tables.reduction_history(tensor_id, exact[0])
            return steps, exact[1](values)

        return self.run.worker(worker).history(self.name, Mode.of(mode), read)

    @reads_again
    def inactive_units(
        self, mode: Mode | str = Mode.TRAIN, worker: str | None = None, steps: tuple[int, int] | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The share of its units that were zero on every element of a step: of outputs of ReLU and its like.

        Args:
            mode: Of which steps.
            worker: Name of the worker; the first one if None.
            steps: Only these, half-open.

        Returns:
            Steps int64[n], ascending, and shares float64[n] from 0 to 1; none where its units were not recorded.
        """

        def read(tables: WorkerTables, tensor_id: int) -> tuple[NDArray[np.uint64], NDArray[Any]]:
            rows = tables.log(UNITS).of_tensor(tensor_id)
            rows = rows[rows["kind"] == UnitKind.INACTIVE]
            rows = rows[last_index_of_each(rows["global_step"])]
            return rows["global_step"], rows["flags"]

        at, shares = [np.empty(0, np.int64)], [np.empty(0)]
        for numbers, index, (_, flags) in self.run.worker(worker).pieces(self.name, Mode.of(mode), read):
            chosen = slice(None) if steps is None else slice(*np.searchsorted(numbers, steps).tolist())
            at.append(numbers[chosen])
            shares.append(np.array([np.mean(each) if len(each) else np.nan for each in flags[index[chosen]]]))
        found = np.concatenate(at)
        order = last_index_of_each(found)
        return found[order], np.concatenate(shares)[order]

    @reads_again
    def histogram(self, step: int, mode: Mode | str = Mode.TRAIN, worker: str | None = None) -> Histogram:
        """How the elements were spread at a step.

        Raises:
            StepNotRecordedError: No histogram was captured at that step.
            StepNotReadyError, EndOfRunError: There is no such complete step.
        """
        mode = Mode.of(mode)
        tables, number, info = self._recorded(step, mode, worker)
        rows = tables.statistics.at(number)
        chosen = np.flatnonzero(rows.ids == info.tensor_id)
        if rows.histograms is not None and len(chosen):
            found = rows.histograms.take(chosen).get()
            if found.seen[0] > 0:
                return Histogram.of(found, rows.values[chosen[0]])
        raise StepNotRecordedError(
            f"no histogram of {self.name} was captured at {mode.name} step {step}; to record it set "
            f"save_histogram=True in a collection; {self._where(mode, worker)}"
        )

    def histograms(self, mode: Mode | str = Mode.TRAIN, worker: str | None = None) -> dict[int, Histogram]:
        """Step -> histogram, for the steps that have one."""
        steps, rows, histograms = self._histograms(Mode.of(mode), worker)
        return {int(step): Histogram.of(histograms.take([i]), rows[i]) for i, step in enumerate(steps)}

    def quantiles(
        self, q: ArrayLike, mode: Mode | str = Mode.TRAIN, worker: str | None = None, *, steps: Range | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The course of quantiles (0 to 1): steps int64[n], ascending, and values float64[n, len(q)].

        From histograms: right within a factor of 1.5, see :func:`watchglass.stats.quantiles`.

        Args:
            q: The quantiles.
            mode: Of which steps.
            worker: Whose.
            steps: Only these steps of the mode, as ``range(0, 100)`` or ``(0, 100)``.

        Raises:
            InvalidValueError: A quantile is not from 0 to 1, or the range is invalid.
        """
        wanted = half_open(steps)
        found, rows, histograms = self._histograms(Mode.of(mode), worker)
        if wanted is not None:
            within = np.flatnonzero((found >= wanted[0]) & (found < wanted[1]))
            found, rows, histograms = found[within], rows[within], histograms.take(within)
        return found, quantiles(histograms, rows, q)

    @reads_again
    def _histograms(self, mode: Mode, worker: str | None) -> tuple[NDArray[np.int64], NDArray[np.float64], Histograms]:
        """Steps with a histogram, ascending, their rows of statistics and the histograms."""
        found_steps, found = [np.empty(0, np.int64)], [np.empty((0, len(STATISTIC_FIELDS)))]
        parts: list[Histograms] = []
        for steps, index, (_, rows, lazy) in self.run.worker(worker).pieces(
            self.name, mode, lambda tables, tensor_id: tables.statistics.of_tensor(tensor_id)
        ):
            histograms = (lazy.get() if lazy is not None else Histograms.none(len(rows))).take(index)
            known = np.flatnonzero(histograms.seen > 0)
            found_steps.append(steps[known])
            found.append(rows[index[known]])
            parts.append(histograms.take(known))
        return np.concatenate(found_steps), np.concatenate(found), Histograms.concatenate(parts)

    def _recorded(self, step: int, mode: Mode, worker: str | None) -> tuple[WorkerTables, int, TensorInfo]:
        """The tables that hold a complete step, its number there, and the tensor's catalog row then.

        Raises as :func:`locate`.
        """
        source = self.run.worker(worker)
        place = locate(self.run, source, step, mode)
        tables = source.attempts[place.attempt]
        return tables, place.global_step, tables.catalog.by_name(self.name) or source.info(self.name)

    def _value(self, step: int, mode: Mode, worker: str | None) -> float | StoredTensor:
        tables, number, info = self._recorded(step, Mode.of(mode), worker)
        for place in _of(tables, RAW, number, info):
            return stored_tensor(self.run.store, place, self.name, f"{mode.name} step {step}")
        for row in _of(tables, SCALARS, number, info):
            return float(row.value)
        raise StepNotRecordedError(
            f"no value of {self.name} was recorded at {mode.name} step {step}; to keep whole tensors save it in a "
            f"collection, and for its statistics use reduction(); {self._where(mode, worker)}"
        )

    def _shown(self, step: int) -> object:
        found = self._value(step, Mode.TRAIN, None)
        return found if isinstance(found, float) else f"{found.elements.shape}"

    def _where(self, mode: Mode, worker: str | None) -> str:
        steps = self.steps(mode, worker)
        if not steps:
            return f"nothing of it was recorded at {mode.name} steps"
        shown = ", ".join(map(str, steps[:8])) + (f" and {len(steps) - 8} more" if len(steps) > 8 else "")
        return f"it was recorded at {shown}"


def _of(tables: WorkerTables, kind: RowKind, global_step: int, info: TensorInfo) -> list[Any]:
    """Rows of a kind at a step of an attempt that are about a tensor."""
    return [row for row in tables.rows(kind, global_step) if row.tensor.tensor_id == info.tensor_id]


def _reduced(array: NDArray[Any], name: str) -> float:
    """A reduction of a whole tensor."""
    if name in EXACT:
        which, finish = EXACT[name]
        return float(finish(np.asarray(exact_reduction(array, which))))
    return float(column(of_array(array), name))
