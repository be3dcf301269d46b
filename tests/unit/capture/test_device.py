"""Statistics on devices, held to those of the CPU; on the CPU, and with Triton's interpreter where there is one."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from devices.device_cases import (
    BLOCKS,
    DTYPES,
    ON_GPU,
    WAYS,
    Account,
    Way,
    assert_alike,
    assert_same_histograms,
    reference,
    values,
)
from watchglass.capture.pytorch.device import tensor_batches
from watchglass.capture.pytorch.device.device_statistics import DeviceStatistics
from watchglass.capture.pytorch.device.sizes import DEFAULT_SIZES
from watchglass.records import STATISTIC_FIELDS
from watchglass.stats import histograms_of, of_array, sample


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.gpu) if name in ON_GPU else name for name in WAYS])
def way(request: pytest.FixtureRequest) -> Way:
    """Every way of computing, in small pieces, so that small tensors have many."""
    return WAYS[request.param]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """NumPy warns where the interpreter computes what a GPU computes silently."""
    with np.errstate(all="ignore"):
        yield


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype(way: Way, dtype: str) -> None:
    tensors = [values(dtype, count, count) for count in (1, 63, 64, 65, 700)]
    assert_alike(way.found(tensors), reference(tensors), way, magnitudes=dtype.startswith("complex"))


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_what_is_odd_in_floating_point(way: Way, dtype: str) -> None:
    kind = getattr(torch, dtype)
    size = kind.itemsize
    every = torch.arange(1 << min(16, 8 * size)).to(torch.uint8 if size == 1 else torch.uint16)
    if size > 2:
        # The same in the highest bits: every exponent, from the smallest subnormal's on.
        every = (every.to(torch.int64) << (8 * size - 16)).to(torch.int64 if size == 8 else torch.int32)
    bits = every[::7] if size > 1 else every
    extremes = torch.tensor([torch.finfo(kind).tiny, torch.finfo(kind).smallest_normal], dtype=torch.float64).to(kind)
    tensors = [
        bits.contiguous().view(kind), extremes, torch.zeros(70, dtype=kind), (-torch.zeros(3)).to(kind),
        torch.full((130,), float("nan")).to(kind), torch.tensor([float("nan"), 1.0]).to(kind),
        bits[:5].contiguous().view(kind), torch.full((200,), torch.finfo(kind).max, dtype=torch.float64).to(kind),
    ]  # fmt: skip
    result, expected = way.found(tensors), reference(tensors)
    # The sum of so many of the largest float64 is infinite or not by its order.
    overflow = ~np.isfinite(expected[0][:, 7:]) | ~np.isfinite(result[0][:, 7:]) | (np.abs(expected[0][:, 7:]) > 1e307)
    assert overflow.sum() == 0 or dtype == "float64"
    for rows in (result[0], expected[0]):
        rows[:, 7:][overflow] = 0
    assert_alike(result, expected, way)


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_what_is_odd_in_complex_numbers(way: Way, dtype: str) -> None:
    nan, inf, large, small = float("nan"), float("inf"), 1e300 if dtype == "complex128" else 1e30, 1e-40
    parts = [0.0, -0.0, 1.0, -2.5, nan, inf, -inf, large, small]
    tensor = torch.tensor(
        [complex(real, imaginary) for real in parts for imaginary in parts], dtype=getattr(torch, dtype)
    )
    assert_alike(way.found([tensor]), reference([tensor]), way, magnitudes=True)


def test_infinities_of_both_signs_are_distinguished(way: Way) -> None:
    tensors = [torch.tensor([float("inf")] * 3 + [float("-inf")] * 2 + [float("nan"), 0.0, -2.0])]
    rows, _ = way.found(tensors)
    assert dict(zip(STATISTIC_FIELDS, rows[0].tolist(), strict=True)) == {
        "count": 8, "nan": 1, "posinf": 3, "neginf": 2, "zero": 1, "min": -2, "max": 0, "sum": -2, "abs_sum": 2,
        "m2": pytest.approx(2), "l2": pytest.approx(2),
    }  # fmt: skip


@pytest.mark.parametrize("power", [30, -30, 150, -160, 290])
def test_norms_neither_overflow_nor_vanish(way: Way, power: int) -> None:
    dtype = "float32" if abs(power) < 38 else "float64"
    tensors = [values(dtype, 300) * 10.0**power, torch.cat([values(dtype, 100) * 10.0**power, values(dtype, 100)])]
    result, expected = way.found(tensors), reference(tensors)
    assert np.isfinite(expected[0][:, -1]).all()
    assert (expected[0][:, -1] > 0).all()
    if abs(power) > 140:  # squares do not fit into float64, however they are computed
        result[0][:, 9] = expected[0][:, 9] = 0
    assert_alike(result, expected, way)


def test_spread_about_a_mean_that_is_large(way: Way) -> None:
    tensor = (1000 + 0.01 * values("float64", 5000)).to(torch.float32)
    rows, _ = way.found([tensor])
    wanted = of_array(tensor.numpy())
    assert rows[0][9] == pytest.approx(wanted[9], rel=1e-5)
    assert rows[0][7] == pytest.approx(wanted[7], rel=1e-9)


def test_empty_tensors_and_scalars(way: Way) -> None:
    tensors = [torch.zeros(0), torch.tensor(3.0), torch.zeros(4, 0, 2), torch.tensor(7), torch.zeros(0).double()]
    assert_alike(way.found(tensors), reference(tensors), way)


def test_tensors_that_are_not_contiguous(way: Way) -> None:
    base = values("float32", 600).view(10, 20, 3)
    tensors = [
        base.permute(2, 0, 1), base[:, ::2], base[3], base[:, 1:, 1], base[0, :1].expand(7, 3), base.view(-1)[1:],
        base.mT, values("float16", 66)[1:65],
    ]  # fmt: skip
    assert_alike(way.found(tensors), reference(tensors), way)


def test_nothing_is_copied_of_a_dense_tensor() -> None:
    tensor = torch.randn(4, 5, 6).permute(2, 0, 1)
    (batch,) = tensor_batches.batches([tensor], None)
    assert batch.nbytes == 0
    assert batch.flat()[0][0].data_ptr() == tensor.data_ptr()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64", "int64", "uint8", "bool", "complex64"])
def test_differences_are_of_elements_at_the_same_place(way: Way, dtype: str) -> None:
    now = [values(dtype, 120, 1).view(12, 10), values(dtype, 300, 2), values(dtype, 60, 7).view(4, 15).t()]
    before = [values(dtype, 120, 3).view(10, 12).t(), values(dtype, 300, 4), values(dtype, 60, 8).view(15, 4)]
    assert [old.shape for old in before] == [new.shape for new in now]
    assert_alike(way.found(now, before), reference(now, before), way)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64", "int32", "complex64"])
@pytest.mark.parametrize("as_tensor", [True, False])
def test_everything_is_divided_by_the_scale(way: Way, dtype: str, as_tensor: bool) -> None:
    tensors, before = [values(dtype, 300, 5)], [values(dtype, 300, 6)]
    scale = torch.tensor(48.0) if as_tensor else 48.0
    assert_alike(way.found(tensors, None, scale), reference(tensors, None, 48.0), way)
    assert_alike(way.found(tensors, before, scale), reference(tensors, before, 48.0), way)


@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_dtypes_that_the_kernel_does_not_know_are_converted(way: Way) -> None:
    rows, _ = way.found([torch.complex(torch.full((5,), 3.0), torch.full((5,), 4.0)).to(torch.complex32)])
    assert rows[0][:8].tolist() == [5, 0, 0, 0, 0, 5, 5, 25]


@pytest.mark.parametrize("count", [65536, 65537, 70001, 81920, 100_003])
@pytest.mark.parametrize("seed", [0, 1, 12345])
def test_large_tensors_are_sampled_as_on_the_cpu(count: int, seed: int) -> None:
    tensor = values("float32", count, count)
    _, histograms = replace(BLOCKS, sizes=DEFAULT_SIZES).found([values("float32", 10), tensor], seed=seed)
    chosen = sample(count, seed)
    looked = tensor.numpy() if chosen is None else tensor.numpy()[chosen]
    assert_same_histograms(histograms.take([1]), histograms_of([looked.astype(np.float64)]))


def test_without_histograms(way: Way) -> None:
    statistics = way.statistics()
    rows, histograms = statistics.summaries([torch.ones(5)], histograms=False)
    statistics.send()
    assert histograms is None
    assert rows.resolve()[0, 0] == 5


def test_the_same_elements_give_the_same_bits(way: Way) -> None:
    tensors = [values("float32", 1000, 1), values("bfloat16", 500, 2), values("float32", 77, 3)]
    first, second = way.found(tensors), way.found([tensor.clone() for tensor in tensors])
    assert first[0].tobytes() == second[0].tobytes()
    # Whatever is examined with them.
    for index, tensor in enumerate(tensors):
        alone, _ = way.found([tensor])
        assert alone.tobytes() == first[0][index : index + 1].tobytes()


def test_several_calls_before_anything_is_sent(way: Way) -> None:
    statistics = way.statistics()
    calls = [
        ([values("float32", 100), values("float64", 100)], True),
        ([values("bfloat16", 10)], False),
        ([values("float32", 100), values("float16", 100)], True),
    ]
    read = [statistics.summaries(tensors, histograms=binned, seed=4) for tensors, binned in calls]
    statistics.send()
    for (rows, histograms), (tensors, binned) in reversed(list(zip(read, calls, strict=True))):
        expected = reference(tensors, seed=4)
        assert_alike((rows.resolve(), histograms.resolve() if binned else expected[1]), expected, way)


class Failing:
    """Triton on a machine where it cannot be used."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.tried = 0

    def prepare(self, device: Any, sizes: Any) -> None:
        self.tried += 1
        raise self.error


