"""The native kernel against the reference in NumPy, and its fallback against it."""

from __future__ import annotations

import ctypes
import importlib.util
import inspect
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from devices.kernel_calls import assert_same, assert_same_bits, bound_of_sums, stored, summaries
from watchglass.stats import native, of_array, pure
from watchglass.stats.elements import DTYPE_CODES, numbers, read

SIZES = [0, 1, 15, 16, 17, 2047, 2048, 2049, 65_536, 65_537, 200_003]
#: The library itself: what it has beside the functions of the module.
LIBRARY = ctypes.CDLL(str(Path(native.__file__).with_name("libsummaries.so")))
REAL = [name for name in DTYPE_CODES if not name.startswith("complex")]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    yield
    native.set_threads(1)


def rows_of(pointers: list[int], counts: list[int], codes: list[int]) -> NDArray[np.float64]:
    """The rows of statistics alone."""
    return native.summaries(pointers, counts, codes, histograms=False)[0]


def test_it_was_built() -> None:
    assert native.available, "the machines that run these tests have a compiler"


@pytest.mark.parametrize("dtype", DTYPE_CODES)
@pytest.mark.parametrize("size", SIZES)
def test_every_size_around_lanes_blocks_and_tasks(dtype: str, size: int) -> None:
    generator = np.random.default_rng(size)
    array, older = (stored(generator.standard_normal(size) * 50, dtype) for _ in range(2))
    for options in ({}, {"before": older}, {"scale": 3.7}, {"before": older, "scale": 1024.0}):
        assert_same(summaries([array], dtype, **options), summaries([array], dtype, kernel=pure, **options))


@pytest.mark.parametrize("name", ["float16", "bfloat16", *(name for name in DTYPE_CODES if name.startswith("float8"))])
def test_every_number_of_a_narrow_dtype_is_read_as_pytorch_reads_it(name: str) -> None:
    bits = np.arange(1 << 16, dtype=np.uint16) if name.endswith("16") else np.arange(256, dtype=np.uint8)
    dtype = getattr(torch, name)
    expected = torch.from_numpy(bits.view(f"i{bits.itemsize}")).view(dtype).float().numpy()
    elements = read(bits.ctypes.data, len(bits), DTYPE_CODES[name])
    np.testing.assert_array_equal(numbers(elements, DTYPE_CODES[name]), expected)
    for i in range(0, len(bits), 97):  # one at a time: a sum hides what a single number shows
        row = rows_of([bits[i:].ctypes.data], [1], [DTYPE_CODES[name]])[0]
        np.testing.assert_array_equal(row[1:9], of_array(expected[i])[1:9])
    assert_same(summaries([bits], name), summaries([bits], name, kernel=pure))


@pytest.mark.parametrize("spoiled", [0, 1, 2047, 2048, 5000])
def test_values_that_are_not_finite_are_counted_wherever_they_are(spoiled: int) -> None:
    array = np.random.default_rng(0).standard_normal(6000).astype(np.float32)
    array[spoiled] = np.nan
    array[(spoiled + 1) % 6000] = np.inf
    array[(spoiled + 2) % 6000] = -np.inf
    assert_same(summaries([array], "float32"), summaries([array], "float32", kernel=pure))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("size", [700, 70_000])
def test_the_spread_is_right_at_mean_1000_and_deviation_a_hundredth(dtype: str, size: int) -> None:
    array = (1000 + 0.01 * np.random.default_rng(0).standard_normal(size)).astype(dtype)
    row = rows_of([array.ctypes.data], [size], [DTYPE_CODES[dtype]])[0]
    exact = float(np.square(array.astype(np.longdouble) - array.astype(np.longdouble).mean()).sum())
    assert row[9] == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize("scale", [1e-320, 1e-200, 1e200, 1e305])
def test_the_norm_overflows_only_when_it_must(scale: float) -> None:
    array = np.array([3.0, 4.0] * 10) * scale
    row = rows_of([array.ctypes.data], [20], [DTYPE_CODES["float64"]])[0]
    assert row[10] == pytest.approx(5 * math.sqrt(10) * scale, rel=1e-3 if scale < 1e-300 else 1e-12)


def test_the_norm_of_many_blocks_does_not_overflow_before_its_root() -> None:
    array = np.full(40_000, 1e152)
    row = rows_of([array.ctypes.data], [40_000], [DTYPE_CODES["float64"]])[0]
    assert row[10] == pytest.approx(2e154, rel=1e-12)


@pytest.mark.parametrize("value", [5e-324, 1e-310, 2.0**-1022, 2.0**-149, 1e-40, 2.0**-126, 1.0, 1.5, 3e38, 1.7e308])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_key_of_every_magnitude_and_sign(value: float, dtype: str) -> None:
    with np.errstate(over="ignore", under="ignore"):
        array = np.array([value, -value, value, 0.0, -0.0, np.nan]).astype(dtype)
    assert_same(summaries([array], dtype), summaries([array], dtype, kernel=pure))


