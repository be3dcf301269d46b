"""Updates that scripts write by hand: each is a step, with the loss, the gradient and the change that it had."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import watchglass
from train_twice import ALL, STEPS, Stack, Watch, batch, l2, trained_twice
from watchglass import Mode, open_run
from watchglass.capture.pytorch import PyTorchAdapter
from watchglass.diagnose import verdict
from watchglass.evaluate import replay
from watchglass.records import Status, Verdict
from watchglass.rules import capture_for, default_rules

RATE = 0.05
Update = Callable[[nn.Module], None]


def by_data(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.data -= RATE * gradient(parameter)


def in_place(model: nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(gradient(parameter), alpha=-RATE)


def by_copying(model: nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter - RATE * gradient(parameter))


def all_at_once(model: nn.Module) -> None:
    parameters = list(model.parameters())
    with torch.no_grad():
        torch._foreach_sub_(parameters, [gradient(each) for each in parameters], alpha=RATE)


def by_replacing(model: nn.Module) -> None:
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            setattr(module, name, nn.Parameter(parameter.detach() - RATE * gradient(parameter)))


def gradient(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


UPDATES: list[Update] = [by_data, in_place, by_copying, all_at_once, by_replacing]


def test_a_loop_that_changes_how_it_updates_counts_one_step_less(tmp_path: Path) -> None:
    """After some updates that versions have shown, no values are kept for those that they do not show."""
    model = Stack()
    with watchglass.watch(model, run=tmp_path, strict=True, save_interval=1):
        for number in range(40):
            inputs, labels = batch(number)
            model.zero_grad()
            F.cross_entropy(model(inputs), labels).backward()
            (in_place if number < 20 else by_data)(model)
    assert len(open_run(tmp_path).scalars("loss")[0]) == 39


@pytest.mark.parametrize("steps", [12, 100])
def test_rules_on_optimizers_and_schedulers_do_not_apply(tmp_path: Path, steps: int) -> None:
    model = Stack()
    with watchglass.watch(model, run=tmp_path, strict=True, **{**capture_for(default_rules()), "save_interval": 1}):
        for number in range(steps):
            inputs, labels = batch(number % len(ALL))
            model.zero_grad()
            F.cross_entropy(model(inputs), labels).backward()
            in_place(model)
    statuses = {each.rule: each for each in replay(tmp_path, default_rules()).statuses}
    assert [each for each in statuses.values() if each.status is Status.STARVED] == []
    names = ("LearningRateZero", "SchedulerMisuse", "OptimizerMissesParameter")
    assert [(statuses[name].status, statuses[name].reason) for name in names] == [
        (Status.NOT_APPLICABLE, "no optimizer with a learning rate was seen (needed to follow the learning rate)"),
        (Status.NOT_APPLICABLE, "no learning-rate scheduler was seen"),
        (
            Status.NOT_APPLICABLE,
            "no step of an optimizer was seen (needed to see which parameters the optimizers hold)",
        ),
    ]


@pytest.mark.parametrize("update", UPDATES, ids=lambda update: update.__name__)
def test_each_way_to_write_an_update_is_a_step(tmp_path: Path, update: Update) -> None:
    seen: dict[str, list[float]] = {}

    def training(watch: Watch) -> Any:
        seen.update(loss=[], gradient=[], evaluation=[])
        model = Stack()
        watch(model)
        for number in ALL:
            inputs, labels = batch(number)
            for parameter in model.parameters():
                parameter.grad = None
            loss = F.cross_entropy(model(inputs), labels)
            loss.backward()
            seen["loss"].append(loss.item())
            seen["gradient"].append(float(gradient(model.first.weight).norm()))
            update(model)
            if number % 6 == 5:
                with torch.no_grad():
                    seen["evaluation"].append(F.cross_entropy(model(inputs), labels).item())
        return model, seen["loss"]

    run = trained_twice(tmp_path, training)
    assert run.steps() == ALL
    np.testing.assert_allclose(run.scalars("loss")[1], seen["loss"], rtol=1e-6)
    np.testing.assert_allclose(run.scalars("loss", mode=Mode.EVAL)[1], seen["evaluation"], rtol=1e-6)
    # Before the first update nothing says that there will be any: an optimizer may be made elsewhere.
    gradients = l2(run, "gradient/first.weight")
    np.testing.assert_allclose([gradients[number] for number in ALL[1:]], seen["gradient"][1:], rtol=1e-5)
    found = open_run(tmp_path / "found")
    np.testing.assert_allclose(list(l2(found, "gradient/first.weight").values()), seen["gradient"], rtol=1e-5)
    if update is not by_replacing:
        changes = l2(found, "update/first.weight")
        np.testing.assert_allclose(list(changes.values()), RATE * np.array(seen["gradient"]), rtol=1e-3)


def found(path: Path, training: Callable[[], Any], **settings: Any) -> Any:
    """The run of a training run as ``watchglass run`` watches it."""
    hook = watchglass.Hook(run=path, save_interval=1, strict=True, **settings)
    PyTorchAdapter(hook.port, discover=True)
    training()
    hook.close()
    return open_run(path)


def test_tensors_of_no_module_are_trained_as_well(tmp_path: Path) -> None:
    seen: list[float] = []

    def training() -> None:
        torch.manual_seed(0)
        inputs = torch.randn(50, 3)
        targets = inputs.sum(1)
        weight, bias = torch.randn(3, requires_grad=True), torch.zeros(1, requires_grad=True)
        for _ in ALL:
            loss = ((inputs @ weight + bias - targets) ** 2).mean()
            seen.append(loss.item())
            loss.backward()
            for each in (weight, bias):
                each.data -= RATE * gradient(each)
                each.grad = None

    run = found(tmp_path / "run", training)
    assert run.steps() == ALL
    np.testing.assert_allclose(run.scalars("loss")[1], seen, rtol=1e-6)
    assert list(l2(run, "gradient/parameters/0")) == list(l2(run, "update/parameters/1")) == ALL


def test_tensors_that_are_replaced_at_each_update_keep_their_names(tmp_path: Path) -> None:
    def training() -> None:
        weight = torch.ones(3, requires_grad=True)
        for _ in ALL:
            (weight**2).sum().backward()
            weight = (weight - RATE * gradient(weight)).detach().requires_grad_()

    run = found(tmp_path / "run", training)
    assert run.steps() == ALL
    assert {"loss", "gradient/parameters/0"} <= set(run.tensor_names())


def test_backwards_without_an_update_are_no_steps_but_a_fact(tmp_path: Path) -> None:
    def training() -> None:
        model = Stack()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for number in ALL:
            inputs, labels = batch(number)
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), labels).backward()

    run = found(tmp_path / "run", training)
    assert len(run.steps()) <= 1
    (fact,) = run.facts("unstepped_backwards")
    assert {key: value for key, value in fact.data.items() if value} == {
        "backwards": STEPS, "reason": "no optimizer stepped", "optimizer": "SGD"
    }  # fmt: skip


@pytest.mark.parametrize("count", [1, 3])
def test_weights_that_change_behind_an_optimizer_are_no_further_steps(tmp_path: Path, count: int) -> None:
    def training() -> None:
        model = Stack()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for number in ALL:
            optimizer.zero_grad()
            for part in range(count):
                inputs, labels = batch(10 * number + part)
                F.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
            for parameter in model.parameters():
                parameter.data.clamp_(-0.1, 0.1)

    run = found(tmp_path / "run", training)
    assert run.steps() == ALL
    assert list(l2(run, "gradient/first.weight")) == ALL
    assert not run.facts("unstepped_backwards")


def test_attacks_on_inputs_are_no_steps(tmp_path: Path) -> None:
    def training() -> None:
        model = Stack()
        for number in ALL:
            inputs, labels = batch(number)
            inputs.requires_grad_()
            F.cross_entropy(model(inputs), labels).backward()
            with torch.no_grad():
                model(inputs + 0.1 * gradient(inputs).sign())

    run = found(tmp_path / "run", training)
    assert len(run.steps()) <= 1
    assert run.facts("unstepped_backwards")


def test_layers_that_are_called_by_their_forward_are_captured(tmp_path: Path) -> None:
    def training() -> None:
        layers = [nn.Linear(12, 16), nn.Linear(16, 4)]
        optimizers = [torch.optim.SGD(layer.parameters(), 0.05) for layer in layers]
        for number in ALL:
            hidden = batch(number)[0]
            for layer, optimizer in zip(layers, optimizers, strict=True):
                optimizer.zero_grad()
                output = layer.forward(hidden)
                (output.pow(2).mean() - 1).pow(2).backward()
                optimizer.step()
                hidden = output.detach()

    run = found(tmp_path / "run", training)
    assert run.steps() == ALL
    for name in ("weight", "model_2.weight", "update/bias", "gradient/model_2.bias"):
        assert list(l2(run, name)) == ALL, name
    assert len(run.scalars("loss")[1]) == STEPS


@pytest.mark.parametrize("kind", ["Adam", "LBFGS"])
def test_an_image_that_is_optimised_is_a_tensor_of_its_optimizer(tmp_path: Path, kind: str) -> None:
    seen: list[float] = []

    def training() -> None:
        torch.manual_seed(0)
        features = nn.Sequential(nn.Linear(12, 16), nn.Tanh()).requires_grad_(False)
        wanted = features(torch.rand(4, 12))
        image = torch.rand(4, 12, requires_grad=True)
        optimizer: Any = getattr(torch.optim, kind)([image], lr=0.05)

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = F.mse_loss(features(image), wanted)
            loss.backward()
            return loss

        seen.extend(float(optimizer.step(closure).detach()) for _ in ALL)

    run = found(tmp_path / "run", training)
    assert run.steps() == ALL
    np.testing.assert_allclose(run.scalars("loss")[1], seen, rtol=1e-6)
    for name in ("optimizer0/group0/0", "gradient/optimizer0/group0/0", "update/optimizer0/group0/0"):
        assert list(l2(run, name)) == ALL


@pytest.mark.parametrize(
    ("at", "steps", "parts", "late"),
    [(40, 50, 1, False), (40, 50, 1, True), (40, 50, 3, True), (49, 50, 1, True), (6, 20, 1, True)],
)
def test_each_step_past_the_hooks_is_counted_also_the_first(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, at: int, steps: int, parts: int, late: bool
) -> None:
    """Where the optimizer's ``step`` is put back: at the beginning of a step, or just before the optimizer steps."""

    class Plain(torch.optim.SGD):
        @torch.no_grad()
        def step(self, closure: Any = None) -> Any:
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.sub_(group["lr"] * gradient(parameter))

    kept = Plain.step
    seen: list[float] = []

    def training() -> None:
        model = Stack()
        optimizer = Plain(model.parameters(), RATE)
        for number in range(steps):
            if number == at:
                assert adapter.fast_path.on is (at >= 40)
            if number == at and not late:
                Plain.step = kept  # type: ignore[method-assign]
            optimizer.zero_grad()
            seen.append(0.0)
            for part in range(parts):
                inputs, labels = batch(10 * number + part)
                loss = F.cross_entropy(model(inputs), labels)
                loss.backward()
                seen[-1] += loss.item()
            if number == at and late:
                Plain.step = kept  # type: ignore[method-assign]
            optimizer.step()

    hook = watchglass.Hook(run=tmp_path / "run", save_interval=1000, strict=True)
    adapter = PyTorchAdapter(hook.port, discover=True)
    training()
    hook.close()
    run = open_run(tmp_path / "run")
    assert run.steps() == list(range(steps))
    np.testing.assert_allclose(run.scalars("loss")[1], seen, rtol=1e-6)
    last = run.facts("updates_bypassed")[-1].data
    assert (last["since"], last["steps"]) == (at, steps - at)
    assert f"since step {at} its steps are recognised by the weights that they change" in caplog.text


