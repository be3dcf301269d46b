"""Where a failure cannot be repeated, all modules are examined in the steps that follow."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import watchglass
from failing import Bad, Poisoned, Training, facts_of, network, to_nan, unrepeatable
from torch_hooks import hooks_on_all_modules, tensor_hooks
from train_twice import bits
from watchglass import Severity, open_run
from watchglass.capture.limits import CaptureLimits
from watchglass.capture.pytorch import PyTorchAdapter
from watchglass.evaluate import replay

UNREPEATABLE = "the forward takes arguments that cannot be given twice"


def failing_from(training: Training, *numbers: int) -> Callable[[int], None]:
    return lambda number: training.spoil(number in numbers)


def test_the_next_failure_is_explained(tmp_path: Path) -> None:
    training = unrepeatable(network())
    first, second = facts_of(tmp_path / "run", training, failing_from(training, 3, 6), steps=9)
    assert (first["at"], first["level"], first["where"], first["refused"]) == (3, "flags", "loss", UNREPEATABLE)
    assert (second["at"], second["level"], second["where"]) == (6, "next_steps", "forward")
    assert (second["module"], second["module_type"], second["tensor"]) == ("body.3", "Bad", "body.3.output")
    assert (second["step"], second["refused"]) == (6, "")
    (examined,) = open_run(tmp_path / "run").facts("modules_examined")
    assert (examined.global_step, examined.data) == (3, {"steps": 64})


def test_a_gradient_is_followed_backwards(tmp_path: Path) -> None:
    training = unrepeatable(network(Poisoned.apply))
    first, second = facts_of(tmp_path / "run", training, failing_from(training, 3, 5), steps=8)
    # By itself it tells the last layer that was hit.
    assert (first["at"], first["level"], first["where"]) == (3, "flags", "backward")
    assert first["tensor"] == "gradient/body.2.bias"
    assert (second["at"], second["level"], second["where"], second["module"]) == (5, "next_steps", "backward", "body.3")
    assert second["tensor"] == "gradient/body.3.output"


def test_weights_that_the_failure_has_overwritten_are_no_cause(tmp_path: Path) -> None:
    training = unrepeatable(network(), guarded=False)
    first, second = facts_of(tmp_path / "run", training, failing_from(training, 3))
    assert (first["at"], first["level"], first["where"]) == (3, "flags", "loss")
    assert (second["at"], second["level"], second["where"]) == (3, "next_steps", "weights")
    assert (second["tensor"], second["optimizer"], second["updated_at"]) == ("body.0.weight", "SGD", 3)
    assert second["refused"].startswith("the update that followed the failure")
    findings = [one for one in replay(tmp_path / "run").findings if one.severity is Severity.ERROR]
    (finding,) = (one for one in findings if one.rule == "ExplodingTensor")
    assert finding.step == 3
    assert finding.causes[0] != "poisoned_weights"
    assert "update" not in finding.message


def test_an_update_that_writes_bad_weights_is_named(tmp_path: Path) -> None:
    training = unrepeatable(network())

    def before(number: int) -> None:
        training.spoil(number == 3)
        training.optimizer.param_groups[0].update({"lr": 1e38, "weight_decay": 1e38} if number == 5 else {})

    _, second = facts_of(tmp_path / "run", training, before, steps=7)
    assert (second["at"], second["level"], second["where"], second["refused"]) == (5, "next_steps", "weights", "")
    assert (second["optimizer"], second["updated_at"]) == ("Guard", 5)
    assert "since the update of step 5 by Guard" in second["sentence"]


def test_what_else_writes_bad_weights_is_not_said_to_be_the_optimizer(tmp_path: Path) -> None:
    training = unrepeatable(network())

    def before(number: int) -> None:
        training.spoil(number == 3)
        if number == 5:
            with torch.no_grad():
                training.model.body[5].weight[0] = math.inf  # type: ignore[index,union-attr,operator]

    _, second = facts_of(tmp_path / "run", training, before, steps=7)
    assert (second["at"], second["where"], second["tensor"]) == (5, "weights", "body.5.weight")
    assert second["sentence"].endswith("no optimizer wrote it so")
    assert "optimizer" not in second


def test_finite_modules_and_a_loss_that_is_not(tmp_path: Path) -> None:
    training = unrepeatable(network())
    plain = training.loss
    bad = False
    training.loss = lambda: plain() * math.nan if bad else plain()  # type: ignore[method-assign]

    def before(number: int) -> None:
        nonlocal bad
        bad = number in (3, 5)

    _, second = facts_of(tmp_path / "run", training, before, steps=7)
    assert (second["at"], second["level"], second["where"]) == (5, "next_steps", "loss")
    assert second["sentence"].startswith("all modules are finite (largest output magnitude")


def test_a_training_run_that_leaves_the_backward_out_is_answered_too(tmp_path: Path) -> None:
    training = unrepeatable(network())
    once = iter([True])

    def step() -> None:
        training.optimizer.zero_grad()
        loss = training.loss()
        if loss.isfinite() or next(once, False):
            loss.backward()
        training.optimizer.step()

    training.step = step  # type: ignore[method-assign]
    _, second = facts_of(tmp_path / "run", training, lambda number: training.spoil(), steps=3)
    assert (second["level"], second["where"], second["module"]) == ("next_steps", "forward", "body.3")


def test_data_is_said_to_be_the_data(tmp_path: Path) -> None:
    training = unrepeatable(network())

    def before(number: int) -> None:
        training.spoil(number == 3)
        training.inputs = torch.full((16, 6), math.nan if number == 5 else 0.5)

    _, second = facts_of(tmp_path / "run", training, before, steps=7)
    assert (second["at"], second["level"], second["where"], second["tensor"]) == (5, "next_steps", "input", "input.0")


def test_micro_batches_of_the_failing_step_are_examined_already(tmp_path: Path) -> None:
    training = unrepeatable(network())

    def step() -> None:
        training.optimizer.zero_grad()
        training.loss().backward()
        training.loss().backward()
        training.optimizer.step()

    training.step = step  # type: ignore[method-assign]
    facts = facts_of(tmp_path / "run", training, failing_from(training, 3))
    assert sorted((fact["level"], fact["at"], fact["module"]) for fact in facts) == [
        ("flags", 3, ""), ("next_steps", 3, "body.3"),
    ]  # fmt: skip


def test_evaluations_are_not_examined(tmp_path: Path) -> None:
    training = unrepeatable(network())

    def before(number: int) -> None:
        if number == 5:
            training.spoil()
            with torch.no_grad():
                training.loss()
        training.spoil(number in (3, 7))

    _, second = facts_of(tmp_path / "run", training, before, steps=9)
    assert (second["level"], second["step"]) == ("next_steps", 7)


def test_it_ends_after_a_bounded_number_of_steps(tmp_path: Path) -> None:
    training = unrepeatable(network())
    counts: list[int] = []

    def before(number: int) -> None:
        counts.append(hooks_on_all_modules())
        training.spoil(number in (3, 12))

    limits = CaptureLimits(next_steps=5)
    facts = facts_of(tmp_path / "run", training, before, steps=14, limits=limits, save_interval=1000)
    assert [fact["level"] for fact in facts] == ["flags"]
    assert [count - counts[0] for count in counts] == [0] * 4 + [2] * 6 + [0] * 4


def test_steps_are_heard_of_in_full_until_there_is_an_answer(tmp_path: Path) -> None:
    training = unrepeatable(network(), guarded=False)
    steady = []

    def step() -> None:
        training.optimizer.zero_grad()
        training.loss().backward()
        if number in (30, 50):
            training.optimizer.zero_grad()
        training.optimizer.step()

    with watchglass.watch(training.model, run=tmp_path / "run", save_interval=1000, strict=True) as hook:
        adapter = PyTorchAdapter.of(hook.port)
        assert adapter is not None
        for number in range(80):
            training.spoil(number in (30, 50))
            step()
            steady.append(adapter.fast_path.on)
    assert any(steady[:30])
    assert not any(steady[30:50])
    assert any(steady[51:])
    levels = [fact.data["level"] for fact in open_run(tmp_path / "run").facts("first_bad_module")]
    assert levels == ["flags", "next_steps"]


def test_gradients_are_examined_in_every_armed_step(tmp_path: Path) -> None:
    """Also where the norm of all gradients is hardly ever computed."""
    training = unrepeatable(network())

    def before(number: int) -> None:
        training.spoil(number in (3, 5))
        if number == 5:
            training.model.body[3].spoil = Poisoned.apply  # type: ignore[index,union-attr]

    limits = CaptureLimits(norm_share=0.0, norm_interval=1 << 20)
    facts = facts_of(tmp_path / "run", training, before, steps=7, limits=limits, save_interval=1000)
    assert [(fact["level"], fact["where"]) for fact in facts] == [("flags", "loss"), ("next_steps", "backward")]


def test_models_that_are_compiled_are_left_alone(tmp_path: Path) -> None:
    training = Training(network())
    training.model = torch.compile(training.model, backend="eager")  # type: ignore[assignment]
    before = hooks_on_all_modules()
    with watchglass.watch(training.model, run=tmp_path / "run", save_interval=1000, strict=True):
        training.spoil()
        training.step()
        during = hooks_on_all_modules()
        training.step()
    assert during == before
    assert [fact.data["level"] for fact in open_run(tmp_path / "run").facts("first_bad_module")] == ["flags"]


def test_it_leaves_no_trace_in_the_training(tmp_path: Path) -> None:
    def outcome(path: Path | None) -> Any:
        training = unrepeatable(network())
        before = failing_from(training, 3)
        if path is None:
            for number in range(12):
                before(number)
                training.step()
        else:
            assert len(facts_of(path, training, before, steps=12, save_interval=1000)) == 1
        return bits([training.model.state_dict(), training.optimizer.state_dict(), torch.rand(3)])

    assert outcome(None) == outcome(tmp_path / "run")


def test_what_is_armed_goes_with_the_hook(tmp_path: Path) -> None:
    training = unrepeatable(network())
    before = hooks_on_all_modules()
    inputs = training.inputs.requires_grad_()
    with watchglass.watch(training.model, run=tmp_path / "run", save_interval=1000, strict=True):
        training.spoil()
        training.step()
        assert hooks_on_all_modules() == before + 2
        training.spoil(False)
        training.loss()
    assert hooks_on_all_modules() == before
    assert not tensor_hooks(inputs)


def test_a_module_that_is_named_late_is_a_finding_of_its_own(tmp_path: Path) -> None:
    training = unrepeatable(network())
    facts_of(tmp_path / "run", training, failing_from(training, 3, 6), steps=9)
    found = [one for one in replay(tmp_path / "run").findings if one.rule == "ExplodingTensor"]
    assert [one.step for one in found] == [3, 6]
    assert "body.3 (Bad) turned finite inputs" in found[1].message


def test_reentrant_checkpoints_are_recomputed_unseen(tmp_path: Path) -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.bad = nn.Linear(6, 3), Bad(to_nan)

        def forward(self, x: Tensor) -> Tensor:
            return torch.utils.checkpoint.checkpoint(self.bad, self.first(x), use_reentrant=True)  # type: ignore[no-any-return]

    training = unrepeatable(Checkpointed())
    _, second = facts_of(tmp_path / "run", training, failing_from(training, 3, 5))
    assert (second["level"], second["module"], second["step"]) == ("next_steps", "body.bad", 5)
