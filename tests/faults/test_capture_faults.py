"""Whatever breaks inside watchglass, the training goes on, with the same numbers."""

from __future__ import annotations

import errno
import logging
import os
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import watchglass
from waiting import PATIENCE_S, until
from watchglass import Mode, open_run
from watchglass.capture import attach, loop
from watchglass.capture.limits import DEFAULT_LIMITS, CaptureLimits
from watchglass.capture.pytorch import public_calls
from watchglass.capture.pytorch.saving.parameter_reader import ParameterReader
from watchglass.capture.pytorch.step.backwards import Backwards
from watchglass.capture.pytorch.step.module_capture import ModuleCapture
from watchglass.capture.pytorch.step.root_calls import RootCalls
from watchglass.capture.pytorch.step.update_point import UpdatePoint
from watchglass.capture.saving.exact_updates import Updates
from watchglass.errors import StoreError
from watchglass.store import LocalStore

CALLBACKS = [
    (RootCalls, "before"), (RootCalls, "after"), (RootCalls, "_open"),
    (ModuleCapture, "_after_module"), (ModuleCapture, "switch_on"),
    (Backwards, "loss_computed"), (Backwards, "before_backward"), (Backwards, "after_backward"),
    (UpdatePoint, "before"), (UpdatePoint, "after"), (UpdatePoint, "_read_gradients"),
    (ParameterReader, "begin"), (ParameterReader, "weights"), (ParameterReader, "gradients"), (Updates, "save"),
    (ParameterReader, "norm"), (ParameterReader, "learning_rates"), (ParameterReader, "describe"),
]  # fmt: skip


def train(model: nn.Module, steps: int = 12) -> list[float]:
    torch.manual_seed(5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(torch.randn(8, 6)), torch.randint(0, 3, (8,)))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))


@pytest.mark.parametrize(("owner", "name"), CALLBACKS, ids=[f"{o.__name__}.{n}" for o, n in CALLBACKS])
@pytest.mark.parametrize("after", [0, 7])
def test_a_fault_in_any_callback_leaves_the_training_as_it_was(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    owner: type,
    name: str,
    after: int,
) -> None:
    expected = train(network())
    original, calls = getattr(owner, name), 0

    def broken(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > after:
            raise RuntimeError("injected")
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, broken)
    watching = watchglass.watch(network_ := network(), run=tmp_path / "run", save_interval=1)
    with caplog.at_level(logging.WARNING, "watchglass"), watching:
        losses = train(network_)
    assert losses == expected
    if calls > after:
        messages = [record.message for record in caplog.records]
        assert len(messages) == 1
        assert "capture is off: RuntimeError" in messages[0]
        assert not public_calls.EVERY_BACKWARD.before
        run = open_run(tmp_path / "run")
        (fact,) = run.facts("capture_fault")
        assert fact.data["error"] == "RuntimeError: injected"
        verdict = run.verdict()
        assert "watchglass failed, and recorded nothing" in f"{verdict.unjudged} {verdict.capture['fault']}"
    else:
        assert owner in (ParameterReader, Updates), "every other callback is called often enough to break"


def test_a_fault_on_the_fast_path_is_recorded_although_no_step_is_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: Any) -> bool:
        raise RuntimeError("injected")

    monkeypatch.setattr(ParameterReader, "quick_norm", broken)
    expected, model = train(network(), 60), network()
    every_norm = replace(DEFAULT_LIMITS, norm_interval=1)
    hook = watchglass.Hook(tmp_path / "run", limits=every_norm, save_interval=1000)
    attach(hook.port, loop("torch"), model)
    with hook:
        assert train(model, 60) == expected
    run = open_run(tmp_path / "run")
    (fact,) = run.facts("capture_fault")
    assert fact.source == "FastPath.before_update"
    assert 8 < fact.global_step == run.steps()[-1]