def bypass_run(
    run: Path, after: Callable[[int, nn.Module, torch.optim.Optimizer], None], steps: int = 80
) -> watchglass.Run:
    """Half of the steps by an optimizer of PyTorch, then ``after`` in place of its ``step``."""
    model = Stack()
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    hook = watchglass.Hook(run=run, save_interval=1000, strict=True)
    PyTorchAdapter(hook.port, discover=True)
    for number in range(steps):
        inputs, labels = batch(number)
        loss = F.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        if number < steps // 2:
            optimizer.step()
        else:
            after(number, model, optimizer)
    hook.close()
    return open_run(run)


@pytest.mark.parametrize("update", [by_data, in_place, all_at_once], ids=lambda each: each.__name__)
def test_updates_by_other_code_than_the_optimizer_are_found_and_reported(tmp_path: Path, update: Update) -> None:
    run = bypass_run(tmp_path / "run", lambda number, model, optimizer: update(model))
    (fact,) = {fact.kind: fact for fact in run.facts("updates_bypassed")}.values()
    assert fact.data["reason"].startswith("other code than SGD.step updates the weights; ")
    assert len(run.steps()) > 60
    (_, losses) = run.scalars("loss")
    assert losses.max() < 3  # those of the updates that were noticed late are not added up
    why = judge(tmp_path / "run").unjudged
    assert why.startswith("no hook of PyTorch reported 2")
    assert "other code than SGD.step" in why


