"""Evaluations of models that were not given to ``watch``, between those of a watched one."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook
from torch.optim import SGD
from torch.optim.swa_utils import AveragedModel

import watchglass
from train_twice import batch
from watchglass import Hook, Mode, Run, open_run
from watchglass.capture.pytorch import PyTorchAdapter

STEPS, EVERY = 24, 6
Losses = Callable[[nn.Module, nn.Module, Tensor, Tensor], Tensor]


@pytest.fixture(autouse=True)
def nothing_compiled() -> None:
    """What tests before this one compiled is forgotten."""
    torch.compiler.reset()


def network(outputs: int = 4, inputs: int = 12) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 16), nn.Tanh(), nn.Linear(16, outputs))


def watched(path: Path, model: nn.Module) -> Hook:
    return watchglass.watch(model, run=path, save_interval=1000, strict=True)


def losses(run: Run, name: str) -> list[float]:
    return [float(value) for value in run.scalars(name, mode=Mode.EVAL)[1]]


def averaged_after(model: nn.Module, average: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    own = F.cross_entropy(model(inputs), labels)
    F.cross_entropy(average(inputs), labels)
    return own


def losses_after_both(model: nn.Module, average: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    own, other = model(inputs), average(inputs)
    F.cross_entropy(other, labels)
    return F.cross_entropy(own.flatten(1), labels)


def made_of_the_outputs(model: nn.Module, average: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    own = F.nll_loss(model(inputs).log_softmax(1), labels)
    F.nll_loss(average(inputs).log_softmax(1), labels)
    return own


@pytest.mark.parametrize("evaluate", [averaged_after, losses_after_both, made_of_the_outputs])
@pytest.mark.parametrize("no_grad", [True, False])
def test_the_loss_of_an_averaged_copy_is_not_the_models(tmp_path: Path, evaluate: Losses, no_grad: bool) -> None:
    torch.manual_seed(0)
    model = network()
    average = AveragedModel(model)
    optimizer = SGD(model.parameters(), 0.1)
    said = []
    name = "loss/nll_loss" if evaluate is made_of_the_outputs else "loss/cross_entropy"
    with watched(tmp_path / "run", model):
        for number in range(STEPS):
            inputs, labels = batch(number)
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
            if number % EVERY == EVERY - 1:
                model.eval()
                with torch.set_grad_enabled(not no_grad):
                    said.append(evaluate(model, average, inputs, labels).item())
                model.train()
    assert not _has_any_global_hook()
    run = open_run(tmp_path / "run")
    assert losses(run, "loss") == pytest.approx(said, rel=1e-6)
    assert losses(run, name) == pytest.approx(said, rel=1e-6)
    assert run.steps() == list(range(STEPS))


def test_a_copy_that_is_evaluated_after_the_whole_evaluation_does_not_count(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = network()
    optimizer = SGD(model.parameters(), 0.1)
    said, right = [], []
    with watched(tmp_path / "run", model):
        for number in range(STEPS):
            inputs, labels = batch(number)
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
            if number % EVERY == EVERY - 1:
                average = copy.deepcopy(model)
                with torch.no_grad():
                    for each in (model, average):
                        for part in range(3):
                            inputs, labels = batch(100 + part)
                            output = each(inputs)
                            loss = F.cross_entropy(output, labels)
                            if each is model:
                                said.append(loss.item())
                                right.append((output.argmax(1) == labels).float().mean().item())
                        for parameter in average.parameters():
                            parameter.mul_(3.0)
    run = open_run(tmp_path / "run")
    for name, expected in (("loss", said), ("loss/cross_entropy", said), ("accuracy", right)):
        assert losses(run, name) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("discover", [True, False])
def test_beside_a_compiled_model_a_further_loss_is_its_own_only_of_its_outputs(tmp_path: Path, discover: bool) -> None:
    """There no hook hears that another model is called."""
    torch.manual_seed(0)
    hook = Hook(tmp_path / "run", save_interval=1000, strict=True)
    adapter = PyTorchAdapter(hook.port, discover=discover)
    model = network()
    average = copy.deepcopy(model).requires_grad_(False)
    compiled = torch.compile(model, backend="eager")
    optimizer = SGD(model.parameters(), 0.1)
    if not discover:
        adapter.attach(compiled)
    said = []
    with hook:
        for number in range(STEPS):
            inputs, labels = batch(number)
            optimizer.zero_grad()
            F.cross_entropy(compiled(inputs), labels).backward()
            optimizer.step()
            if number % EVERY == EVERY - 1:
                with torch.no_grad():
                    said.append(F.cross_entropy(compiled(inputs).view(-1, 4), labels).item())
                    F.cross_entropy(average(inputs), labels)
    run = open_run(tmp_path / "run")
    for name in ("loss", "loss/cross_entropy"):
        assert losses(run, name) == pytest.approx(said, rel=1e-6)


class Head(nn.Module):
    """A classifier on features; its first part stays as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.fixed, self.trained = nn.Linear(4, 6).requires_grad_(False), nn.Linear(6, 4)

    def forward(self, features: Tensor) -> Tensor:
        result: Tensor = self.trained(self.fixed(features).relu())
        return result


