"""Tensors that statistics on a device must copy first, and calls of many: in batches and pieces of a bounded size."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from devices.device_cases import BLOCKS, Account, assert_alike, assert_same_histograms, reference, values
from watchglass.capture.pytorch.device import torch_statistics
from watchglass.capture.pytorch.device.device_statistics import DeviceStatistics
from watchglass.capture.pytorch.device.readback import histogram_width
from watchglass.capture.pytorch.device.sizes import DEFAULT_SIZES, DeviceSizes
from watchglass.capture.pytorch.device.tensor_batches import batches


def gapped(count: int, seed: int = 0, dtype: str = "float32") -> torch.Tensor:
    """Every other column of a matrix of 16."""
    return values(dtype, 2 * count, seed).view(-1, 16)[:, ::2]


SIZES = DeviceSizes(copied_bytes=2048, tensors=3)
SMALL = replace(BLOCKS, sizes=SIZES)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64", "complex64", "int64", "float8_e5m2"])
def test_in_pieces_it_is_the_same(dtype: str) -> None:
    tensors = [
        gapped(8 * 500, 1, dtype), values(dtype, 40, 2), gapped(8 * 3, 3, dtype), values(dtype, 0), values(dtype, 9, 4),
        values(dtype, 5000, 5), gapped(8 * 333, 6, dtype).t(), values(dtype, 1, 7).expand(600, 1),
    ]  # fmt: skip
    assert len(list(batches(tensors, None, SIZES))) >= 5
    assert_alike(SMALL.found(tensors), reference(tensors), SMALL, magnitudes=dtype.startswith("complex"))


def test_pieces_of_older_values_are_those_of_the_same_elements() -> None:
    tensors = [gapped(8 * 500, 1), values("float32", 4000, 2).view(50, 80), gapped(8 * 300, 3).view(20, 15, 8)]
    before = [values("float32", 4000, 4).view(500, 8), values("float32", 4000, 5).view(80, 50).t()]
    before.append(values("float32", 2400, 6).view(8, 15, 20).permute(2, 1, 0))
    assert_alike(SMALL.found(tensors, before, 3.0), reference(tensors, before, 3.0), SMALL)


def test_without_histograms_in_pieces() -> None:
    rows, histograms = SMALL.statistics().summaries([gapped(8 * 500), torch.ones(3)], histograms=False)
    assert histograms is None
    assert rows.resolve()[:, 0].tolist() == [4000, 3]


def test_what_is_not_finite_in_one_piece_only() -> None:
    tensor = torch.ones(2000, 2)[:, 0]
    tensor[:700] = float("nan")
    tensor[1999] = float("-inf")
    rows, histograms = SMALL.found([tensor])
    assert rows[0].tolist()[:9] == [2000, 700, 0, 1, 0, 1, 1, 1299, 1299]
    assert_same_histograms(histograms, reference([tensor])[1])


def test_no_copy_is_larger_than_the_bound_and_all_are_accounted_for() -> None:
    tensors = [gapped(8 * 500, index) for index in range(3)]
    for batch in batches(tensors, tensors, SIZES):
        flat, older = batch.flat()
        assert older is not None
        assert batch.nbytes == sum(each.nbytes for each in (*flat, *older)) <= 2048
    account = Account()
    SMALL.found(tensors, tensors, account=account)
    assert {batch.nbytes for batch in batches(tensors, tensors, SIZES)} < set(account.memory.changes)
    assert account.memory.held == {"cpu": 0}


def test_what_lies_in_one_piece_is_one_batch_however_large() -> None:
    tensors = [torch.empty(1 << 24), torch.empty(1 << 12, 1 << 11).t(), torch.empty(())]
    (batch,) = batches(tensors, None)
    assert batch.nbytes == 0
    assert batch.owners == [0, 1, 2]
    assert [part.data_ptr() for part in batch.flat()[0]] == [tensor.data_ptr() for tensor in tensors]


def test_a_batch_never_needs_more_room_than_a_gathering_may_have() -> None:
    """With Triton: a row, up to 512 rows of shares, and bins, which are most for float64."""
    rows, shares, bins = DEFAULT_SIZES.full_gathering
    assert rows >= DEFAULT_SIZES.tensors
    assert shares >= DEFAULT_SIZES.tensors * DEFAULT_SIZES.shares
    assert DEFAULT_SIZES.tensors * histogram_width(True) <= bins
    assert 8 * (11 * rows + 11 * shares + 2 * rows) + 4 * bins < 42_000_000


def test_many_tensors_are_as_many_rows() -> None:
    count = DEFAULT_SIZES.tensors + 5
    tensors = [torch.full((2,), float(number)) for number in range(count)]
    rows, histograms = BLOCKS.found(tensors)
    np.testing.assert_array_equal(rows[:, 5], np.arange(count))
    assert len(histograms) == len(tensors)


@pytest.mark.parametrize("older", [False, True])
def test_memory_for_copies_is_as_stated(older: bool) -> None:
    """A tensor with gaps of 48 MB is read with copies of 16 MiB at most."""
    tensor = torch.empty(3 << 20, 8)[:, ::2].fill_(1.0)
    before: Any = [tensor] if older else None
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        DeviceStatistics(Account()).summaries([tensor], before)
    held = peak = 0
    for event in profiled.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    working = torch_statistics.peak_bytes([tensor])
    assert DEFAULT_SIZES.copied_bytes // 2 < peak <= working + DEFAULT_SIZES.copied_bytes
