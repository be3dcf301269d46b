"""The native kernel against the reference in NumPy, and its fallback against it."""

from __future__ import annotations

import ctypes
import math
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from watchglass.capture.pytorch import reduce
from watchglass.records import STATISTIC_FIELDS
from watchglass.stats import native, of_array

#: Bit for bit the same, and float64 sums whose order differs.
EXACT = [STATISTIC_FIELDS.index(name) for name in ("count", "nan", "posinf", "neginf", "zero", "min", "max")]
SUMS = [STATISTIC_FIELDS.index(name) for name in ("sum", "abs_sum", "m2", "l2")]

DTYPES = ["float32", "float64", "float16", "int64", "int32", "int16", "int8", "uint8", "bool"]


def native_row(array: NDArray[np.generic], name: str | None = None) -> NDArray[np.float64]:
    array = np.ascontiguousarray(array)
    return native.rows([array.ctypes.data], [array.size], [native.DTYPE_CODES[name or str(array.dtype)]])[0]


def assert_same(found: NDArray[np.float64], expected: NDArray[np.float64]) -> None:
    np.testing.assert_array_equal(found[EXACT], expected[EXACT])
    # Bound of a sum: its error is relative to the sum of absolutes, never to the sum.
    scale = np.array([expected[8], expected[8], 0.0, expected[10]])
    bound = 1e-12 * np.where(np.isfinite(scale), scale, 0.0) + 1e-12 * np.abs(expected[SUMS])
    bound[2] += 1e-12 * expected[10] ** 2 * 1e-3 if math.isfinite(expected[10]) else 0.0
    close = (np.abs(found[SUMS] - expected[SUMS]) <= bound) | (found[SUMS] == expected[SUMS])
    assert close.all(), (found, expected)


def test_it_was_built() -> None:
    assert native.available, "the machines that run these tests have a compiler"


@given(
    st.sampled_from(DTYPES).flatmap(
        lambda dtype: hnp.arrays(dtype, st.integers(0, 300), elements=_elements(dtype), fill=st.nothing())
    )
)
def test_any_values_give_the_reference_row(array: NDArray[np.generic]) -> None:
    assert_same(native_row(array), of_array(array))


def _elements(dtype: str) -> st.SearchStrategy[float] | None:
    if dtype == "float64":
        # Beyond this squares of the reference overflow too; the norm near the limit has a test of its own.
        return st.floats(-1e150, 1e150, width=64) | st.sampled_from([math.nan, math.inf, -math.inf])
    return None


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 2047, 2048, 2049, 100_003])
def test_every_size_around_lanes_and_blocks(dtype: str, size: int) -> None:
    generator = np.random.default_rng(size)
    array = (generator.standard_normal(size) * 50).astype(dtype)
    assert_same(native_row(array), of_array(array))


@pytest.mark.parametrize("spoiled", [0, 1, 2047, 2048, 5000])
def test_values_that_are_not_finite_are_counted_wherever_they_are(spoiled: int) -> None:
    array = np.random.default_rng(0).standard_normal(6000).astype(np.float32)
    array[spoiled] = np.nan
    array[(spoiled + 1) % 6000] = np.inf
    array[(spoiled + 2) % 6000] = -np.inf
    assert_same(native_row(array), of_array(array))


def test_the_spread_is_right_at_mean_1000_and_deviation_a_hundredth() -> None:
    array = (1000 + 0.01 * np.random.default_rng(0).standard_normal(70_000)).astype(np.float32)
    row = native_row(array)
    assert math.sqrt(row[9] / row[0]) == pytest.approx(float(array.astype(np.float64).std()), rel=1e-9)


@pytest.mark.parametrize("scale", [1e-320, 1e-200, 1e200, 1e305])
def test_the_norm_overflows_only_when_it_must(scale: float) -> None:
    array = np.array([3.0, 4.0] * 10) * scale
    assert native_row(array)[10] == pytest.approx(5 * math.sqrt(10) * scale, rel=1e-3 if scale < 1e-300 else 1e-12)


def test_bfloat16_and_every_half_are_read_exactly() -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    assert_same(native_row(bits, "float16"), of_array(bits.view(np.float16)))
    wide = torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16).float().numpy()
    found, expected = native_row(bits, "bfloat16"), of_array(wide)
    np.testing.assert_array_equal(found[EXACT], expected[EXACT])


def test_several_tensors_in_one_call_and_what_is_refused() -> None:
    arrays = [np.arange(n, dtype=np.float32) for n in (3, 0, 5000)]
    pointers, counts = [a.ctypes.data for a in arrays], [a.size for a in arrays]
    for row, array in zip(native.rows(pointers, counts, [0, 0, 0]), arrays, strict=True):
        assert_same(row, of_array(array))
    with pytest.raises(ValueError, match="do not belong together"):
        native.rows(pointers, counts, [0])
    with pytest.raises(ValueError, match="dtype code 99"):
        native.rows(pointers, counts, [0, 99, 0])


@pytest.mark.parametrize("use_native", [True, False])
def test_tensors_of_any_layout_and_dtype(monkeypatch: pytest.MonkeyPatch, use_native: bool) -> None:
    monkeypatch.setenv("WATCHGLASS_NATIVE", "1" if use_native else "0")
    torch.manual_seed(0)
    base = torch.randn(4, 6, 5)
    tensors = [
        base, base.transpose(0, 2), base[:, ::2], base.to(torch.bfloat16), base.to(torch.float16),
        base.to(memory_format=torch.contiguous_format).unsqueeze(0).to(memory_format=torch.channels_last),
        base.double(), (base * 10).int(), base > 0, torch.zeros(0), torch.tensor(3.5),
        base.to(torch.float8_e4m3fn), torch.complex(base, base), base.to_sparse(), base.expand(2, 4, 6, 5),
        torch.tensor([float("nan"), float("inf"), -float("inf"), 1.0]),
    ]  # fmt: skip
    for tensor in tensors:
        value = reduce.plain(tensor)
        assert value is not None
        expected = value.float() if value.dtype in (torch.bfloat16, torch.float8_e4m3fn) else value
        assert_same(reduce.rows([value])[0], of_array(expected.numpy()))


def test_tensors_without_values_are_left_out() -> None:
    assert reduce.plain(torch.empty(3, device="meta")) is None


def test_loading_the_library_leaves_the_floating_point_mode_alone() -> None:
    code = """
        import ctypes, numpy as np
        subnormal = np.array([1e-45], np.float32)
        before = float(subnormal[0] * np.float32(1.0))
        from watchglass.stats import native
        native.rows([subnormal.ctypes.data], [1], [0])
        assert native.available
        assert float(subnormal[0] * np.float32(1.0)) == before != 0.0
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, timeout=60)


def test_a_library_of_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_VERSION", 10**6)
    assert native._load() is None
    monkeypatch.setattr(ctypes, "CDLL", lambda path: (_ for _ in ()).throw(OSError(path)))
    assert native._load() is None
