"""What only Triton's way of computing statistics has: gathering, plans, sending. In Triton's interpreter.

``tests/integration/test_triton.py`` runs this in a separate process: Triton interprets or compiles, not both.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

from devices.device_cases import SMALL, TRITON, Account, assert_alike, reference, values, with_triton, without_warnings
from watchglass.capture.pytorch.device import triton_statistics
from watchglass.capture.pytorch.device.device_statistics import DeviceStatistics
from watchglass.capture.pytorch.device.sizes import Size
from watchglass.stats import of_array


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """NumPy warns where the interpreter computes what a GPU computes silently."""
    with np.errstate(all="ignore"):
        yield


def kernels(**others: Any) -> Any:
    """Triton's way of computing, with some of its parts replaced: an argument of ``DeviceStatistics``."""
    names = ("Gathering", "ReadPlans", "prepare")
    parts = {name: getattr(triton_statistics, name) for name in names} | others
    return lambda device: SimpleNamespace(**parts)


@pytest.mark.parametrize(
    ("dtype", "count", "seed"), [("float32", 65536, 3), ("float64", 65537, 1), ("bfloat16", 90_001, 7)]
)
def test_triton_samples_as_on_the_cpu(dtype: str, count: int, seed: int) -> None:
    way = replace(TRITON, sizes=replace(SMALL, tile=4096, wide_tile=4096))
    tensors = [values(dtype, count, count), values(dtype, 10)]
    assert_alike(way.found(tensors, seed=seed), reference(tensors, seed=seed), way)


def test_triton_waits_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    statistics = TRITON.statistics()
    statistics.summaries([values("float32", 300)])  # what the interpreter itself does once
    tensors = [values("float32", 300), values("int64", 100)]
    with monkeypatch.context() as patched:
        # The interpreter takes its arguments and its results from tensors as it must.
        for name in ("tolist", "__bool__", "__float__", "__int__", "nonzero"):
            patched.setattr(torch.Tensor, name, None)
        rows, _ = statistics.summaries(tensors, [tensor.clone() for tensor in tensors], torch.tensor(3.0))
    statistics.send()
    assert rows.resolve()[:, 4].tolist() == [300, 100]


def test_a_kernel_that_fails_later_loses_nothing_that_was_read(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(triton_statistics.Gathering):
        def add(self, plan: Any, scale: Any, seed: int) -> Any:
            if self.used.rows:
                raise RuntimeError("no memory for a kernel")
            return super().add(plan, scale, seed)

    statistics = DeviceStatistics(Account(), SMALL, kernels(Gathering=Broken))
    first = statistics.summaries([values("float32", 100)])
    with caplog.at_level(logging.WARNING, "watchglass"):
        second = statistics.summaries([values("float64", 50)])
    statistics.send()
    assert first[0].resolve()[0, 0] == 100
    assert second[0].resolve()[0, 0] == 50
    (record,) = caplog.records
    assert "without Triton" in record.getMessage()


class Copies(TorchFunctionMode):
    """Counts asynchronous copies; the interpreter makes others."""

    number = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.number += func is torch.Tensor.copy_ and (kwargs or {}).get("non_blocking", False)
        return func(*args, **(kwargs or {}))


def test_a_step_comes_in_one_copy() -> None:
    account = Account()
    statistics = TRITON.statistics(account)
    read = [statistics.summaries([values("float32", 50 + index)]) for index in range(5)]
    held = account.memory.held["cpu"]
    with Copies() as copies:
        statistics.send()
        statistics.send()
    assert copies.number == 1
    assert [rows.resolve()[0, 0] for rows, _ in read] == [50, 51, 52, 53, 54]
    # What is left are the plans for tensors that may come again.
    assert 0 < account.memory.held["cpu"] < 5 * 200 < held == account.memory.peak["cpu"]


def test_what_is_asked_for_before_it_was_sent_is_sent_then() -> None:
    statistics = TRITON.statistics()
    rows, histograms = statistics.summaries([values("float32", 50)])
    assert histograms.resolve().seen.tolist() == [50]
    later, _ = statistics.summaries([values("float32", 51)])
    statistics.send()
    assert [rows.resolve()[0, 0], later.resolve()[0, 0]] == [50, 51]


def test_what_another_thread_sends_meanwhile_is_not_added_to() -> None:
    class SentInBetween(triton_statistics.Gathering):
        """Another thread sends what was added, between a look at the room and its use."""

        def fits(self, needed: Any) -> bool:
            found = super().fits(needed)
            self.send()
            return found

    statistics = DeviceStatistics(Account(), SMALL, kernels(Gathering=SentInBetween))
    with without_warnings():
        first, _ = statistics.summaries([values("float32", 50)])
        second, _ = statistics.summaries([values("float32", 51)])
        statistics.send()
    assert [first.resolve()[0, 0], second.resolve()[0, 0]] == [50, 51]


def test_a_small_spread_about_a_large_mean_in_whole_tiles() -> None:
    way = replace(TRITON, sizes=replace(SMALL, tile=4096))
    tensor = (1000 + 0.001 * values("float64", 10_000)).to(torch.float32)
    rows, _ = way.found([tensor])
    wanted = of_array(tensor.numpy())
    assert rows[0][9] == pytest.approx(wanted[9], rel=1e-6)
    assert rows[0][7] == pytest.approx(wanted[7], rel=1e-10)


def test_room_grows_with_what_a_step_needs() -> None:
    made: list[Size] = []

    class Counted(triton_statistics.Gathering):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            made.append(self.size)

    sizes = replace(SMALL, new_gathering=Size(2, 4, 1108 * 2), full_gathering=Size(16, 32, 1108 * 16))
    statistics = DeviceStatistics(Account(), sizes, kernels(Gathering=Counted))
    tensors = [values("float32", 40 + index) for index in range(7)]

    def step() -> int:
        before = len(made)
        read = [statistics.summaries([tensor]) for tensor in tensors]
        statistics.send()
        assert [int(rows.resolve()[0, 0]) for rows, _ in read] == [40, 41, 42, 43, 44, 45, 46]
        return len(made) - before

    assert [step(), step(), step()] == [3, 1, 1]
    assert made[-1].rows == 8
    # A call that needs more than there may be gets it alone.
    rows, _ = statistics.summaries([values("float32", 10)] * 40)
    assert rows.resolve()[:, 0].tolist() == [10] * 40


def test_tensors_that_come_again_need_no_new_table() -> None:
    account = Account()
    statistics = DeviceStatistics(account, replace(SMALL, plan_bytes=300), with_triton)
    tensor = values("float32", 50)
    held = []
    for _ in range(3):
        rows, _ = statistics.summaries([tensor])
        tensor += 1
        statistics.send()
        held.append(account.memory.held["cpu"])
    assert 0 < held[0] == held[1] == held[2]
    assert rows.resolve()[0][7] == pytest.approx(float((tensor - 1).sum()), rel=1e-5)
    statistics.summaries([tensor], histograms=False)
    statistics.send()
    assert account.memory.held["cpu"] > held[0]
    kept = []
    for _ in range(20):
        kept.append(torch.ones(9))
        statistics.summaries([kept[-1]])
    statistics.send()
    assert account.memory.held["cpu"] <= 300


def test_streams_do_not_share_what_they_write_into() -> None:
    places: list[Any] = []

    class Placed(triton_statistics.Gathering):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            places.append(args[:2])

    statistics = DeviceStatistics(Account(), SMALL, kernels(Gathering=Placed))
    statistics.summaries([torch.ones(3)])
    assert places == [(torch.device("cpu"), None)]
