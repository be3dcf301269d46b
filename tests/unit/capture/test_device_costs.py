"""What statistics on devices cost: no wait, memory of a fixed size, device time that is read late."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from devices.device_cases import BLOCKS, Account, values
from devices.fake_device import DEVICE, FakeDevice, OnDevice
from watchglass.capture import FRAMEWORKS, Hook, loop
from watchglass.capture.frameworks import member
from watchglass.capture.pytorch.device import readback, torch_statistics
from watchglass.capture.pytorch.device.device_statistics import DeviceStatistics
from watchglass.capture.pytorch.device.sizes import DEFAULT_SIZES
from watchglass.capture.pytorch.saving.reduce import PyTorchArrays


@pytest.mark.parametrize("scale", [None, 2.0, torch.tensor(2.0)])
def test_nothing_waits_before_numbers_are_asked_for(scale: Any) -> None:
    tensors = [values("float32", 70_000), values("bfloat16", 100), values("complex64", 9), values("bool", 8)]
    waited: list[str] = []
    statistics = DeviceStatistics(Account())
    with FakeDevice(waited.append):
        there, before = [OnDevice(tensor) for tensor in tensors], [OnDevice(tensor.clone()) for tensor in tensors]
        scale = OnDevice(scale) if isinstance(scale, torch.Tensor) else scale
        read = statistics.summaries(there, before, scale)
        statistics.send()
    assert waited == []
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
    replace(BLOCKS, sizes=DEFAULT_SIZES).found([torch.ones(count)] * 3, account=account)
    assert account.memory.held == {"cpu": 0}
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
    """An event of a device."""

    def __init__(self, over: Callable[[], bool], enable_timing: bool) -> None:
        self.query = over
        self.enable_timing = enable_timing

    def record(self, stream: Any) -> None:
        self.stream = stream

    def elapsed_time(self, end: FakeEvent) -> float:
        assert self.enable_timing
        assert end.enable_timing
        return 0.25


class FakeCuda:
    """Events without a device; they are over unless a test says otherwise."""

    over = True

    def Event(self, enable_timing: bool) -> FakeEvent:  # noqa: N802
        return FakeEvent(lambda: self.over, enable_timing)

    def current_stream(self, device: Any) -> str:
        return "stream"


GPU: Any = SimpleNamespace(type="cuda")


def test_device_time_is_read_late_and_stands_for_what_was_not_timed() -> None:
    spent: list[int] = []
    cuda = FakeCuda()
    time = readback.DeviceTime(spent.append, cuda)
    for _ in range(16):
        for _ in range(3):
            with time.span(GPU):
                pass
        time.turn()
    assert spent == []
    cuda.over = False
    time.read()
    assert spent == []
    cuda.over = True
    time.read()
    time.read()
    assert spent == [8 * 250_000] * 6  # two of the sixteen turns, each for eight
    with time.span(torch.device("cpu")):
        pass
    time.read()
    assert len(spent) == 6


class TimedAsGpu(readback.DeviceTime):
    """Measures launches on the CPU as if it were a GPU."""

    def __init__(self, report: Callable[[int], None]) -> None:
        super().__init__(report, FakeCuda())

    def span(self, device: torch.device, kernel: Any = None) -> AbstractContextManager[None]:
        return super().span(GPU, kernel)


def test_without_triton_one_step_in_so_many_is_timed_too() -> None:
    """Otherwise each would stand for those that are not timed. Steps at which nothing is read take no turn."""
    account = Account()
    statistics = DeviceStatistics(account, timer=TimedAsGpu)
    for step in range(64):
        if step % 4 == 0:
            rows, _ = statistics.summaries([torch.ones(3)], histograms=False)
        statistics.send()
    rows.resolve()
    assert account.device_ns == 16 * 250_000, "sixteen captures, of which two were timed"


def test_compiling_is_no_work_of_the_device() -> None:
    spent: list[int] = []
    time = readback.DeviceTime(spent.append, FakeCuda())
    for kernel in ("one", "other", "one", "one"):
        with time.span(GPU, kernel):
            pass
    time.read()
    assert len(spent) == 2


def test_what_a_launch_that_failed_took_is_not_counted() -> None:
    spent: list[int] = []
    time = readback.DeviceTime(spent.append, FakeCuda())
    with pytest.raises(ValueError, match="no"), time.span(GPU):
        raise ValueError("no")
    time.read()
    assert spent == []


@pytest.mark.parametrize("kind", ["cuda", "xpu", "mps"])
def test_every_device_has_its_own_event_to_wait_for(kind: str) -> None:
    recorded: list[Any] = []

    class Event:
        def record(self, *stream: Any) -> None:
            recorded.extend(stream or ["its only stream"])

    class Elsewhere(OnDevice):
        device = property(lambda self: place)  # type: ignore[assignment]

    module = SimpleNamespace(Event=Event, is_available=lambda: True, current_stream=lambda device: device)
    place = torch.device(kind, 0 if kind == "mps" else 1)
    modules = {kind: module}
    assert not readback.DeviceRows(Elsewhere(torch.ones(2)), modules).here
    assert recorded == ["its only stream" if kind == "mps" else place]
    assert readback.DeviceRows(torch.ones(2), modules).here


def test_numbers_come_to_the_host_whatever_the_default_device_is() -> None:
    values = torch.arange(3.0)
    with torch.device("meta"):
        rows = readback.DeviceRows(values)
    assert rows.resolve().tolist() == [0, 1, 2]


def test_what_was_gathered_is_sent_as_a_step_ends(tmp_path: Path) -> None:
    sent: list[int] = []

    class Gathered(DeviceStatistics):
        def send(self) -> None:
            sent.append(hook.port.clock.next_train_step)

    with Hook(run=tmp_path / "run") as hook:
        arrays: PyTorchArrays = member(FRAMEWORKS["torch"].arrays)
        arrays._on_device[hook.port.cost] = Gathered(hook.port.cost)
        loop("torch").attach(hook.port)
        for _ in range(3):
            with hook.step("train"):
                assert len(sent) == hook.port.clock.next_train_step - 1
    assert sent == [1, 2, 3]


def test_what_reads_tensors_keeps_no_run_alive(tmp_path: Path) -> None:
    with Hook(run=tmp_path / "run") as hook:
        loop("torch").attach(hook.port)
        with FakeDevice(lambda name: None), hook.step("train"):
            hook.save_tensor("mine", torch.ones(3).to(DEVICE))
    cost = weakref.ref(hook.port.cost)
    del hook
    gc.collect()
    assert cost() is None
