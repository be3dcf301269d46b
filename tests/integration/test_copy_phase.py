"""The phase ``copy``: known copies take their time, on a device alone, and forked processes are left alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader

from clocks import Now
from watchglass import Mode, open_run
from watchglass.capture import Hook
from watchglass.capture.pytorch import PyTorchAdapter
from watchglass.run import Phases

#: Time of a copy, and steps of a run; captured and others.
COPY_S, STEPS = 0.01, 40


class Copying(TorchDispatchMode):
    """Copies take ten milliseconds of a clock that nothing else moves."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Now()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.clock.advance(COPY_S)
        return func(*args, **(kwargs or {}))


class Model(nn.Module):
    def __init__(self, device: str) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)
        self.on_device = nn.Parameter(torch.empty(1, device=device), requires_grad=False)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.linear(inputs)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def trained(path: Path, copying: Copying, device: str = "meta", compiled: bool = False) -> Phases:
    model = Model(device)
    called = torch.compile(model, backend="eager") if compiled else model
    optimizer = torch.optim.SGD(model.linear.parameters(), 0.1)
    with Hook(path, profiler=True, save_interval=16, strict=True) as hook:
        hook.port.phase_clock = copying.clock.monotonic_ns
        PyTorchAdapter(hook.port, discover=True)
        for inputs in DataLoader(torch.ones(STEPS, 4)):
            with copying:
                inputs.to("meta", non_blocking=True)
            optimizer.zero_grad()
            F.cross_entropy(called(inputs), torch.zeros(1, dtype=torch.long)).backward()
            optimizer.step()
        if device == "meta":
            model.eval()
            with torch.no_grad():
                for inputs in DataLoader(torch.ones(3, 4)):
                    with copying:
                        inputs.to("meta")
                    called(inputs)
    assert "to" not in vars(Tensor)
    return open_run(path).phases()


@pytest.mark.parametrize("compiled", [False, True])
def test_the_time_of_a_copy_is_in_its_phase_alone(tmp_path: Path, compiled: bool) -> None:
    phases = trained(tmp_path / "run", Copying(), compiled=compiled)
    assert len(phases) == STEPS
    # The first copy is before the first step, which shows that the model is on a device.
    np.testing.assert_allclose(phases["copy"][1:], COPY_S, rtol=1e-6)
    assert phases["prepare"][1:].max() == 0
    ends = open_run(tmp_path / "run").worker().tables.steps.log.latest
    train = ends[ends["mode"] == int(Mode.TRAIN)]["end_ns"].astype(np.int64)
    np.testing.assert_allclose(phases.seconds[1:], np.diff(train) / 1e9, rtol=1e-6)
    evaluated = open_run(tmp_path / "run").phases(Mode.EVAL)["copy"]
    np.testing.assert_allclose(evaluated, COPY_S, rtol=1e-6)


def test_without_a_device_no_method_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    placed: list[str] = []
    method = "watchglass.capture.pytorch.profiling.device_copies.CopyMethod"
    monkeypatch.setattr(method, lambda *of: placed.append(of[0]))
    phases = trained(tmp_path / "run", Copying(), device="cpu")
    assert placed == []
    assert phases["copy"].max() == 0
    np.testing.assert_allclose(phases["prepare"][1:], COPY_S, rtol=1e-6)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_in_a_forked_process_that_trains_nothing_no_method_is_replaced(tmp_path: Path) -> None:
    model = Model("meta")
    optimizer = torch.optim.SGD(model.linear.parameters(), 0.1)
    with Hook(tmp_path / "run", profiler=True, strict=True) as hook:
        PyTorchAdapter(hook.port, discover=True)
        for _ in range(2):
            F.cross_entropy(model(torch.ones(1, 4)), torch.zeros(1, dtype=torch.long)).backward()
            optimizer.step()
        assert "to" in vars(Tensor)

        class Replaced(torch.utils.data.Dataset[bool]):
            def __len__(self) -> int:
                return 2

            def __getitem__(self, index: int) -> bool:
                return "to" in vars(Tensor)

        loader = DataLoader(Replaced(), num_workers=1, multiprocessing_context="fork")
        assert [bool(each) for each in loader] == [False, False]
        assert "to" in vars(Tensor)