@pytest.mark.parametrize("between", [lambda features: features, torch.relu], ids=["as it is", "changed"])
def test_the_loss_of_a_head_is_that_of_the_model_below_it(tmp_path: Path, between: Callable[[Tensor], Tensor]) -> None:
    torch.manual_seed(0)
    model, head = network(), Head()
    frozen = network().requires_grad_(False)
    optimizer = SGD([*model.parameters(), *head.trained.parameters()], 0.1)
    criterion = nn.CrossEntropyLoss()
    said = []
    with watched(tmp_path / "run", model):
        for number in range(STEPS):
            inputs, labels = batch(number)
            if number % EVERY == 0:
                with torch.no_grad():
                    said.append(criterion(head(between(model(inputs))), labels).item())
                    criterion(head(between(frozen(inputs))), labels)
            optimizer.zero_grad()
            criterion(head(between(model(inputs))), labels).backward()
            optimizer.step()
    run = open_run(tmp_path / "run")
    assert losses(run, "loss") == pytest.approx(said, rel=1e-6)
    assert losses(run, "loss/cross_entropy") == pytest.approx(said, rel=1e-6)


def test_a_frozen_network_that_compares_outputs_belongs_to_the_model(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, features = network(12), network(5).requires_grad_(False)
    optimizer = SGD(model.parameters(), 0.1)
    said = []
    with watched(tmp_path / "run", model):
        for number in range(STEPS):
            inputs, _ = batch(number)
            if number % EVERY == 0:
                with torch.no_grad():
                    output = model(inputs)
                    wanted = features(inputs)
                    said.append(F.mse_loss(features(output), wanted).item())
            optimizer.zero_grad()
            F.mse_loss(features(model(inputs)), features(inputs)).backward()
            optimizer.step()
    assert losses(open_run(tmp_path / "run"), "loss/mse_loss") == pytest.approx(said, rel=1e-6)


@pytest.mark.parametrize(("discover", "early"), [(False, True), (False, False), (True, False)])
def test_a_compiled_function_of_other_modules_is_compiled_once(tmp_path: Path, discover: bool, early: bool) -> None:
    """A global hook that comes and goes would have it compiled each time, and with ``fullgraph`` fail."""
    torch.manual_seed(0)
    model, other = network(), network()
    optimizer = SGD(model.parameters(), 0.1)
    made = 0

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., object]:
        nonlocal made
        made += 1
        return graph.forward

    def ask(inputs: Tensor) -> Tensor:
        result: Tensor = other(inputs)
        return result

    compiled = torch.compile(ask, backend=backend, fullgraph=True) if early else ask
    hook = Hook(tmp_path / "run", save_interval=1000, strict=True)
    adapter = PyTorchAdapter(hook.port, discover=discover)
    if not discover:
        adapter.attach(model)
    with hook:
        for number in range(40):
            inputs, labels = batch(number)
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
            if number > 5:
                with torch.no_grad():
                    F.cross_entropy(model(inputs), labels)
                    if number == 10 and not early:
                        compiled = torch.compile(ask, backend=backend, fullgraph=True)
                    compiled(inputs)
    assert made == 1
    assert open_run(tmp_path / "run").steps() == list(range(40))
