"""Statistics of values that do not live on a host: computed where they are, so that few numbers leave the device.

One description serves every array library: it is written in the few operations of :class:`Primitives`. Inside the twin
of a compiled step, :func:`reduced_values` replaces the values that are there for their statistics alone; outside of
compiled steps, arrays on a device are reduced the same way. Up to 65,536 elements an array goes to the host as it is,
since its histogram needs all of them, and the native kernel computes everything there.

Of a larger one with n elements counts, minima and maxima equal those of the native kernel, and so does the histogram,
which looks at the elements that the kernel draws with the seed :data:`SEED`. Sums are of the dtype in which elements
are computed, float32 for most: ``sum`` and ``abs_sum`` are off by at most ``1e-5 * abs_sum``, ``l2`` by ``1e-5`` of
itself, ``m2`` (in two passes) by ``1e-5 * m2 + 1e-12 * l2**2``, where the library adds up in blocks or as a tree, as
XLA and TensorFlow do.
Elements of 64 bits are rounded to float32 where the library has no float64.
"""

from __future__ import annotations

import functools
import math
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from watchglass.capture.arrays import (
    BEYOND,
    ArrayInfo,
    Arrays,
    DeferredNumbers,
    Elements,
    NoValuesError,
    OwnArray,
    Read,
    arrays_of,
    summaries,
)
from watchglass.capture.compiled.collecting import Collected, ValuePart, Values
from watchglass.capture.facts.first_bad import Look
from watchglass.capture.facts.input_sketches import positions, token_positions
from watchglass.capture.facts.update_samples import ELEMENTS
from watchglass.capture.planning.cost import Cost
from watchglass.capture.saving.module_tensors import limits_of
from watchglass.records import ModuleKind, Role
from watchglass.stats import DTYPE_CODES, SAMPLED_ABOVE, Histograms, Rows, empty, sample_sizes

#: Draws the elements that histograms look at: a compiled step has them as constants.
SEED = 0

#: What is computed in float64, as the native kernel does, where the library has that.
_WIDE = frozenset(("float64", "int64", "int32", "uint32", "uint64", "complex64", "complex128"))

#: By dtype of sums, the magnitude beyond which elements are divided by a power of two so that their squares neither
#: overflow nor vanish, and that; below the inverse of it they are multiplied.
_LEVELS = {"float32": (2.0**32, 2.0**80), "float64": (2.0**250, 2.0**600)}

#: Parts of a step that may be reduced, and the roles under which their values are saved. Those after the update
#: are reduced to the statistics of the change.
_ROLES = {
    ValuePart.GRADIENT: (Role.GRADIENT,),
    ValuePart.BEFORE: (Role.WEIGHT, Role.BIAS, Role.UPDATE),
    ValuePart.AFTER: (Role.UPDATE,),
    ValuePart.STATE: (Role.OPTIMIZER_STATE,),
    ValuePart.MOMENT: (),
    ValuePart.INPUT: (Role.INPUT,),
    ValuePart.OUTPUT: (Role.OUTPUT,),
}
#: Those of parameters: each is read in one go for all parameters of a model.
_OF_PARAMETERS = frozenset((ValuePart.GRADIENT, ValuePart.BEFORE, ValuePart.AFTER))
#: Those of which samples make facts about updates.
_SAMPLED = _OF_PARAMETERS | {ValuePart.MOMENT}
#: Elements of a weight, in its first rows, of which the symmetry is computed.
_MOST_SYMMETRIC = 1 << 20


class Primitives(NamedTuple):
    """The operations of an array library in which reductions are written, inside compiled functions and outside."""

    dense: Callable[[Any], Any]  #: An array that holds all its elements.
    cast: Callable[[Any, str], Any]  #: To the dtype of a name, or the widest of its kind that there is.
    magnitude: Callable[[Any], Any]  #: Absolute values, real ones.
    where: Callable[[Any, Any, Any], Any]
    is_finite: Callable[[Any], Any]
    count: Callable[[Any], Any]  #: How many are true.
    least: Callable[[Any], Any]  #: The minimum of all elements; positive infinity of none.
    greatest: Callable[[Any], Any]  #: The maximum; negative infinity of none.
    total: Callable[[Any, Sequence[int] | None], Any]  #: The sum over some axes, or all.
    stack: Callable[[Sequence[Any]], Any]  #: One array with one axis of numbers.
    emptied: Callable[[Any], Any]  #: An array without elements: the shape of this one after an axis of length 0.
    drawn: Callable[[Any], Any]  #: The elements that a histogram looks at; after them others may follow.
    at: Callable[[Any, NDArray[np.int64]], Any]  #: Elements at flat positions.
    units: Callable[[Any, int], Any]  #: An array with two axes: a row for each place in an axis.