def test_an_evaluator_that_cannot_start_ends_no_recording(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def refused(attempt: int) -> None:
        raise OSError(errno.EAGAIN, "no more processes")

    model = network()
    hook = watchglass.watch(model, run=tmp_path / "run")
    hook.port.on_start.append(refused)
    with caplog.at_level(logging.WARNING, "watchglass"), hook:
        train(model)
    assert open_run(tmp_path / "run").steps() == list(range(12))
    (message,) = caplog.messages
    assert "no more processes; the run is recorded nevertheless" in message


def test_evaluations_before_the_first_training_step_are_dropped_with_a_count(tmp_path: Path) -> None:
    with watchglass.Hook(tmp_path / "run", strict=True, limits=CaptureLimits(early_steps=3)) as hook:
        for mode in ("eval",) * 5 + ("train",):
            with hook.step(mode):
                hook.save_scalar("loss", 1.0)
    run = open_run(tmp_path / "run")
    assert len(run.steps(Mode.EVAL)) == 3
    assert run.worker().lifecycle[-1]["counters"]["dropped"]["steps"] == 2


def test_a_disk_that_fills_up_loses_nothing_once_there_is_room_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    full = True

    class Disk(LocalStore):
        def append(self, path: str, data: bytes) -> None:
            if full:
                raise StoreError(f"{path} cannot be written: {os.strerror(errno.ENOSPC)}; free some space")
            super().append(path, data)

    model = network()
    hook = watchglass.Hook(tmp_path / "run", open_store=Disk, flush_interval_s=0.02, save_interval=1)
    attach(hook.port, loop("torch"), model)
    losses = train(model, 30)
    hook.flush()
    full = False
    losses += train(model, 30)
    hook.close()
    assert len(losses) == 60
    run = open_run(tmp_path / "run")
    assert run.steps() == list(range(60))


def test_a_recorder_that_breaks_is_reported_and_the_training_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = train(network(), 40)

    class Broken(LocalStore):
        def append(self, path: str, data: bytes) -> None:
            raise RuntimeError("injected")

    model = network()
    watched = watchglass.Hook(tmp_path / "run", open_store=Broken, flush_interval_s=0.01)
    attach(watched.port, loop("torch"), model)
    with caplog.at_level(logging.WARNING, "watchglass"), watched:
        assert train(model, 40) == expected
        until(lambda: bool(caplog.records))
        held = watched.port.cost.report()["peak_bytes"]
        train(model, 40)
        assert watched.port.cost.report()["peak_bytes"] == held, "no thread would take them out again"
    assert ["recording stopped" in record.message for record in caplog.records] == [True]


def test_a_folder_that_cannot_be_written_costs_a_warning_when_it_begins_and_one_when_it_ends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    model = network()
    with caplog.at_level(logging.WARNING, "watchglass"), watchglass.watch(model, run=tmp_path / "file" / "run"):
        assert len(train(model)) == 12
    begun, ended = caplog.messages
    assert "a file is in the way of a folder" in begun
    assert "retrying" in begun
    assert "recording stopped" in ended


def test_a_saved_model_loads_where_watchglass_is_not_installed(tmp_path: Path) -> None:
    model = network()
    with watchglass.watch(model, run=tmp_path / "run"):
        train(model, 3)
        torch.save(model, tmp_path / "model.pt")
        torch.save({"model": model.state_dict()}, tmp_path / "state.pt")
    code = """
        import sys
        sys.modules["watchglass"] = None
        import torch
        model = torch.load(sys.argv[1], weights_only=False)
        print(model(torch.zeros(2, 6)).shape)
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "model.pt")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.stdout.strip() == "torch.Size([2, 3])", done.stderr


def test_a_watched_step_imports_nothing_that_a_guest_should_not(tmp_path: Path) -> None:
    code = """
        import sys, torch
        from torch import nn
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        def step():
            nn.functional.cross_entropy(model(torch.randn(3, 4)), torch.tensor([0, 1, 1])).backward()
            optimizer.step()
        step()
        before = set(sys.modules)
        import watchglass
        with watchglass.watch(model, run=sys.argv[1], strict=True):
            for _ in range(20): step()
        new = {name.split(".")[0] for name in set(sys.modules) - before}
        print(sorted(name for name in new if name not in sys.stdlib_module_names))
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    imported = {name for name in words(done.stdout) if not name.startswith("_cython")}
    # pyarrow takes cloudpickle along where it finds it.
    assert imported <= {"watchglass", "pyarrow", "safetensors", "numpy", "cloudpickle"}
    assert "pyarrow" in imported, "the recorder encodes statistics"


def words(text: str) -> list[str]:
    return [word for word in (part.strip(" '[]\n") for part in text.split(",")) if word]


def test_importing_watchglass_is_light() -> None:
    code = """
        import sys
        before = set(sys.modules)
        import watchglass
        new = {name.split(".")[0] for name in set(sys.modules) - before}
        print(sorted(name for name in new if name not in sys.stdlib_module_names))
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert words(done.stdout) == ["watchglass"]


def test_nothing_is_written_before_the_first_training_step(tmp_path: Path) -> None:
    import threading

    model = network()
    hook = watchglass.watch(model, run=tmp_path / "run", strict=True)
    with torch.no_grad():
        model(torch.randn(2, 6))
    assert not (tmp_path / "run").exists()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("watchglass")]
    hook.close()
    assert not (tmp_path / "run").exists()
