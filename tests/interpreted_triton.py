"""What only Triton's way of computing statistics has: gathering, plans, sending. In Triton's interpreter.

``tests/unit/capture/test_device.py`` runs this in a process of its own: Triton interprets or compiles, not both.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from device_cases import Account, assert_alike, found, reference, use_triton, values
from watchglass.capture.pytorch.device import device_statistics as device, readback
from watchglass.capture.pytorch.device.device_statistics import DeviceStatistics
from watchglass.stats import of_array


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """NumPy warns where the interpreter computes what a GPU computes silently."""
    with np.errstate(all="ignore"):
        yield


@pytest.mark.parametrize(
    ("dtype", "count", "seed"), [("float32", 65536, 3), ("float64", 65537, 1), ("bfloat16", 90_001, 7)]
)
def test_triton_samples_as_on_the_cpu(monkeypatch: pytest.MonkeyPatch, dtype: str, count: int, seed: int) -> None:
    triton_rows = use_triton(monkeypatch)
    monkeypatch.setattr(triton_rows, "_TILE", 4096)
    monkeypatch.setattr(triton_rows, "_WIDE_TILE", 4096)
    tensors = [values(dtype, count, count), values(dtype, 10)]
    assert_alike(found(tensors, seed=seed), reference(tensors, seed=seed), "triton")


def test_triton_waits_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    use_triton(monkeypatch)
    statistics = DeviceStatistics(Account())
    statistics.summaries([values("float32", 300)])  # what the interpreter itself does once
    tensors = [values("float32", 300), values("int64", 100)]
    with monkeypatch.context() as patched:
        # The interpreter takes its arguments and its results from tensors as it must.
        for name in ("tolist", "__bool__", "__float__", "__int__", "nonzero"):
            patched.setattr(torch.Tensor, name, None)
        rows, _ = statistics.summaries(tensors, [tensor.clone() for tensor in tensors], torch.tensor(3.0))
    statistics.send()
    assert rows.resolve()[:, 4].tolist() == [300, 100]


def test_a_kernel_that_fails_later_loses_nothing_that_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    triton_rows = use_triton(monkeypatch)
    statistics = DeviceStatistics(Account())
    first = statistics.summaries([values("float32", 100)])
    monkeypatch.setattr(triton_rows.kernels, "summarise", None)
    second = statistics.summaries([values("float64", 50)])
    statistics.send()
    assert first[0].resolve()[0, 0] == 100
    assert second[0].resolve()[0, 0] == 50
    assert statistics._failed


def test_a_step_comes_in_one_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    triton_rows = use_triton(monkeypatch)
    sent = []
    monkeypatch.setattr(
        triton_rows, "DeviceRows", lambda values: sent.append(values.numel()) or readback.DeviceRows(values)
    )
    account = Account()
    statistics = DeviceStatistics(account)
    read = [statistics.summaries([values("float32", 50 + index)]) for index in range(5)]
    assert sent == []
    held = account.memory._held["cpu"]
    statistics.send()
    statistics.send()
    assert len(sent) == 1
    assert [rows.resolve()[0, 0] for rows, _ in read] == [50, 51, 52, 53, 54]
    # What is left are the plans for tensors that may come again.
    assert 0 < account.memory._held["cpu"] < 5 * 200 < held == account.memory.peak["cpu"]


def test_what_is_asked_for_before_it_was_sent_is_sent_then(monkeypatch: pytest.MonkeyPatch) -> None:
    use_triton(monkeypatch)
    account = Account()
    statistics = DeviceStatistics(account)
    rows, histograms = statistics.summaries([values("float32", 50)])
    assert histograms.resolve().seen.tolist() == [50]
    later, _ = statistics.summaries([values("float32", 51)])
    statistics.send()
    assert [rows.resolve()[0, 0], later.resolve()[0, 0]] == [50, 51]


def test_what_another_thread_sends_meanwhile_is_not_added_to(monkeypatch: pytest.MonkeyPatch) -> None:
    triton_rows = use_triton(monkeypatch)
    statistics = DeviceStatistics(Account())
    first, _ = statistics.summaries([values("float32", 50)])
    has_room = triton_rows.Gathering.has_room

    def sent_in_between(gathering: Any, needed: Any) -> bool:
        found = has_room(gathering, needed)
        gathering.send()
        return bool(found)

    with monkeypatch.context() as patched:
        patched.setattr(triton_rows.Gathering, "has_room", sent_in_between)
        second, _ = statistics.summaries([values("float32", 51)])
    statistics.send()
    assert [first.resolve()[0, 0], second.resolve()[0, 0]] == [50, 51]
    assert not statistics._failed


def test_a_small_spread_about_a_large_mean_in_whole_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    triton_rows = use_triton(monkeypatch)
    monkeypatch.setattr(triton_rows, "_TILE", 4096)
    tensor = (1000 + 0.001 * values("float64", 10_000)).to(torch.float32)
    rows, _ = found([tensor])
    wanted = of_array(tensor.numpy())
    assert rows[0][9] == pytest.approx(wanted[9], rel=1e-6)
    assert rows[0][7] == pytest.approx(wanted[7], rel=1e-10)


def test_room_grows_with_what_a_step_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    triton_rows = use_triton(monkeypatch)
    monkeypatch.setattr(device, "_ROOM", (2, 4, 1108 * 2))
    monkeypatch.setattr(device, "_MOST", (16, 32, 1108 * 16))
    made = []
    original = triton_rows.Gathering
    monkeypatch.setattr(triton_rows, "Gathering", lambda *args: made.append(args[2]) or original(*args))
    statistics = DeviceStatistics(Account())
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


def test_tensors_that_come_again_need_no_new_table(monkeypatch: pytest.MonkeyPatch) -> None:
    triton_rows = use_triton(monkeypatch)
    copied = []
    original = triton_rows._there
    monkeypatch.setattr(
        triton_rows, "_there", lambda array, device: copied.append(array.nbytes) or original(array, device)
    )
    account = Account()
    statistics = DeviceStatistics(account)
    tensor = values("float32", 50)
    for _ in range(3):
        rows, _ = statistics.summaries([tensor])
        tensor += 1
        statistics.send()
    assert len(copied) == 2  # a table, and who works for whom
    assert rows.resolve()[0][7] == pytest.approx(float((tensor - 1).sum()), rel=1e-5)
    statistics.summaries([tensor], histograms=False)
    assert len(copied) == 4
    monkeypatch.setattr(triton_rows, "_PLAN_BYTES", 300)
    kept = []
    for _ in range(20):
        kept.append(torch.ones(9))
        statistics.summaries([kept[-1]])
    statistics.send()
    assert account.memory._held["cpu"] <= 300


def test_streams_do_not_share_what_they_write_into(monkeypatch: pytest.MonkeyPatch) -> None:
    use_triton(monkeypatch)
    statistics = DeviceStatistics(Account())
    statistics.summaries([torch.ones(3)])
    (key,) = statistics._open
    assert key == (torch.device("cpu"), None)
