"""Forwards of every kind: repeated, recomputed, evaluated, functional; what of them belongs to which step."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from train_twice import ALL, STEPS, Stack, Watch, batch, l2, losses, simply, train, trained_twice
from watchglass import Mode, Run


def test_outputs_of_a_module_called_twice_are_recorded_together(tmp_path: Path) -> None:
    counts: list[tuple[int, float]] = []

    def training(watch: Watch) -> Any:
        counts.clear()

        def twice(stack: Stack, x: Tensor) -> Tensor:
            first = stack.second(torch.relu(x))
            second = stack.second(torch.relu(first))
            both = torch.cat([first, second]).detach().double()
            counts.append((both.numel(), float(both.norm())))
            return second

        return simply(lambda: Stack(twice))(watch)

    run = trained_twice(tmp_path, training)
    assert run.steps() == ALL
    recorded = run.tensor("second.output")
    assert list(recorded.reductions("count")[1]) == [count for count, _ in counts]
    np.testing.assert_allclose(recorded.reductions("l2")[1], [norm for _, norm in counts], rtol=1e-9)


@pytest.mark.parametrize("reentrant", [False, True], ids=["not reentrant", "reentrant"])
def test_what_checkpointing_computes_again_is_not_captured_again(tmp_path: Path, reentrant: bool) -> None:
    runs: list[Run] = []
    for recomputed in (True, False):

        def between(stack: Stack, x: Tensor, recomputed: bool = recomputed) -> Tensor:
            def inner(x: Tensor) -> Tensor:
                return stack.drop(stack.second(torch.relu(x)))

            return checkpoint(inner, x, use_reentrant=reentrant) if recomputed else inner(x)

        runs.append(trained_twice(tmp_path / str(recomputed), simply(lambda: Stack(between))))
    checkpointed, plain = runs
    assert checkpointed.steps() == ALL
    assert checkpointed.steps(Mode.EVAL) == []
    assert losses(checkpointed) == losses(plain)
    for name in ("second.output", "drop.output", "gradient/second.weight"):
        for number in ("count", "l2"):
            assert list(checkpointed.tensor(name).reductions(number)[1]) == list(
                plain.tensor(name).reductions(number)[1]
            ), name


def test_an_evaluation_inside_an_epoch_belongs_to_no_step(tmp_path: Path) -> None:
    def training(watch: Watch) -> Any:
        model = Stack()
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        watch(model)
        seen = []
        for number in ALL:
            inputs, labels = batch(number)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), labels)
            loss.backward()
            if number % 6 == 5:  # between a backward and its update
                model.eval()
                with torch.no_grad():
                    seen += [F.cross_entropy(model(batch(900 + part)[0]), labels).item() for part in range(2)]
                model.train()
            optimizer.step()
            seen.append(loss.item())
        return seen, model

    run = trained_twice(tmp_path, training)
    assert run.steps() == ALL
    assert len(run.steps(Mode.EVAL)) == 2 * (STEPS // 6)
    assert list(run.tensor("second.output").reductions("count")[1]) == [16 * 16] * STEPS
    assert list(run.tensor("second.output").reductions("count", mode=Mode.EVAL)[1]) == [16 * 16] * (2 * (STEPS // 6))
    assert list(l2(run, "gradient/second.weight")) == ALL


@pytest.mark.parametrize("no_grad", [True, False], ids=["without gradients", "with gradients"])
def test_a_model_that_is_evaluated_in_train_mode_is_evaluated(tmp_path: Path, no_grad: bool) -> None:
    def training(watch: Watch) -> Any:
        model = nn.Sequential(Stack(), nn.BatchNorm1d(4))
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        watch(model)
        seen = []
        for number in ALL:
            seen.append(train(model, optimizer, number))
            if number % 6 == 5:
                with torch.set_grad_enabled(not no_grad):
                    inputs, labels = batch(900 + number)
                    seen.append(F.cross_entropy(model(inputs), labels).item())
        return seen, model

    run = trained_twice(tmp_path, training)
    assert run.steps() == ALL
    assert len(run.steps(Mode.EVAL)) == STEPS // 6
    assert len(losses(run)) == STEPS
    # The flag is a fact beside it.
    assert all(fact.data["training"] for fact in run.facts("training_flags"))


def test_functional_activations_and_losses_are_found(tmp_path: Path) -> None:
    class Functional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = nn.ParameterList(nn.Parameter(torch.randn(shape) / 4) for shape in ((16, 12), (4, 16)))
            self.between, self.gate = nn.Linear(16, 16), nn.Linear(16, 16)

        def forward(self, x: Tensor) -> Tensor:
            hidden = self.between(F.relu(F.linear(x, self.weights[0])))
            return F.linear(torch.tanh(self.gate(torch.sigmoid(hidden))), self.weights[1])

    def training(watch: Watch) -> Any:
        model = Functional()
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        watch(model)
        seen = []
        for number in ALL:
            inputs, labels = batch(number)
            optimizer.zero_grad()
            # No loss function at all in every other step.
            scores = model(inputs)
            loss = F.cross_entropy(scores, labels) if number % 2 else scores.square().mean()
            loss.backward()
            optimizer.step()
            seen.append(loss.item())
        return seen, model

    run = trained_twice(tmp_path, training)
    assert len(losses(run)) == STEPS
    assert list(run.scalars("loss/cross_entropy")[0]) == list(run.scalars("accuracy")[0]) == ALL[1::2]
    assert {"weights.0", "gradient/weights.1", "between.sigmoid_input"} <= set(run.tensor_names())
    assert "relu_output" in run.tensor("between.input.0").info.collections
    # The input of an activation is known where a module returned it and one takes in what came of it.
    assert "gate.tanh_input" not in run.tensor_names()


class Replicated(nn.Module):
    """As ``nn.DataParallel`` on several devices: copies of the module are called on threads of their own."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        halves = x.chunk(2)
        copies = [copy.copy(self.module) for _ in halves]
        with ThreadPoolExecutor(2) as pool:
            return torch.cat(list(pool.map(lambda each, half: each(half), copies, halves)))