def test_a_step_that_is_replaced_in_the_optimizer_itself_is_found_at_once(tmp_path: Path) -> None:
    model = Stack()

    class Plain(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            in_place(model)

    original = Plain.step
    optimizer = Plain(model.parameters(), RATE)
    hook = watchglass.Hook(run=tmp_path / "run", save_interval=1000, strict=True)
    PyTorchAdapter(hook.port, discover=True)
    for number in range(80):
        if number == 40:
            optimizer.step = lambda *a, **k: original(optimizer, *a, **k)  # type: ignore[method-assign]
        inputs, labels = batch(number)
        loss = F.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    hook.close()
    run = open_run(tmp_path / "run")
    assert run.steps() == list(range(80))
    assert run.facts("updates_bypassed")[-1].data["steps"] == 40
    assert judge(tmp_path / "run").unjudged == (
        "no hook of PyTorch reported 40 of 80 updates: Plain.step was replaced by a function that calls no hooks"
    )


def saliency(number: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Gradients alone."""


def perturbed_now_and_then(number: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Weights that an analysis changes, and puts back, at one of many backwards."""
    if number % 20 == 0:
        in_place(model)


@pytest.mark.parametrize("after", [saliency, perturbed_now_and_then])
def test_gradients_after_the_training_are_no_updates(tmp_path: Path, after: Any) -> None:
    run = bypass_run(tmp_path / "run", after, 100)
    assert run.facts("updates_bypassed") == []
    assert len(run.steps()) <= 51
    assert "hook" not in judge(tmp_path / "run").unjudged


def test_a_scheduler_that_is_made_late_replaces_no_step(tmp_path: Path) -> None:
    model = Stack()
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    hook = watchglass.Hook(run=tmp_path / "run", save_interval=1000, strict=True)
    PyTorchAdapter(hook.port, discover=True)
    for number in range(60):
        if number == 30:
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 100)
        for part in range(1 if number < 40 else 16):
            inputs, labels = batch(number + part)
            F.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
        if number >= 30:
            scheduler.step()
    hook.close()
    run = open_run(tmp_path / "run")
    assert len(run.steps()) == 60
    assert run.facts("updates_bypassed") == []


def judge(path: Path) -> Verdict:
    return verdict(open_run(path), replay(path))
