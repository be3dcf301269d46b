"""The times of modules: known loads are found where they are, in the forward and in the backward."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from clocks import Now
from devices.fake_device import FakeDevice, OnDevice, move
from timed_layers import BurnsBackward
from torch_hooks import hooks_on_all_modules
from watchglass import open_run
from watchglass.capture import Hook, attach, loop
from watchglass.capture.pytorch.device.readback import stopwatch_of
from watchglass.capture.pytorch.profiling import module_times
from watchglass.cli.run_contents import head_of
from watchglass.diagnose import verdict
from watchglass.records import UntimedModules
from watchglass.run import ModuleTimes
from watchglass.view.time_tables import code_tables
from watchglass.view.verdict_sentences import closing

STEPS = 60


class LoadClock(Now):
    """A clock that only loads move."""

    def burn(self, milliseconds: float) -> None:
        self.advance(milliseconds / 1000)


class Burning(nn.Module):
    """Takes some milliseconds forward and backward, around a layer of its own."""

    def __init__(self, clock: LoadClock, forward: float, backward: float, inner: nn.Module | None = None) -> None:
        super().__init__()
        self.burn_forward, self.burn_backward = partial(clock.burn, forward), partial(clock.burn, backward)
        self.inner = inner if inner is not None else nn.Linear(4, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        self.burn_forward()
        return BurnsBackward.apply(self.inner(inputs), self.burn_backward)


class Residual(nn.Module):
    """Calls modules in another order than that of its paths, works between them, and burns itself."""

    def __init__(self, clock: LoadClock) -> None:
        super().__init__()
        self.clock = clock
        self.last = Burning(clock, 1, 2)
        self.first = Burning(clock, 4, 8, Burning(clock, 16, 32))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.relu(self.first(inputs))
        self.clock.burn(64)
        between = BurnsBackward.apply(F.gelu(hidden), partial(self.clock.burn, 128))
        return hidden + self.last(between)


def watched(path: Path, model: nn.Module, clock: LoadClock | None = None, **settings: Any) -> Hook:
    hook = Hook(path, **{"profiler": {"module_times": True}, "save_interval": 16, "strict": True, **settings})
    if clock is not None:
        hook.port.phase_clock = clock.monotonic_ns
    attach(hook.port, loop("torch"), model)
    return hook


def fit(model: nn.Module, steps: int = STEPS, micro_batches: int = 1, between: Callable[[], Any] = bool) -> None:
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        for _ in range(micro_batches):
            model(torch.ones(3, 4)).square().mean().backward()
            between()
        optimizer.step()


def times_of(path: Path) -> ModuleTimes:
    return open_run(path).module_times()


def milliseconds(times: ModuleTimes, module: str) -> list[float]:
    row = times[module]
    each = (row.self_forward_s, row.self_backward_s, row.forward_s, row.backward_s)
    return [round(1e3 * seconds, 6) for seconds in each]


def test_each_load_is_found_in_its_module(tmp_path: Path) -> None:
    clock = LoadClock()
    model = Residual(clock)
    with watched(tmp_path / "run", model, clock):
        fit(model, between=lambda: clock.burn(1000))
    times = times_of(tmp_path / "run")
    assert [row.module for row in times.rows] == [
        "", "first", "first.inner", "first.inner.inner", "relu", "last", "last.inner",
    ]  # fmt: skip
    assert milliseconds(times, "") == [64, 128, 85, 170]
    assert milliseconds(times, "first") == [4, 8, 20, 40]
    assert milliseconds(times, "first.inner") == [16, 32, 16, 32]
    assert milliseconds(times, "last") == [1, 2, 1, 2]
    assert milliseconds(times, "relu") == [0, 0, 0, 0]
    assert (times["last"].type, times["last"].calls, times["last"].self_s) == ("Burning", 1, pytest.approx(0.003))
    np.testing.assert_allclose(times.forward[:, 1], 0.004)


class Timed(nn.Module):
    """Burns ten milliseconds, and notes how long that really took on this machine."""

    def __init__(self) -> None:
        super().__init__()
        self.took_s: list[float] = []

    def forward(self, inputs: Tensor) -> Tensor:
        began = now = time.monotonic()
        while now - began < 0.01:
            now = time.monotonic()
        self.took_s.append(now - began)
        return inputs


def test_a_module_that_burns_10_ms_has_the_time_that_it_takes(tmp_path: Path) -> None:
    burning = Timed()
    model = nn.Sequential(nn.Linear(4, 4), burning, nn.Linear(4, 4))
    with watched(tmp_path / "run", model):
        fit(model)
    times = times_of(tmp_path / "run")
    measured = times.forward[:, [row.module for row in times.rows].index("1")]
    took = np.array(burning.took_s)[times.steps]
    assert (measured >= took).all()
    # Another process may come between the two clocks at single steps.
    assert np.median(measured / took) < 1.1


def test_steps_are_timed_now_and_then_and_none_that_is_captured(tmp_path: Path) -> None:
    model = nn.Linear(4, 4)
    with watched(tmp_path / "run", model, save_interval=8):
        fit(model, 1100)
    steps = times_of(tmp_path / "run").steps
    assert steps[:4].tolist() == [9, 25, 41, 57]  # not 8, 24 and so on, which are captured
    assert np.diff(steps).min() >= 16
    assert np.diff(steps)[-1] > 30
    assert len(steps) < 60


def test_micro_batches_add_up(tmp_path: Path) -> None:
    clock = LoadClock()
    model = Burning(clock, 3, 5)
    with watched(tmp_path / "run", model, clock):
        fit(model, micro_batches=4)
    times = times_of(tmp_path / "run")
    assert milliseconds(times, "")[:2] == [12, 20]
    assert times["inner"].calls == 4


class Checkpointed(nn.Module):
    def __init__(self, clock: LoadClock, reentrant: bool) -> None:
        super().__init__()
        self.first, self.second = Burning(clock, 1, 2), Burning(clock, 4, 8)
        self.reentrant = reentrant

    def forward(self, inputs: Tensor) -> Any:
        return self.second(checkpoint(self.first, inputs.requires_grad_(), use_reentrant=self.reentrant))


@pytest.mark.parametrize(("reentrant", "module"), [(False, "first"), (True, "")])
def test_what_is_recomputed_is_a_part_of_the_backward(tmp_path: Path, reentrant: bool, module: str) -> None:
    """That of the module or, where PyTorch hides its graph (reentrant), that of the module around the checkpoint."""
    clock = LoadClock()
    model = Checkpointed(clock, reentrant)
    with watched(tmp_path / "run", model, clock):
        fit(model)
    times = times_of(tmp_path / "run")
    assert milliseconds(times, "second")[:2] == [4, 8]
    assert milliseconds(times, "first")[0] == 1
    below = milliseconds(times, "second")[3] if not module else 0
    assert milliseconds(times, module)[3] - below == 3  # its backward, and its forward once more


def test_numbers_are_those_of_an_unwatched_run(tmp_path: Path) -> None:
    def trained(path: Path | None) -> dict[str, Tensor]:
        torch.manual_seed(3)
        model = nn.Sequential(
            nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Dropout(0.3), nn.BatchNorm1d(8), nn.Linear(8, 2)
        )
        hook = watched(path, model) if path is not None else None
        fit(model)
        if hook is not None:
            hook.close()
        return model.state_dict()

    bare, watched_one = trained(None), trained(tmp_path / "run")
    assert len(times_of(tmp_path / "run").steps) == 4
    assert all(torch.equal(bare[name], watched_one[name]) for name in bare)


def test_a_forward_that_raises_leaves_no_hook(tmp_path: Path) -> None:
    clock = LoadClock()
    model = nn.Sequential(Burning(clock, 1, 2), Burning(clock, 4, 8))
    before = hooks_on_all_modules()
    with watched(tmp_path / "run", model, clock):
        fit(model, 8)
        with pytest.raises(RuntimeError, match="shapes"):
            model(torch.ones(3, 5))  # step 8 is timed
        fit(model, 30)
        assert hooks_on_all_modules() == before
    assert milliseconds(times_of(tmp_path / "run"), "1")[:2] == [4, 8]


def test_a_graph_that_outlives_its_step_notes_nothing(tmp_path: Path) -> None:
    clock = LoadClock()
    model = Burning(clock, 1, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    kept = []
    with watched(tmp_path / "run", model, clock):
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss = model(torch.ones(3, 4)).square().mean()
            loss.backward(retain_graph=True)
            optimizer.step()
            kept.append(loss)
        for loss in kept:
            loss.backward()
    assert milliseconds(times_of(tmp_path / "run"), "")[:2] == [1, 2]


def test_a_compiled_model_is_not_timed_and_that_is_stated_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    with watched(tmp_path / "run", model):
        compiled = torch.compile(model, backend="eager")
        fit(compiled, 60)
    run = open_run(tmp_path / "run")
    times = run.module_times()
    assert (len(times), len(times.steps), times.on_device) == (0, 0, False)
    assert len(run.steps()) == 60
    reason = "it is compiled, and hooks would make PyTorch compile it again"
    assert times.untimed == (UntimedModules("Sequential", reason),)
    assert repr(times).endswith(f"; Sequential not timed: {reason})")
    said = f"watchglass: the modules of Sequential are not timed: {reason}; --profile-steps shows its operators"
    assert [message for message in caplog.messages if "not timed" in message] == [said]
    assert ("not timed", f"modules of Sequential: {reason}") in head_of(run)
    assert f"not timed: modules of Sequential: {reason}" in list(closing(verdict(run)))
    assert ("Modules of Sequential were not timed") in [title for title, _ in code_tables(run)]


def test_a_model_that_a_compiled_function_calls_is_not_timed_and_that_is_stated(tmp_path: Path) -> None:
    model = nn.Linear(4, 4)
    with watched(tmp_path / "run", model):

        @torch.compile(backend="eager")
        def call(inputs: Tensor) -> Tensor:
            return model(inputs)

        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(30):
            call(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    (untimed,) = times_of(tmp_path / "run").untimed
    assert untimed.model == "Linear"
    assert untimed.reason.startswith("a function was compiled that may call it")


def test_a_model_that_is_timed_beside_loaded_compiler_states_nothing(tmp_path: Path) -> None:
    torch.compile(nn.Linear(1, 1), backend="eager")(torch.ones(1, 1))
    model = nn.Linear(4, 4)
    with watched(tmp_path / "run", model):
        fit(model)
    times = times_of(tmp_path / "run")
    assert len(times)
    assert times.untimed == ()


def test_nothing_is_timed_unless_asked(tmp_path: Path) -> None:
    model = nn.Linear(4, 4)
    with watched(tmp_path / "run", model, profiler=None):
        fit(model)
    assert len(times_of(tmp_path / "run")) == 0


class Stream:
    pass


class Event:
    """An event of a device whose clock is that of the loads; waiting for it is noted with the thread that waits."""

    def __init__(self, device: Device, enable_timing: bool) -> None:
        assert enable_timing
        self.device = device

    def record(self, stream: Stream) -> None:
        assert stream is self.device.stream
        self.at_ns = self.device.clock.monotonic_ns()

    def synchronize(self) -> None:
        self.device.waiting.append(threading.get_ident())

    def elapsed_time(self, later: Event) -> float:
        return (later.at_ns - self.at_ns) / 1e6


class Device:
    """The module of PyTorch for a type of device."""

    def __init__(self, clock: LoadClock) -> None:
        self.clock, self.stream = clock, Stream()
        self.waiting: list[int] = []
        self.Event = partial(Event, self)

    def is_available(self) -> bool:
        return True

    def current_stream(self, device: torch.device) -> Stream:
        assert device.type == "xpu"
        return self.stream


def test_on_a_device_events_are_recorded_and_the_training_thread_waits_for_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = LoadClock()
    device, waited = Device(clock), list[str]()
    monkeypatch.setattr(module_times, "stopwatch_of", partial(stopwatch_of, modules={"xpu": device}))
    with FakeDevice(waited.append):
        model = move(nn.Sequential(Burning(clock, 1, 2), Burning(clock, 4, 8)))
        hook = watched(tmp_path / "run", model, save_interval=1000)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        inputs = OnDevice(torch.ones(3, 4))
        for _ in range(STEPS):
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()
        hook.close()
    assert waited == []
    assert device.waiting
    assert threading.get_ident() not in device.waiting
    times = times_of(tmp_path / "run")
    assert times.on_device
    assert milliseconds(times, "1")[:2] == [4, 8]
