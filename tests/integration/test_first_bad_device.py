"""The first bad module on a device, where nothing may be waited for: what is known comes late."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import watchglass
from devices.fake_device import FakeDevice, OnDevice, move
from failing import Guard, Poisoned, Training, network, to_nan
from watchglass import open_run
from watchglass.capture.pytorch.device.readback import DeviceRows
from watchglass.record.merging import settled
from watchglass.records import FACTS

LATE = "on a device the loss is read after the update has changed the weights"


class Guarded(Guard):
    """Leaves the update out where the script says so: to look at a gradient would be to wait for it."""

    leave_out = False

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        if not self.leave_out:
            super(Guard, self).step(closure)


class DeviceTraining(Training):
    """A training run on the device."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__(move(model))
        self.optimizer = self.guard = Guarded(model.parameters(), lr=0.01)
        self.inputs, self.labels = OnDevice(self.inputs), OnDevice(self.labels)


@pytest.fixture
def waits() -> Iterator[list[str]]:
    """What waited for the device."""
    found: list[str] = []
    with FakeDevice(found.append):
        yield found


def promptly_read(hook: watchglass.Hook) -> None:
    """As if the recorder's thread read each step before the next one begins."""
    hook.port.on_finished.append(lambda step: settled(FACTS, step.records.facts) and None)


def facts_of(path: Path, training: DeviceTraining, spoilt: set[int], steps: int) -> list[dict[str, Any]]:
    with watchglass.watch(training.model, run=path, strict=True, save_interval=1000) as hook:
        promptly_read(hook)
        for number in range(steps):
            training.spoil(number in spoilt)
            training.guard.leave_out = number in spoilt
            training.step()
    run = open_run(path)
    assert not run.facts("capture_fault")
    return [{**fact.data, "at": fact.global_step} for fact in run.facts("first_bad_module")]


def test_flags_name_the_earliest_step_and_the_next_failure_is_explained(tmp_path: Path, waits: list[str]) -> None:
    training = DeviceTraining(network())
    first, second = facts_of(tmp_path / "run", training, {3, 4, 9, 10}, 12)
    assert (first["at"], first["level"], first["where"], first["refused"]) == (3, "flags", "loss", LATE)
    assert (second["at"], second["level"], second["where"]) == (9, "next_steps", "forward")
    assert (second["module"], second["tensor"], second["step"]) == ("3", "3.output", 9)
    assert waits == []
    assert [fact.global_step for fact in open_run(tmp_path / "run").facts("nonfinite_loss")] == [3, 4, 9, 10]


def test_gradients_that_are_hit_are_named(tmp_path: Path, waits: list[str]) -> None:
    training = DeviceTraining(network(Poisoned.apply))
    first, second = facts_of(tmp_path / "run", training, {3, 8}, 11)
    assert (first["at"], first["level"], first["where"]) == (3, "flags", "backward")
    assert first["tensor"] == "gradient/2.bias"
    assert (second["at"], second["level"], second["where"], second["module"]) == (8, "next_steps", "backward", "3")
    assert waits == []
    found = open_run(tmp_path / "run").facts("nonfinite_gradients")
    assert [fact.global_step for fact in found] == [3, 8]
    assert found[0].data["first_in_backward"] == "gradient/2.bias"


def test_weights_that_are_bad_as_a_step_begins_are_said_to_be(tmp_path: Path, waits: list[str]) -> None:
    training = DeviceTraining(network())

    class Overflowing(Guarded):
        """Writes what is not finite into the last weight once."""

        steps = 0

        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            self.steps += 1
            if self.steps == 8:
                training.model[5].weight.data.mul_(math.inf)  # type: ignore[index,union-attr,operator]
            else:
                super().step(closure)

    training.optimizer = training.guard = Overflowing(training.model.parameters(), lr=0.01)
    first, second = facts_of(tmp_path / "run", training, {3}, 11)
    assert (first["level"], first["at"]) == ("flags", 3)
    assert (second["at"], second["level"]) == (8, "next_steps")
    assert (second["where"], second["tensor"]) == ("weights", "5.weight")
    assert second["sentence"].endswith("Overflowing last updated it at step 7")
    assert waits == []


def test_a_loss_that_the_training_has_waited_for_is_known_before_the_update(
    tmp_path: Path, waits: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DeviceRows, "ready", property(lambda self: True))
    training = DeviceTraining(network())
    first, second = facts_of(tmp_path / "run", training, {3, 4}, 7)
    assert (first["at"], first["level"], first["where"]) == (3, "flags", "loss")
    assert "not tested yet" in first["refused"]
    # Not one step is lost.
    assert (second["at"], second["level"], second["module"]) == (4, "next_steps", "3")
    assert waits == []


class Fused(Guarded):
    """Unscales by itself and skips a step that has overflowed, as fused optimizers do."""

    _step_supports_amp_scaling = True
    grad_scale: Tensor
    found_inf: Tensor

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        if not bool(self.found_inf):
            for parameter in self.param_groups[0]["params"]:
                parameter.sub_(0.01 * parameter.grad / self.grad_scale)


@pytest.mark.parametrize("kind", [Guarded, Fused])
def test_gradients_may_overflow_where_a_scaler_is_at_work(tmp_path: Path, kind: type[Guarded]) -> None:
    # The scaler itself waits for the device.
    with FakeDevice(lambda name: None):
        training = DeviceTraining(network())
        training.optimizer = kind(training.model.parameters(), lr=0.01)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0)

        def step() -> None:
            training.optimizer.zero_grad()
            scaler.scale(training.loss()).backward()
            scaler.step(training.optimizer)
            scaler.update()

        training.step = step  # type: ignore[method-assign]
        with watchglass.watch(training.model, run=tmp_path / "run", strict=True, save_interval=1000) as hook:
            promptly_read(hook)
            for number in range(10):
                training.model[3].spoil = Poisoned.apply if number == 6 else to_nan  # type: ignore[index,union-attr]
                training.spoil(number in (3, 6, 8))
                training.step()
    run = open_run(tmp_path / "run")
    facts = [(fact.data["level"], fact.data["where"]) for fact in run.facts("first_bad_module")]
    assert facts == [("flags", "loss"), ("next_steps", "forward")]
    found = run.facts("first_bad_module")[1]
    # Of a step whose optimizer was not called the answer comes with the next one, and names it.
    assert (found.data["step"], found.global_step) == (8, 8 if kind is Fused else 9)
    assert run.facts("nonfinite_gradients") == []
