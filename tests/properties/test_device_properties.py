"""Statistics on devices against exact sums of float64: every dtype, any values, any split, within the stated bounds.

On the CPU by what computes them where there is no Triton, and with Triton's interpreter where that is (see
``tests/integration/test_triton.py``, which runs this file in another process).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st
from numpy.typing import NDArray

from devices.device_cases import BLOCKS, DTYPES, INTERPRETED, SMALL, TRITON
from devices.kernel_calls import stored
from watchglass.capture.pytorch.device.sizes import DEFAULT_SIZES
from watchglass.stats import DTYPE_CODES, histograms_of, merge, merge_histograms, numbers, of_array

SPECIAL = [
    0.0, -0.0, math.nan, math.inf, -math.inf, 5e-324, -1e-310, 2.0**-149, -1e-40, 2.0**-126, 1e-8, 6e-8, 1.0, -1.5,
    448.0, 65504.0, 3.4e38, -3.4e38, 1e150, -1e150, 1000.0, 1000.01,
]  # fmt: skip
#: As shares of the sum of magnitudes, of the norm, and of the spread and of the square of the norm: what
#: ``device/torch_statistics.py`` (here of small blocks) and ``device/triton_statistics.py`` state.
EXACTLY = (1e-13, 1e-13, 1e-10, 1e-17)
NARROW_ON_TRITON = (2e-6, 2e-6, 1e-5, 1e-17)
WIDE = {"float64", "int64", "int32", "uint32", "uint64", "complex64", "complex128"}

#: Small pieces, so that small tensors have many.
WAY = replace(TRITON if INTERPRETED else BLOCKS, sizes=replace(SMALL, copied_bytes=1024))

dtypes = st.sampled_from(DTYPES)
examples = settings(
    max_examples=25 if INTERPRETED else 150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """NumPy warns where the interpreter computes what a GPU computes silently."""
    with np.errstate(all="ignore"):
        yield


@st.composite
def arrays(draw: st.DrawFn, dtype: str) -> NDArray[Any]:
    """Elements of a dtype: numbers about a mean, a few special ones, or any bits; mixed, and of any size."""
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    size = draw(st.one_of(st.integers(0, 40), st.integers(0, 300 if INTERPRETED else 3000)))
    special = np.array(draw(st.lists(st.sampled_from(SPECIAL), min_size=1, max_size=4)))
    kind = draw(st.sampled_from(["normal", "special", "mixed"]))
    scale = 10.0 ** draw(st.integers(-45, 38))
    values = generator.standard_normal(size) * scale + draw(st.sampled_from([0.0, 0.0, 1000.0 * scale]))
    if kind != "normal":
        chosen = generator.random(size) < (0.1 if kind == "mixed" else 1.0)
        values = np.where(chosen, special[generator.integers(0, len(special), size)], values)
    return stored(values, dtype)


def tensor_of(array: NDArray[Any], dtype: str) -> torch.Tensor:
    """The same bits as a tensor."""
    kind = getattr(torch, dtype)
    bits = torch.from_numpy(np.ascontiguousarray(array).view(np.uint8).copy())
    return bits.view(kind) if len(array) else torch.empty(0, dtype=kind)


def decoded(array: NDArray[Any], dtype: str) -> NDArray[np.float64]:
    with np.errstate(invalid="ignore"):
        return numbers(array, DTYPE_CODES[dtype]).astype(np.float64)


def assert_of(rows: NDArray[np.float64], histograms: Any, values: NDArray[np.float64], dtype: str) -> None:
    """Counts, extremes and bins are exact, sums within their bounds of the exact ones."""
    exactly = of_array(values)
    np.testing.assert_array_equal(rows[:5], exactly[:5])
    # On the CPU PyTorch may take MKL's square roots, which are off by one unit in the last place, of a rounded sum.
    np.testing.assert_array_max_ulp(rows[5:7], exactly[5:7], maxulp=2 if dtype.startswith("complex") else 0)
    expected = histograms_of([values])
    np.testing.assert_array_equal(histograms.keys, expected.keys)
    np.testing.assert_array_equal(histograms.counts, expected.counts)
    assert histograms.seen.tolist() == [len(values)]
    finite = values[np.isfinite(values)]
    magnitudes = np.abs(finite)
    if magnitudes.max(initial=0) > 1e140 or magnitudes[magnitudes > 0].min(initial=1) < 1e-140:
        return  # their squares neither fit into float64 nor does the bound hold for them
    of_sums, of_norm, of_spread, of_square = EXACTLY if dtype in WIDE or not INTERPRETED else NARROW_ON_TRITON
    total, absolute = math.fsum(finite), math.fsum(magnitudes)
    wide = finite.astype(np.longdouble)
    l2 = float(np.sqrt(np.square(wide).sum()))
    m2 = float(np.square(wide - wide.mean()).sum()) if len(finite) else 0.0
    assert abs(rows[7] - total) <= of_sums * absolute
    assert abs(rows[8] - absolute) <= of_sums * absolute
    assert abs(rows[9] - m2) <= of_spread * m2 + of_square * l2 * l2
    assert abs(rows[10] - l2) <= of_norm * l2


@examples
@given(st.data(), dtypes)
def test_rows_and_histograms_are_within_their_bounds(data: st.DataObject, dtype: str) -> None:
    several = [data.draw(arrays(dtype)) for _ in range(data.draw(st.integers(1, 3)))]
    rows, histograms = WAY.found([tensor_of(array, dtype) for array in several])
    for index, array in enumerate(several):
        assert_of(rows[index], histograms.take([index]), decoded(array, dtype), dtype)


@examples
@given(st.data(), dtypes)
def test_gaps_in_memory_change_nothing(data: st.DataObject, dtype: str) -> None:
    """Read in pieces, in another order, and merged."""
    array = data.draw(arrays(dtype))
    columns = data.draw(st.integers(1, 5))
    array = array[: len(array) // columns * columns]
    tensor = tensor_of(np.repeat(array, 2), dtype).view(-1, columns, 2)[..., 0].t()
    rows, histograms = WAY.found([tensor])
    assert_of(rows[0], histograms, decoded(array, dtype), dtype)


@examples
@given(st.data(), dtypes, st.integers(0, 2**32))
def test_parts_in_any_order_merge_to_the_whole(data: st.DataObject, dtype: str, seed: int) -> None:
    array = data.draw(arrays(dtype))
    cuts = sorted(data.draw(st.lists(st.integers(0, array.size), max_size=4)))
    parts = np.split(array, cuts)
    order = np.random.default_rng(seed).permutation(len(parts))
    rows, histograms = WAY.found([tensor_of(parts[index], dtype) for index in order])
    merged = reduce(merge_histograms, [histograms.take([index]) for index in range(len(parts))])
    assert_of(reduce(merge, rows), merged, decoded(array, dtype), dtype)


@examples
@given(st.data(), st.sampled_from(["float32", "bfloat16", "float64", "int32", "complex64"]))
def test_differences_and_quotients_are_those_of_numpy(data: st.DataObject, dtype: str) -> None:
    array = data.draw(arrays(dtype))
    older = np.roll(array, 1)
    scale = data.draw(st.one_of(st.floats(1e-6, 1e6), st.just(65536.0)))
    rows, histograms = WAY.found([tensor_of(array, dtype)], [tensor_of(older, dtype)], scale)
    assert_of(rows[0], histograms, numbers(array, DTYPE_CODES[dtype], older, scale).astype(np.float64), dtype)


@pytest.mark.skipif(INTERPRETED, reason="too large for the interpreter")
@pytest.mark.parametrize("kind", ["constant", "positive", "wide", "about a mean"])
@pytest.mark.parametrize("size", [1 << 14, 300_001, 2_000_003])
def test_large_tensors_are_within_the_bound_that_is_stated(kind: str, size: int) -> None:
    """Constants are the worst: every addition of a block is rounded in the same direction."""
    generator = np.random.default_rng(size)
    values = generator.standard_normal(size)
    if kind == "constant":
        values = np.full(size, 1.31415926)
    elif kind == "positive":
        values = np.abs(values)
    elif kind == "wide":
        values *= np.exp2(generator.integers(-30, 30, size))
    else:
        values = 1000 + 0.01 * values
    row = replace(BLOCKS, sizes=DEFAULT_SIZES).found([torch.from_numpy(values)])[0][0]
    wide = values.astype(np.longdouble)
    absolute, l2 = math.fsum(np.abs(values)), float(np.sqrt(np.square(wide).sum()))
    m2 = float(np.square(wide - wide.mean()).sum())
    bound = (size / 65536 + 17_000) * 2.0**-53
    assert abs(row[7] - math.fsum(values)) <= bound * absolute
    assert abs(row[8] - absolute) <= bound * absolute
    assert abs(row[10] - l2) <= bound * l2
    assert abs(row[9] - m2) <= 1e-10 * m2 + 1e-17 * l2 * l2