def reduced(of: Primitives, value: Any, before: Any = None, most: int = SAMPLED_ABOVE) -> dict[str, Any]:
    """What :class:`Reduced` is made of, from an array or from its change.

    Args:
        of: The operations.
        value: The array.
        before: Its older value; then the statistics are of the difference.
        most: Number of elements up to which the array itself is kept.
    """
    value = of.dense(value)
    size = _size_of(value)
    older = {} if before is None else {"before": of.dense(before)}
    if size is not None and size <= most:
        return {"whole": value, **older}
    counts, sums = _statistics(of, _numbers(of, value, older.get("before")))
    drawn = {name: of.drawn(each) for name, each in {"drawn": value, **older}.items()}
    return {"like": of.emptied(value), "counts": counts, "sums": sums, **drawn}


def _numbers(of: Primitives, value: Any, before: Any) -> Any:
    """The numbers whose statistics are computed, as :func:`watchglass.stats.numbers` gives them."""
    name = dtype_of(value)
    wide = "float64" if name in _WIDE else "float32"
    if "complex" in name:
        return of.cast(of.magnitude(value if before is None else value - before), wide)
    return of.cast(value, wide) if before is None else of.cast(value, wide) - of.cast(before, wide)


def _statistics(of: Primitives, values: Any) -> tuple[Any, Any]:
    """Counts of NaN, of both infinities and of zeros; minimum, maximum, and sums of scaled elements."""
    name = dtype_of(values)
    finite = of.is_finite(values)
    kinds = (values != values, values == math.inf, values == -math.inf, values == 0)
    low = of.least(of.where(finite, values, math.inf))
    high = of.greatest(of.where(finite, values, -math.inf))
    number = of.cast(of.count(finite), name)
    largest, one = of.where(-low > high, -low, high), number * 0 + 1
    limit, step = _LEVELS[name]
    factor = of.where(largest > limit, one / step, of.where(largest < 1 / limit, one * step, one))
    scaled = of.where(finite, values, 0.0) * factor
    total, squares = of.total(scaled, None), of.total(scaled * scaled, None)
    number = of.where(number > 0, number, 1.0)
    # The mean is rounded: what it misses shows as a sum that is not zero.
    centred = of.where(finite, scaled - total / number, 0.0)
    missed = of.total(centred, None)
    spread = of.total(centred * centred, None) - missed * missed / number
    return of.stack(list(map(of.count, kinds))), of.stack(
        [low, high, total, of.total(of.magnitude(scaled), None), spread, squares]
    )


def reduced_units(of: Primitives, value: Any, axis: int, limits: tuple[float, float] | None) -> Any:
    """Which units along an axis are all zero, or with limits lie beyond them, see ``Arrays.units``."""
    values = of.cast(value, "float32")
    others = [each for each in range(len(value.shape)) if each != axis]
    if limits is None:
        return of.total(of.cast(values != 0, "float32"), others) == 0
    outside = of.cast((values < limits[0]) | (values > limits[1]), "float32")
    beyond, within = of.total(outside, others), of.total(1.0 - outside, others)
    return beyond >= BEYOND * (beyond + within)