@pytest.mark.parametrize("around", [nn.DataParallel, Replicated])
def test_copies_that_run_on_other_threads_leave_the_rest_as_it_is(tmp_path: Path, around: Any) -> None:
    norms: list[float] = []

    def training(watch: Watch) -> Any:
        norms.clear()
        # No chance: threads draw in no fixed order.
        model = around(nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 4)))
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        watch(model)
        seen = []
        for number in ALL:
            seen.append(train(model, optimizer, number))
            norms.append(float(model.module[0].weight.grad.double().norm()))
        return seen, model

    run = trained_twice(tmp_path, training)
    assert run.steps() == ALL
    assert run.steps(Mode.EVAL) == []
    wrapped = "" if around is nn.DataParallel else "module."
    np.testing.assert_allclose(list(l2(run, f"gradient/{wrapped}0.weight").values()), norms, rtol=1e-12)
    # Outputs are captured on the training's thread: here nothing runs there but the outermost call.
    outputs = set(run.tensor_names(role="output"))
    assert outputs == ({"0.output", "1.output", "2.output"} if around is nn.DataParallel else {"output"})


def test_an_actor_that_never_trains_is_not_captured_for_ever(tmp_path: Path) -> None:
    import watchglass

    model, inputs = Stack(), batch(0)[0]
    with watchglass.watch(model, run=tmp_path / "run", save_interval=1, strict=True) as hook:
        for _ in range(100):
            model(inputs)  # with gradients on and in training mode, as scripts that forget about both do
        assert hook.port.clock.train is not None
        assert not hook.port.clock.train.due
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        for number in range(2):
            train(model, optimizer, number)
    run = watchglass.open_run(tmp_path / "run")
    assert len(run.steps(Mode.EVAL)) == 100
    assert list(run.tensor("gradient/head.weight").steps()) == [0, 1]


def test_two_views_of_a_model_in_evaluation_mode_are_one_step(tmp_path: Path) -> None:
    """A policy and its reference, or two views of a sample; layers that differ in training are switched off."""

    def training(watch: Watch) -> list[Tensor]:
        model = Stack().eval()
        watch(model)
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        losses = []
        for number in ALL:
            first, second = model(batch(number)[0]), model(batch(number + 50)[0])
            loss = (first - second).square().mean() + first.square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return losses

    run = trained_twice(tmp_path, training)
    assert run.steps() == ALL
    assert run.steps(Mode.EVAL) == []