def test_several_tensors_in_one_call_and_what_is_refused() -> None:
    arrays = [np.arange(n, dtype=np.float32) for n in (3, 0, 5000, 70_000, 1)]
    together = summaries(arrays, "float32")
    for i, array in enumerate(arrays):
        rows, histograms = summaries([array], "float32")
        assert_same_bits((together[0][[i]], together[1].take([i])), (rows, histograms))
    assert summaries([], "float32")[0].shape == (0, 11)
    pointers, counts = [a.ctypes.data for a in arrays], [a.size for a in arrays]
    with pytest.raises(ValueError, match="do not belong together"):
        native.summaries(pointers, counts, [0])
    with pytest.raises(ValueError, match="5 pointers, 1 older"):
        native.summaries(pointers, counts, [0] * 5, before=[0])
    for kernel in (native, pure):
        with pytest.raises(ValueError, match="dtype code 99"):
            kernel.summaries(pointers, counts, [0, 0, 99, 0, 0])
    # What was refused has left nothing behind.
    assert_same_bits(summaries(arrays, "float32"), together)


def test_more_tensors_and_bins_than_there_was_room_for() -> None:
    generator = np.random.default_rng(0)
    arrays = [np.ldexp(generator.standard_normal(3000), generator.integers(-1000, 1000, 3000)) for _ in range(150)]
    assert_same(summaries(arrays, "float64"), summaries(arrays, "float64", kernel=pure))


def test_histograms_only_where_asked_for() -> None:
    array = np.arange(5, dtype=np.float32)
    for kernel in (native, pure):
        rows, histograms = kernel.summaries([array.ctypes.data], [5], [0], histograms=False)
        assert histograms is None
        assert rows[0, 7] == 10.0


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int32", "complex64"])
def test_any_instructions_give_the_same_bits(dtype: str) -> None:
    generator = np.random.default_rng(0)
    array, older = (stored(generator.standard_normal(100_003), dtype) for _ in range(2))
    results = []
    highest = LIBRARY.watchglass_limit(2)
    try:
        for level in range(highest + 1):
            LIBRARY.watchglass_limit(level)
            results.append(summaries([array, older[:5000]], dtype, before=[older, array[:5000]], scale=3.0))
    finally:
        LIBRARY.watchglass_limit(2)
    for result in results[1:]:
        assert_same_bits(result, results[0])


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_any_number_of_threads_gives_the_same_bits(dtype: str) -> None:
    generator = np.random.default_rng(0)
    arrays = [stored(generator.standard_normal(n), dtype) for n in (300_000, 10, 65_536, 65_537, 5, 1_000_000)]
    # In turns, so that memory of the call before does not hold the right answer to a task that was skipped.
    turns = [arrays, arrays[::-1]]
    alone = [summaries(turn, dtype, seed=3) for turn in turns]
    for threads in (2, 3, 2, 1):
        native.set_threads(threads)
        for i in range(20):
            assert_same_bits(summaries(turns[i % 2], dtype, seed=3), alone[i % 2])
    assert LIBRARY.watchglass_threads_started() >= 2


@pytest.mark.parametrize("seed", [0, 1, -1, 2**63, 2**70 + 5])
def test_samples_are_drawn_alike(seed: int) -> None:
    array = np.random.default_rng(0).standard_normal(123_457).astype(np.float32)
    assert_same(summaries([array], "float32", seed=seed), summaries([array], "float32", kernel=pure, seed=seed))


def another(folder: Path, code: str) -> Any:
    """The module, with this code, as it is where it lies in another folder."""
    (folder / "another.py").write_text(code)
    spec = importlib.util.spec_from_file_location("another", folder / "another.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_without_the_library_the_same_comes_out(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    arrays = [generator.standard_normal(n).astype(np.float32) for n in (5, 3000, 70_000)]
    without = another(tmp_path, inspect.getsource(native))
    assert not without.available
    expected = summaries(arrays, "float32", scale=2.0)
    assert_same(summaries(arrays, "float32", kernel=without, scale=2.0), expected)
    without.set_threads(2)
    assert_same(summaries(arrays, "float32", kernel=without), summaries(arrays, "float32", kernel=pure))


def test_a_library_of_another_version_is_refused(tmp_path: Path) -> None:
    shutil.copy(Path(native.__file__).with_name("libsummaries.so"), tmp_path)
    code = inspect.getsource(native)
    assert another(tmp_path, code).available
    assert not another(tmp_path, code.replace("\n_VERSION = 2\n", "\n_VERSION = 1_000_000\n")).available


def test_the_bound_of_sums_is_not_idle() -> None:
    """What the other tests compare with would notice a sum of float32."""
    array = np.random.default_rng(0).standard_normal(10_000).astype(np.float32)
    row = of_array(array)
    spoiled: Any = row.copy()
    spoiled[7] = array.sum(dtype=np.float32)
    assert (np.abs(spoiled - row)[7:] > bound_of_sums(row))[0]


def test_magnitudes_of_complex_numbers_neither_overflow_nor_vanish() -> None:
    parts: NDArray[np.float64] = np.array([0.0, 1e-320, 3e-200, 1.0, 3e200, np.inf, np.nan, -2.0])
    array = np.array([complex(re, im) for re in parts for im in parts])
    assert_same(summaries([array], "complex128"), summaries([array], "complex128", kernel=pure))
    found = numbers(array, DTYPE_CODES["complex128"])
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(found, np.hypot(array.real, array.imag), rtol=1e-15)