def reduced_symmetry(of: Primitives, value: Any, axis: int) -> Any:
    """The three numbers of :func:`~watchglass.capture.facts.initial_weights.symmetry_of`, of a weight's first units."""
    rows = of.units(of.cast(value, "float32"), axis)
    rows = rows[: max(2, _MOST_SYMMETRIC // max(1, int(rows.shape[1])))]
    length, width = map(int, rows.shape)
    unlike = of.cast(rows != rows[:1], "float32")
    same = of.total(of.cast(of.total(unlike, [1]) == 0, "float32"), None)
    constant = of.cast(of.total(of.cast(rows != rows[:1, :1], "float32"), None) == 0, "float32")
    centred = rows - of.total(rows, None) / (length * width)
    variance = of.total(centred * centred, None) / (length * width)
    return of.stack([(same - 1) / max(1, length - 1), constant, variance**0.5])


def symmetry_on_device(value: Any, axis: int) -> Elements | None:
    """These numbers where a device has them, or computes them now; None for a weight on the host."""
    if isinstance(value, Reduced):
        return value.read("symmetry") if value.whole is None else symmetry_on_device(value.whole, axis)
    arrays = arrays_of(value)
    if not isinstance(arrays, ReducingArrays) or arrays.on_host(value):
        return None
    return arrays.take(arrays.compute(reduced_symmetry, (value,), (axis,)))


class Reduced(OwnArray):
    """In place of an array: the statistics that a device has computed of it, and some of its elements.

    Args:
        parts: What :func:`reduced` has made, computed: the array itself and its older value; or an empty one of its
            shape and dtype, counts, sums, elements, and further numbers.
        scale: Everything is divided by this number.
    """

    def __init__(self, parts: Mapping[str, Any], scale: float | None = None) -> None:
        self.parts, self.scale = parts, scale
        like = parts.get("like")
        self.dtype = (self.whole if like is None else like).dtype
        self.shape = tuple(map(int, self.whole.shape if like is None else like.shape[1:]))

    @property
    def reader(self) -> Arrays:
        """Reads it."""
        return REDUCED

    @property
    def whole(self) -> Any:
        """The array itself where it is there, else None."""
        return self.parts.get("whole")

    @property
    def nbytes(self) -> int:
        """Bytes that are copied to the host, about."""
        about = REDUCED.describe(self)
        size = sample_sizes(np.array([math.prod(self.shape)]), SEED)[0]
        return int(size) * about.itemsize * (2 if "before" in self.parts else 1)

    def read(self, name: str) -> Elements | None:
        """A part; None where there is none."""
        value = self.parts.get(name)
        return None if value is None else arrays_of(value).take(value)

    def divided(self, elements: Elements) -> Elements:
        """Elements of the array, divided by the scale."""
        scale = self.scale
        return elements if scale is None else Elements(elements.computed(lambda found: found / scale))

    def look(self) -> Look:
        """The extremes; waits for the device."""
        row = self.summary(histograms=False)[0][0]
        _, nan, above, below, _, low, high, *_ = row.tolist()
        if nan:
            return Look(math.nan, math.nan)
        if row[0] == 0:
            return Look(0.0, 0.0)
        low, high = -math.inf if below else low, math.inf if above else high
        return Look(low if low == low else high, high if high == high else low)

    def summary(self, *, histograms: bool) -> tuple[Rows, Histograms | None]:
        """Its row, float64[1, 11], and its histogram; waits for the device."""
        drawn = self.read("drawn")
        taken, older = self.read("whole") if drawn is None else drawn, self.read("before")
        if taken is None or not (drawn is None or histograms):
            return self._row(), None
        size = int(sample_sizes(np.array([math.prod(self.shape)]), SEED)[0])
        elements = [_first(taken, size)], None if older is None else [_first(older, size)]
        rows, binned = summaries(Read(*elements, self.scale, histograms, SEED))
        return (rows if drawn is None else self._row()), binned

    def _row(self) -> Rows:
        counts, sums = (
            np.zeros(0) if found is None else found.numbers().astype(np.float64)
            for found in (self.read("counts"), self.read("sums"))
        )
        count = math.prod(self.shape)
        low, high, total, absolute, spread, squares = sums
        row = empty(1)
        row[0, :5] = count, *counts
        if count > counts[:3].sum():
            scale, largest = 1.0 if self.scale is None else float(self.scale), max(abs(low), abs(high))
            limit, step = _LEVELS[dtype_of(self.parts["sums"])]
            factor = (step if largest > limit else 1 / step if largest < 1 / limit else 1.0) / scale
            size = abs(factor)
            with np.errstate(over="ignore", under="ignore"):
                row[0, 5:7] = sorted((low / scale, high / scale))
                row[0, 7:] = total * factor, absolute * size, max(spread, 0.0) * size * size, squares**0.5 * size
        return row


def _first(elements: Elements, size: int) -> Elements:
    return Elements(elements.received().reshape(-1)[:size], elements.dtype)


class ReducedArrays(Arrays):
    """Reads what devices have reduced."""

    def is_array(self, value: object) -> bool:
        """Whether it is such a value."""
        return isinstance(value, Reduced)

    def describe(self, array: Reduced) -> ArrayInfo:
        """That of the array that it stands for."""
        like = array.parts.get("like", array.whole)
        return arrays_of(like).describe(like)._replace(shape=array.shape)

    def take(self, array: Reduced, index: NDArray[np.int64] | None = None) -> Elements:
        """Elements of a small array, or those that were taken on the device.

        Raises:
            NoValuesError: Others are wanted.
        """
        if array.whole is not None:
            return array.divided(arrays_of(array.whole).take(array.whole, index))
        for name, taken in _samples(array.shape).items():
            if index is not None and np.array_equal(index, taken()):
                found = array.read(name)
                if found is not None:
                    return array.divided(found)
        raise NoValuesError("as its compiled step returns its statistics alone")

    def statistics(self, read: Read, cost: Cost) -> tuple[Any, Any]:
        """They are there; of changes, too."""
        found = [functools.partial(each.summary, histograms=read.histograms) for each in read.arrays]
        return _deferred(found, sum(each.nbytes for each in read.arrays), histograms=read.histograms)

    def units(self, array: Reduced, axis: int, limits: tuple[float, float] | None) -> Any:
        """They are there."""
        if array.whole is not None:
            return arrays_of(array.whole).units(array.whole, axis, limits)
        found = array.read("units")
        return None if found is None else found.computed(np.asarray)


REDUCED = ReducedArrays()


class ReducingArrays(Arrays):
    """Arrays of a framework with compiled steps: those on a device are reduced there, also outside of such steps."""

    #: The operations of its library.
    primitives: Primitives

    @abstractmethod
    def compute(self, function: Callable[..., Any], arrays: tuple[Any, ...], settings: tuple[Any, ...]) -> Any:
        """Compute ``function(primitives, *arrays, *settings)`` now, on the device of the arrays; nothing waits."""

    def statistics(self, read: Read, cost: Cost) -> tuple[Any, Any]:
        """By the native kernel on the host; on a device by :func:`reduced`."""
        if all(map(self.on_host, read.arrays)):
            return super().statistics(read, cost)
        found: list[Callable[[], tuple[Rows, Any]]] = []
        size = 0
        for index, array in enumerate(read.arrays):
            before = None if read.before is None else read.before[index]
            about = self.describe(array)
            if math.prod(about.shape) > SAMPLED_ABOVE and about.dtype in DTYPE_CODES:
                reduction = Reduced(self.compute(reduced, (array, before), ()), read.scale)
                found.append(functools.partial(reduction.summary, histograms=read.histograms))
                size += reduction.nbytes
            else:
                older = None if before is None else [self.take(before)]
                taken = Read([self.take(array)], older, read.scale, read.histograms, SEED)
                found.append(functools.partial(summaries, taken))
                size += about.nbytes
        return _deferred(found, size, histograms=read.histograms)

    def units(self, array: Any, axis: int, limits: tuple[float, float] | None) -> Any:
        """On the device of the array."""
        shape = self.describe(array).shape
        if self.on_host(array) or not math.prod(shape):
            return super().units(array, axis, limits)
        found = self.compute(reduced_units, (array,), (axis % len(shape), limits))
        return self.take(found).computed(np.asarray)


def _deferred(
    found: Sequence[Callable[[], tuple[Rows, Any]]], nbytes: int, *, histograms: bool
) -> tuple[DeferredNumbers, DeferredNumbers | None]:
    """Readbacks of rows of statistics, float64[n, 11], and of histograms (or None)."""

    @functools.cache
    def read() -> list[tuple[Rows, Any]]:
        return [each() for each in found]

    rows = DeferredNumbers(lambda: np.concatenate([row for row, _ in read()]), nbytes)
    if not histograms:
        return rows, None
    return rows, DeferredNumbers(lambda: Histograms.concatenate([binned for _, binned in read()]))


def _samples(shape: tuple[int, ...]) -> dict[str, Callable[[], NDArray[np.int64]]]:
    """Samples of parameters and gradients that facts are made of, by name."""
    found: dict[str, Callable[[], NDArray[np.int64]]] = {"some": lambda: positions(math.prod(shape), ELEMENTS)}
    if len(shape) == 2:
        found["tokens"] = lambda: token_positions(*shape)
    return found


def reduced_values(
    of: Primitives, values: Values, known: Mapping[str, Collected], takes_elements: Callable[[Role], bool],
    kept: Collection[ValuePart] = (), most: int = SAMPLED_ABOVE,
) -> Values:  # fmt: skip
    """The values of a step with those reduced of which nothing else than statistics is wanted. While it is traced.

    What a model takes and returns, what a loss judges, what modules that normalise take, and numbers stay as they are.

    Args:
        of: The operations.
        values: The values.
        known: What they are.
        takes_elements: Whether elements of tensors of a role are saved, too.
        kept: Further parts that stay as they are.
        most: See :func:`reduced`.
    """
    parts = {part for part, roles in _ROLES.items() if part not in kept and not any(map(takes_elements, roles))}
    of_parameters = {key for key in values if known[key].part in _OF_PARAMETERS}
    if not all(_is_reducible(values[key]) for key in of_parameters):
        parts -= _OF_PARAMETERS
    before = {known[key].name: values[key] for key in of_parameters if known[key].part is ValuePart.BEFORE}
    normalised = {known[key].place.path for key in values if known[key].part is ValuePart.MEAN}
    given = {key for key in values if known[key].part is ValuePart.INPUT and known[key].place.is_root}
    batch = {_alike(value) for key, value in values.items() if known[key].part is ValuePart.BATCH or key in given}
    found = Values()
    for key, value in values.items():
        what = known[key]
        role_of_module = what.part in (ValuePart.INPUT, ValuePart.OUTPUT)
        is_kept = role_of_module and (
            what.place.is_root
            or (what.part is ValuePart.INPUT and (what.place.path in normalised or _alike(value) in batch))
        )
        older = before.get(what.name) if what.part is ValuePart.AFTER else None
        alone = what.part is ValuePart.AFTER and (older is None or tuple(older.shape) != tuple(value.shape))
        if what.part not in parts or is_kept or alone or not _is_reducible(value):
            found[key] = value
        else:
            found[key] = reduced(of, value, older, most) | dict(_further(of, what, value, most))
    return found


def _further(of: Primitives, what: Collected, value: Any, most: int) -> Iterable[tuple[str, Any]]:
    """What facts need of a value in addition to its statistics."""
    size = _size_of(value)
    if size is not None and size <= most:
        return
    limits = limits_of(what.tags)
    inactive = "relu_output" in what.tags
    if what.part in (ValuePart.INPUT, ValuePart.OUTPUT) and len(value.shape) > 1 and (inactive or limits is not None):
        yield "units", reduced_units(of, value, len(value.shape) - 1, limits)
    if what.part not in _SAMPLED or size is None:
        return
    shape = tuple(map(int, value.shape))
    samples = _samples(shape)
    if what.part is not ValuePart.GRADIENT or what.place.kind is not ModuleKind.EMBEDDING:
        samples.pop("tokens", None)
    for name, taken in samples.items():
        yield name, of.at(of.dense(value), taken())
    if what.part is ValuePart.BEFORE and what.parameter is not None and len(shape) > 1:
        yield "symmetry", reduced_symmetry(of, value, len(shape) - 1 if what.parameter.unit_axis else 0)


def received(values: Mapping[str, Any]) -> Values:
    """The values that a twin has returned, with those that it has reduced as :class:`Reduced`."""
    return {key: Reduced(value) if isinstance(value, dict) else value for key, value in values.items()}


def dtype_of(value: Any) -> str:
    """The name of the dtype of a value, which may be traced."""
    return str(getattr(value.dtype, "name", value.dtype))


def _is_reducible(value: Any) -> bool:
    return hasattr(value, "dtype") and hasattr(value, "shape") and dtype_of(value) in DTYPE_CODES


def _size_of(value: Any) -> int | None:
    """Number of elements; None where that shows only when the function runs."""
    try:
        shape = tuple(value.shape)
    except ValueError:  # not even the number of axes is known
        return None
    return None if None in shape else math.prod(map(int, shape))


def _alike(value: Any) -> tuple[str, int | None]:
    return dtype_of(value), _size_of(value)