def test_without_triton_it_goes_on_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    def missing(device: torch.device) -> Any:
        raise ImportError("No module named 'triton'")

    statistics = DeviceStatistics(Account(), triton=missing)
    tensors = [values("float32", 100)]
    with caplog.at_level(logging.WARNING, "watchglass"):
        for _ in range(3):
            rows, histograms = statistics.summaries(tensors)
            statistics.send()
            assert_alike((rows.resolve(), histograms.resolve()), reference(tensors), BLOCKS)
    assert [record.getMessage().split(":")[1].strip() for record in caplog.records] == [
        "statistics on cpu are computed without Triton, which is slower"
    ]


def test_a_kernel_that_does_not_compile_is_tried_once(caplog: pytest.LogCaptureFixture) -> None:
    broken = Failing(RuntimeError("Failed to find C compiler.\nmore"))
    statistics = DeviceStatistics(Account(), triton=lambda device: broken)
    tensors = [values("float32", 100)]
    with caplog.at_level(logging.WARNING, "watchglass"):
        for _ in range(2):
            rows, _ = statistics.summaries(tensors)
            assert rows.resolve()[0, 0] == 100
    assert broken.tried == len(caplog.records) == 1
    assert caplog.records[0].getMessage().endswith("RuntimeError: Failed to find C compiler.")


def test_too_little_memory_is_not_taken_for_a_broken_kernel() -> None:
    full = Failing(torch.cuda.OutOfMemoryError("full"))
    statistics = DeviceStatistics(Account(), triton=lambda device: full)
    for tried in (1, 2):
        with pytest.raises(torch.cuda.OutOfMemoryError):
            statistics.summaries([torch.ones(3)])
        assert full.tried == tried
