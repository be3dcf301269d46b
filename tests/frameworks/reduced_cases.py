"""Arrays whose statistics are computed on a device, and what the native kernel makes of them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from watchglass.capture.arrays import Arrays, Read, arrays_of
from watchglass.capture.compiled.reductions import SEED, Primitives, Reduced, reduced, reduced_values
from watchglass.capture.planning.cost import Cost
from watchglass.run import Run
from watchglass.stats import Histograms, Rows

#: Numbers that sums are made of.
_SUMS = ("min", "max", "mean", "std", "l2")
#: Dtypes of which each is read in its own way.
DTYPES = ("float32", "float16", "bfloat16", "float64", "int32", "int8", "uint8", "bool", "complex64", "float8_e4m3fn")


#: Shapes, the last of which are sampled.
SHAPES = ((), (0, 3), (1,), (3, 4, 5, 6), (300, 401), (200_003,))


def numbers(shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
    """Numbers that the dtype can hold, with zeros."""
    random = np.random.default_rng(len(shape))
    if dtype == "bool":
        return random.random(shape) < 0.3
    if "int" in dtype:
        return random.integers(0 if dtype.startswith("u") else -100, 100, shape)
    values = random.normal(0.3, 1.0, shape)
    return np.where(random.random(shape) < 0.1, 0.0, values)


def unusual() -> Iterator[NDArray[Any]]:
    """Floats that break sums."""
    for first in (
        (np.nan,), (np.inf, -np.inf, -np.inf), (np.nan, np.inf, -np.inf, 0.0), (3e38, -3e38, 3e38), (1e-30, -1e-30),
    ):  # fmt: skip
        yield np.array(first)
        values = numbers((120_000,), "float32")
        values[: len(first)] = first
        yield values.reshape(300, 400)


def compare(
    arrays: Arrays, of: Primitives, run: Callable[..., Any], values: Sequence[Any], before: Sequence[Any] = (),
    scale: float | None = None, most: int = 0,
) -> None:  # fmt: skip
    """The rows and the histograms of reduced arrays are those of the native kernel.

    Args:
        arrays: Reads the arrays.
        of: Reduces them.
        run: Calls a function with a list of arrays, compiled or not.
        values: The arrays.
        before: Their older values.
        scale: Everything is divided by it.
        most: Elements up to which an array is kept.
    """
    number = len(values)

    def reduce(given: list[Any]) -> list[Any]:
        older = given[number:] or [None] * number
        return [reduced(of, value, old, most) for value, old in zip(given[:number], older, strict=True)]

    for index, (value, parts) in enumerate(zip(values, run(reduce, [*values, *before]), strict=True)):
        found = Reduced(parts, scale)
        about = arrays_of(found).describe(found)
        assert (about.shape, about.dtype) == arrays.describe(value)[:2]
        row, histogram = found.summary(histograms=True)
        older = [arrays.values(before[index])] if before else None
        read = Read([arrays.values(value)], older, scale, True, SEED)
        expected, binned = resolved(Arrays.statistics(arrays, read, Cost.__new__(Cost)))
        same_rows(row, expected)
        assert histogram is not None
        same_histograms(histogram, binned)


def resolved(found: tuple[Any, Any]) -> tuple[Any, Any]:
    """Rows and histograms, waited for."""
    rows, histograms = found
    return (
        rows.resolve() if hasattr(rows, "resolve") else rows,
        histograms.resolve() if hasattr(histograms, "resolve") else histograms,
    )


def same_rows(found: Rows, expected: Rows) -> None:
    """Counts and extremes are equal, sums within the tolerance of reductions."""
    np.testing.assert_array_equal(found[:, :5], expected[:, :5])
    np.testing.assert_allclose(found[:, 5:7], expected[:, 5:7], rtol=1e-7)
    norm = expected[:, 10]
    np.testing.assert_allclose(found[:, 7], expected[:, 7], rtol=0, atol=1e-5 * expected[:, 8].max())
    np.testing.assert_allclose(found[:, [8, 10]], expected[:, [8, 10]], rtol=1e-5)
    with np.errstate(over="ignore"):
        allowed = 1e-12 * norm * norm
    if np.isfinite(allowed).all():
        np.testing.assert_allclose(found[:, 9], expected[:, 9], rtol=1e-5, atol=allowed.max())


def same_histograms(found: Histograms, expected: Histograms) -> None:
    """They are equal."""
    for name in ("seen", "offsets", "keys", "counts"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), err_msg=name)


def reduce_everything(monkeypatch: pytest.MonkeyPatch, arrays: type[Arrays], user: str) -> None:
    """From now on arrays count as ones on a device, and those of more than 16 elements are reduced in compiled steps.

    Args:
        monkeypatch: Undoes it.
        arrays: Who reads the arrays.
        user: The module whose compiled steps these are.
    """
    monkeypatch.setattr(arrays, "on_host", lambda self, array: False)
    monkeypatch.setattr(f"{user}.reduced_values", functools.partial(reduced_values, most=16))


#: Facts that say how the numbers of a training are, and not how long it took or where it ran.
_FACTS = frozenset((
    "batch", "input_sketch", "output_sketch", "target_sketch", "loss_call", "loss_graph", "forward_graph",
    "initialization", "update_sample", "running_statistics", "model", "first_bad_module",
    "nonfinite_gradients", "nonfinite_loss",
))  # fmt: skip


def same_runs(found: Run, expected: Run) -> None:
    """Two runs of the same training have the same tensors at the same steps, the same numbers, and the same facts."""
    names = expected.tensor_names()
    # Arrays of several placements are read apart on a host, which gives no norm of all of them.
    assert {*names} <= {*found.tensor_names()} <= {*names, "gradient_norm"}
    for name in names:
        tensors = found.tensor(name), expected.tensor(name)
        numbers = {
            column: [each.reductions(column) for each in tensors] for column in ("count", "nan", "zero", "l1", *_SUMS)
        }
        size = numbers["l1"][1][1] / np.maximum(1, numbers["count"][1][1])
        for column, ((steps, values), (at, native)) in numbers.items():
            assert steps.tolist() == at.tolist(), (name, column)
            assert (np.abs(values - native) <= 1e-5 * np.maximum(np.abs(native), size)).all(), (name, column)
        sums = [{step: float(sum(each.counts)) for step, each in tensor.histograms().items()} for tensor in tensors]
        assert sums[0] == pytest.approx(sums[1], rel=0.05), name  # others of the elements are drawn
        units = [[each.tolist() for each in tensor.inactive_units()] for tensor in tensors]
        assert units[0] == units[1], name
    facts = [[each for each in run.facts() if each.kind in _FACTS] for run in (found, expected)]
    assert [(each.kind, each.global_step) for each in facts[0]] == [(each.kind, each.global_step) for each in facts[1]]
    for one, other in zip(*facts, strict=True):
        assert near(one.data, other.data), (one, other)


def near(one: Any, other: Any) -> bool:
    """Whether plain values are the same, numbers about so."""
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(near(value, other[key]) for key, value in one.items())
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(near, one, other))
    if isinstance(one, float) or isinstance(other, float):
        return bool(np.isclose(one, other, rtol=1e-4, atol=1e-6, equal_nan=True))
    return bool(one == other)
