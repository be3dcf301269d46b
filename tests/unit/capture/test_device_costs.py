"""What statistics on devices cost: no wait, memory of a fixed size, device time that is read late."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from device_cases import Account, found, values
from fake_device import FakeDevice, OnDevice
from watchglass.capture import Hook
from watchglass.capture.pytorch.device import readback, torch_statistics
from watchglass.capture.pytorch.device.device_statistics import DeviceStatistics
from watchglass.capture.pytorch.saving import Saving


def waits(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            raise AssertionError(f"Tensor.{name} waits for the device")

        return call

    for name in (
        "item",
        "cpu",
        "tolist",
        "numpy",
        "__bool__",
        "__float__",
        "__int__",
        "__index__",
        "nonzero",
        "unique",
    ):
        monkeypatch.setattr(torch.Tensor, name, refused(name))


@pytest.mark.parametrize("scale", [None, 2.0, torch.tensor(2.0)])
def test_nothing_waits_before_numbers_are_asked_for(monkeypatch: pytest.MonkeyPatch, scale: Any) -> None:
    tensors = [values("float32", 70_000), values("bfloat16", 100), values("complex64", 9), values("bool", 8)]
    before = [tensor.clone() for tensor in tensors]
    statistics = DeviceStatistics(Account())
    with monkeypatch.context() as patched:
        waits(patched)
        read = statistics.summaries(tensors, before, scale)
        statistics.send()
    assert read[0].resolve()[:, 4].tolist() == [70_000, 100, 9, 8]


def test_nothing_waits_for_a_device() -> None:
    waited: list[str] = []
    with FakeDevice(waited.append):
        tensor = OnDevice(values("float32", 300).view(20, 15))
        statistics = DeviceStatistics(Account())
        rows, histograms = statistics.summaries([tensor, tensor.t()], [tensor, tensor], OnDevice(torch.tensor(2.0)))
        statistics.send()
    assert waited == []
    assert rows.resolve()[:, 0].tolist() == [300, 300]
    assert histograms.resolve().seen.tolist() == [300, 300]


@pytest.mark.parametrize("count", [1 << 10, 1 << 22])
def test_memory_does_not_grow_with_tensors(count: int) -> None:
    account = Account()
    seen = []
    original = account.memory.hold
    account.memory.hold = lambda name, size: (seen.append(size), original(name, size))[1]  # type: ignore[method-assign]
    found([torch.ones(count)] * 3, account=account)
    assert sum(seen) == 0
    assert 0 < account.memory.peak["cpu"] <= 42 << 20


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_blocks_hold_no_more_than_is_stated(dtype: str) -> None:
    tensor, older = values(dtype, 3_000_000), values(dtype, 3_000_000, 1)
    settings: Any = {"histograms": True, "seed": 0, "time": readback.DeviceTime(lambda ns: None)}
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        torch_statistics.summaries([tensor, tensor], [older, older], 3.0, **settings)
    held = peak = 0
    for event in profiled.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    assert 1 << 20 < peak <= torch_statistics.peak_bytes([tensor, tensor])


class FakeEvent:
    """An event of a device, which is over unless a test says otherwise."""

    over = True

    def __init__(self, enable_timing: bool = False) -> None:
        self.enable_timing = enable_timing

    def record(self, stream: Any) -> None:
        self.stream = stream

    def query(self) -> bool:
        return FakeEvent.over

    def elapsed_time(self, end: FakeEvent) -> float:
        assert self.enable_timing
        assert end.enable_timing
        return 0.25


@pytest.fixture
def fake_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA events without a device."""
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: "stream")


@pytest.mark.usefixtures("fake_events")
def test_device_time_is_read_late_and_stands_for_what_was_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    spent: list[int] = []
    time = readback.DeviceTime(spent.append)
    gpu = SimpleNamespace(type="cuda")
    for _ in range(16):
        for _ in range(3):
            with time.span(gpu):  # type: ignore[arg-type]
                pass
        time.turn()
    assert spent == []
    monkeypatch.setattr(FakeEvent, "over", False)
    time.read()
    assert spent == []
    monkeypatch.setattr(FakeEvent, "over", True)
    time.read()
    time.read()
    assert spent == [8 * 250_000] * 6  # two of the sixteen turns, each for eight
    with time.span(torch.device("cpu")):
        pass
    time.read()
    assert len(spent) == 6


@pytest.mark.usefixtures("fake_events")
def test_without_triton_one_step_in_so_many_is_timed_too() -> None:
    """Or each would stand for those that are not timed. Steps at which nothing is looked at take no turn."""
    account = Account()
    statistics = DeviceStatistics(account)
    gpu = SimpleNamespace(type="cuda")
    for step in range(64):
        if step % 4 == 0:
            with statistics._time.span(gpu):  # type: ignore[arg-type]
                pass
        statistics.send()
    statistics._time.read()
    assert account.device_ns == 16 * 250_000, "sixteen captures, of which two were timed"


@pytest.mark.usefixtures("fake_events")
def test_compiling_is_no_work_of_the_device() -> None:
    spent: list[int] = []
    time = readback.DeviceTime(spent.append)
    for kernel in ("one", "other", "one", "one"):
        with time.span(SimpleNamespace(type="cuda"), kernel):  # type: ignore[arg-type]
            pass
    time.read()
    assert len(spent) == 2


@pytest.mark.usefixtures("fake_events")
def test_what_a_launch_that_failed_took_is_not_counted() -> None:
    spent: list[int] = []
    time = readback.DeviceTime(spent.append)
    with pytest.raises(ValueError, match="no"), time.span(SimpleNamespace(type="cuda")):  # type: ignore[arg-type]
        raise ValueError("no")
    time.read()
    assert spent == []


@pytest.mark.parametrize("kind", ["cuda", "xpu", "mps"])
def test_every_device_has_its_own_event_to_wait_for(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    recorded: list[Any] = []

    class Event:
        def record(self, *stream: Any) -> None:
            recorded.extend(stream or ["its only stream"])

    module = getattr(torch, kind)
    monkeypatch.setattr(module, "Event", Event)
    monkeypatch.setattr(module, "is_available", lambda: True, raising=False)
    monkeypatch.setattr(module, "current_stream", lambda device: device, raising=False)
    place = torch.device(kind, 0 if kind == "mps" else 1)
    assert isinstance(readback._recorded(place), Event)
    assert recorded == ["its only stream" if kind == "mps" else place]
    assert readback._recorded(torch.device("cpu")) is None


def test_numbers_come_to_the_host_whatever_the_default_device_is() -> None:
    values = torch.arange(3.0)
    with torch.device("meta"):
        rows = readback.DeviceRows(values)
    assert rows.resolve().tolist() == [0, 1, 2]


def test_what_was_gathered_is_sent_as_a_step_ends(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sent: list[int] = []
    monkeypatch.setattr(DeviceStatistics, "send", lambda self: sent.append(hook.clock.next_train_step))
    with Hook(run=tmp_path / "run") as hook:
        Saving(hook)
        for _ in range(3):
            with hook.step("train"):
                assert len(sent) == hook.clock.next_train_step - 1
    assert sent == [1, 2, 3]
