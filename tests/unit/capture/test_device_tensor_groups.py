"""Tensors that statistics on a device must copy first, and calls of many: in groups and pieces of a bounded size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from device_cases import Account, assert_alike, assert_same_histograms, found, reference, values
from watchglass.capture.pytorch.device import device_statistics, tensor_groups, torch_statistics
from watchglass.capture.pytorch.device.device_statistics import DeviceStatistics
from watchglass.capture.pytorch.device.readback import histogram_width


def gapped(count: int, seed: int = 0, dtype: str = "float32") -> torch.Tensor:
    """Every other column of a matrix of 16."""
    return values(dtype, 2 * count, seed).view(-1, 16)[:, ::2]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_groups, "COPIED_BYTES", 2048)
    monkeypatch.setattr(tensor_groups, "TOGETHER", 3)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64", "complex64", "int64", "float8_e5m2"])
def test_in_pieces_it_is_the_same(dtype: str) -> None:
    tensors = [
        gapped(8 * 500, 1, dtype), values(dtype, 40, 2), gapped(8 * 3, 3, dtype), values(dtype, 0), values(dtype, 9, 4),
        values(dtype, 5000, 5), gapped(8 * 333, 6, dtype).t(), values(dtype, 1, 7).expand(600, 1),
    ]  # fmt: skip
    assert len(list(tensor_groups.groups(tensors, None))) >= 5
    assert_alike(found(tensors), reference(tensors), "blocks")


@pytest.mark.usefixtures("small")
def test_pieces_of_older_values_are_those_of_the_same_elements() -> None:
    tensors = [gapped(8 * 500, 1), values("float32", 4000, 2).view(50, 80), gapped(8 * 300, 3).view(20, 15, 8)]
    before = [values("float32", 4000, 4).view(500, 8), values("float32", 4000, 5).view(80, 50).t()]
    before.append(values("float32", 2400, 6).view(8, 15, 20).permute(2, 1, 0))
    assert_alike(found(tensors, before, 3.0), reference(tensors, before, 3.0), "blocks")


@pytest.mark.usefixtures("small")
def test_without_histograms_in_pieces() -> None:
    rows, histograms = DeviceStatistics(Account()).summaries([gapped(8 * 500), torch.ones(3)], histograms=False)
    assert histograms is None
    assert rows.resolve()[:, 0].tolist() == [4000, 3]


@pytest.mark.usefixtures("small")
def test_what_is_not_finite_in_one_piece_only() -> None:
    tensor = torch.ones(2000, 2)[:, 0]
    tensor[:700] = float("nan")
    tensor[1999] = float("-inf")
    rows, histograms = found([tensor])
    assert rows[0].tolist()[:9] == [2000, 700, 0, 1, 0, 1, 1, 1299, 1299]
    assert_same_histograms(histograms, reference([tensor])[1])


@pytest.mark.usefixtures("small")
def test_no_copy_is_larger_than_the_bound_and_all_are_accounted_for() -> None:
    tensors = [gapped(8 * 500, index) for index in range(3)]
    for group in tensor_groups.groups(tensors, tensors):
        flat, older = group.flat()
        assert older is not None
        assert group.nbytes == sum(each.nbytes for each in (*flat, *older)) <= 2048
    account = Account()
    held: list[int] = []
    original = account.memory.hold
    account.memory.hold = lambda name, size: (held.append(size), original(name, size))[1]  # type: ignore[method-assign]
    found(tensors, tensors, account=account)
    assert {group.nbytes for group in tensor_groups.groups(tensors, tensors)} < set(held)
    assert sum(held) == 0


def test_what_lies_in_one_piece_is_one_group_however_large() -> None:
    tensors = [torch.empty(1 << 24), torch.empty(1 << 12, 1 << 11).t(), torch.empty(())]
    (group,) = tensor_groups.groups(tensors, None)
    assert group.nbytes == 0
    assert group.owners == [0, 1, 2]
    assert [part.data_ptr() for part in group.flat()[0]] == [tensor.data_ptr() for tensor in tensors]


def test_a_group_never_needs_more_room_than_a_gathering_may_have() -> None:
    """With Triton: a row, up to 512 rows of shares, and bins, which are most for float64."""
    rows, shares, bins = device_statistics._MOST
    assert rows >= tensor_groups.TOGETHER
    assert shares >= tensor_groups.TOGETHER * 512
    assert tensor_groups.TOGETHER * histogram_width(True) <= bins
    assert 8 * (11 * rows + 11 * shares + 2 * rows) + 4 * bins < 42_000_000


def test_many_tensors_are_as_many_rows() -> None:
    tensors = [torch.full((2,), float(number)) for number in range(tensor_groups.TOGETHER + 5)]
    rows, histograms = found(tensors)
    np.testing.assert_array_equal(rows[:, 5], np.arange(tensor_groups.TOGETHER + 5))
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
    assert tensor_groups.COPIED_BYTES // 2 < peak <= working + tensor_groups.COPIED_BYTES
