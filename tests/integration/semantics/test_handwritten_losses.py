"""Losses that a script writes with tensor operations: in evaluations where they are those of training, else none."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import watchglass
from train_twice import ALL, Stack, Watch, batch, trained_twice
from watchglass import Mode, Run, open_run
from watchglass.capture.pytorch.graph import loss_operations

EVERY, SIZES = 6, (16, 16, 5)
#: Of one evaluation of a batch: the model's outputs and labels.
Loss = Callable[[Tensor, Tensor], Tensor]


@pytest.fixture(autouse=True)
def untouched() -> Iterator[None]:
    """Nothing is left of ours on what is wrapped while a script evaluates."""
    before = dict(vars(torch.Tensor)), dict(vars(torch)), dict(vars(F))
    yield
    for owner, found in zip((torch.Tensor, torch, F), before, strict=True):
        names = [name for operation in loss_operations.ALL for name in operation.called]
        assert not [name for name in names if vars(owner).get(name) is not found.get(name)]


def likelihood(logits: Tensor, labels: Tensor) -> Tensor:
    return -(torch.log_softmax(logits, 1)[range(len(labels)), labels]).mean()


def squares(logits: Tensor, labels: Tensor) -> Tensor:
    return ((logits - F.one_hot(labels, 4)) ** 2).mean()


def absolute(logits: Tensor, labels: Tensor) -> Tensor:
    return (logits - F.one_hot(labels, 4)).abs().mean()


def accuracy(logits: Tensor, labels: Tensor) -> Tensor:
    return (logits.argmax(1) == labels).float().mean()


def hinge(logits: Tensor, labels: Tensor) -> Tensor:
    return (1 - logits * (2 * F.one_hot(labels, 4) - 1)).clamp(min=0).sum(1).mean()


def root(logits: Tensor, labels: Tensor) -> Tensor:
    return (logits - F.one_hot(labels, 4)).square().mean().sqrt()


def root_of_the_mean(logits: Tensor, labels: Tensor) -> Tensor:
    return squares(logits, labels).sqrt()


def both_entropies(logits: Tensor, labels: Tensor) -> Tensor:
    target, share = F.one_hot(labels, 4).float(), torch.sigmoid(logits)
    return -(target * share.log() + (1 - target) * (1 - share).log()).mean()


def entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return (logits.logsumexp(1) - logits.gather(1, labels.view(-1, 1)).squeeze(1)).mean()


def sum_per_sample(logits: Tensor, labels: Tensor) -> Tensor:
    return (logits - F.one_hot(labels, 4)).pow(2).sum() / len(labels)


def trained(path: Path, training: Loss, evaluation: Loss, *, metrics: tuple[Loss, ...] = ()) -> tuple[Run, list[float]]:
    """The run of a model trained on one loss and evaluated with another, and what the script saw in evaluations."""
    seen: list[float] = []

    def loop(watch: Watch) -> Any:
        seen.clear()
        model = Stack()
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        watch(model)
        for number in ALL:
            inputs, labels = batch(number)
            optimizer.zero_grad()
            training(model(inputs), labels).backward()
            optimizer.step()
            if number % EVERY == EVERY - 1:
                seen.append(evaluated(model, number, evaluation, metrics))
        return seen, model

    return trained_twice(path, loop), seen


def evaluated(model: nn.Module, number: int, loss: Loss, metrics: tuple[Loss, ...] = ()) -> float:
    model.eval()
    total, count = 0.0, 0
    context = torch.no_grad() if number % (2 * EVERY) == EVERY - 1 else torch.inference_mode()
    with context:
        for part, size in enumerate(SIZES):
            inputs, labels = batch(900 + 10 * number + part, size)
            outputs = model(inputs)
            for metric in metrics:
                metric(outputs, labels)
            total, count = total + loss(outputs, labels).item() * size, count + size
    model.train()
    return total / count


def stretches(path: Path, name: str, series: str = "loss") -> list[float]:
    return [stretch.means.get(series, np.nan) for stretch in open_run(path / name).stretches(Mode.EVAL)]


LOSSES = (likelihood, squares, hinge, root, both_entropies, entropy, sum_per_sample)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.__name__)
def test_the_operations_of_the_training_are_found_in_evaluations(tmp_path: Path, loss: Loss) -> None:
    run, seen = trained(tmp_path, loss, loss, metrics=(accuracy,))
    for name in ("full", "sparse", "found"):
        np.testing.assert_allclose(stretches(tmp_path, name), seen, rtol=1e-6, err_msg=name)
    compared = stretches(tmp_path, "full", "loss/handwritten")
    np.testing.assert_allclose(compared, np.array(seen) / (4 if loss is sum_per_sample else 1), rtol=1e-6)
    whole, part = (run.tensor(name).values(mode=Mode.TRAIN) for name in ("loss", "loss/handwritten"))
    for step, value in part.items():
        assert float(value) == pytest.approx(float(whole[step]) / (4 if loss is sum_per_sample else 1))


def test_axes_may_be_counted_from_either_end(tmp_path: Path) -> None:
    _, seen = trained(tmp_path, likelihood, lambda out, y: -(out.log_softmax(-1)[range(len(y)), y]).mean())
    np.testing.assert_allclose(stretches(tmp_path, "full"), seen, rtol=1e-6)


@pytest.mark.parametrize("metric", [absolute, accuracy, hinge], ids=lambda metric: metric.__name__)
def test_a_metric_alone_is_not_taken_for_the_loss(tmp_path: Path, metric: Loss) -> None:
    trained(tmp_path, squares, metric)
    for name in ("full", "sparse", "found"):
        assert np.isnan(stretches(tmp_path, name)).all()


def test_of_two_values_of_the_same_operations_none_is_the_loss(tmp_path: Path) -> None:
    def to_the_mean(logits: Tensor, labels: Tensor) -> Tensor:
        return ((logits - F.one_hot(labels, 4).float().mean(0)) ** 2).mean()

    trained(tmp_path, squares, squares, metrics=(to_the_mean,))
    for name in ("full", "sparse", "found"):
        assert np.isnan(stretches(tmp_path, name)).all()


def test_the_same_value_once_more_is_the_loss(tmp_path: Path) -> None:
    _, seen = trained(tmp_path, squares, squares, metrics=(root_of_the_mean,))
    np.testing.assert_allclose(stretches(tmp_path, "full"), seen, rtol=1e-6)


def test_a_metric_of_a_loss_function_makes_room_for_the_loss(tmp_path: Path) -> None:
    def by_function(logits: Tensor, labels: Tensor) -> Tensor:
        return F.l1_loss(logits, F.one_hot(labels, 4).float())

    _, seen = trained(tmp_path, squares, squares, metrics=(by_function,))
    np.testing.assert_allclose(stretches(tmp_path, "full"), seen, rtol=1e-6)


def test_a_scale_of_the_training_is_not_put_on_the_evaluation(tmp_path: Path) -> None:
    _, seen = trained(tmp_path, lambda logits, labels: squares(logits, labels) / 4, squares)
    assert np.isnan(stretches(tmp_path, "full")).all(), (
        "whether the script has the scale in evaluations, too, is not known"
    )
    np.testing.assert_allclose(stretches(tmp_path, "full", "loss/handwritten"), seen, rtol=1e-6)


def test_a_penalty_leaves_it_open(tmp_path: Path) -> None:
    scale = nn.Parameter(torch.ones(()))
    trained(tmp_path, lambda logits, labels: squares(logits, labels) + scale**2, squares)
    assert np.isnan(stretches(tmp_path, "full")).all()


def test_two_losses_in_turns_leave_it_open(tmp_path: Path) -> None:
    model = Stack()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    with watchglass.watch(model, run=tmp_path / "full", save_interval=1, strict=True):
        for number in range(4):
            inputs, labels = batch(number)
            (squares if number % 2 else likelihood)(model(inputs), labels).backward()
            optimizer.step()
            optimizer.zero_grad()
        evaluated(model, 0, squares)
    assert np.isnan(stretches(tmp_path, "full")).all()


@pytest.fixture
def after_an_evaluation(tmp_path: Path) -> Iterator[nn.Module]:
    """A model that was trained and then evaluated: operations are still heard."""
    model = Stack()
    with watchglass.watch(model, run=tmp_path / "run", save_interval=1, strict=True):
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        for number in range(3):
            inputs, labels = batch(number)
            squares(model(inputs), labels).backward()
            optimizer.step()
            optimizer.zero_grad()
        evaluated(model, 0, squares)
        assert "mean" in vars(torch.Tensor)
        yield model
    assert "mean" not in vars(torch.Tensor)


@pytest.mark.filterwarnings("ignore:.*torch.jit.* is deprecated:DeprecationWarning")
def test_what_is_scripted_or_traced_after_an_evaluation_holds_functions_of_pytorch(
    after_an_evaluation: nn.Module,
) -> None:
    def function(values: Tensor) -> Tensor:
        return torch.pow(torch.sub(values, 1), 2)

    scripted = torch.jit.script(function)
    assert torch.equal(scripted(torch.ones(2)), torch.zeros(2))
    assert "mean" not in vars(torch.Tensor), "heard again at the next call of the model"
    evaluated(after_an_evaluation, 0, squares)
    graph = torch.fx.symbolic_trace(function).graph
    assert [node.target for node in graph.nodes if node.op == "call_function"] == [torch.sub, torch.pow]


class Table(torch.Tensor):
    """A tensor with functions of its own, as its class looks them up."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return "own" if func is torch.Tensor.sub else super().__torch_function__(func, types, args, kwargs or {})


def test_a_class_of_tensors_is_asked_for_functions_of_pytorch(after_an_evaluation: nn.Module) -> None:
    table: Any = torch.ones(2).as_subclass(Table)
    assert table.sub(1) == "own"
    assert table.sub(1) == "own"


def test_other_functions_that_were_put_around_ours_stay(after_an_evaluation: nn.Module) -> None:
    ours = torch.Tensor.mean
    calls = [0]

    def other(*args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        return ours(*args, **kwargs)

    torch.Tensor.mean = other  # type: ignore[method-assign, assignment]
    try:
        loss_operations.restore()
        assert torch.Tensor.mean is other
        evaluated(after_an_evaluation, 0, squares)
        loss_operations.restore()
        assert torch.Tensor.mean is other
        assert calls[0] == len(SIZES)
    finally:
        torch.Tensor.mean = ours  # type: ignore[method-assign]
        # Ours goes as the next observation ends.
        evaluated(after_an_evaluation, 0, squares)
        loss_operations.restore()


@pytest.mark.parametrize("evaluate", ["compiled", "eager"])
def test_a_compiled_model_is_compiled_as_often_as_without_us(tmp_path: Path, evaluate: str) -> None:
    graphs = [0]

    def backend(graph: Any, examples: Any) -> Any:
        graphs[0] += 1
        return graph.forward

    def trained(where: Path | None) -> int:
        torch.compiler.reset()
        graphs[0] = 0
        model = Stack()
        outer = torch.compile(model, backend=backend, dynamic=False)
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        watching = None if where is None else watchglass.watch(outer, run=where, save_interval=100, strict=True)
        for number in range(8):
            inputs, labels = batch(number)
            squares(outer(inputs), labels).backward()
            optimizer.step()
            optimizer.zero_grad()
            if number % 3 == 2:
                seen.append(evaluated(outer if evaluate == "compiled" else model, number, squares))
        if watching is not None:
            watching.close()
        return graphs[0]

    seen: list[float] = []
    bare = trained(None)
    seen.clear()
    watched = trained(tmp_path / "full")
    np.testing.assert_allclose(stretches(tmp_path, "full"), seen, rtol=1e-6)
    # The training has one more graph for captured steps.
    assert watched - bare <= 1


def test_a_scaled_loss_is_compared_without_its_scale(tmp_path: Path) -> None:
    model = nn.DataParallel(Stack())
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=128.0)
    seen: list[float] = []
    with watchglass.watch(model, run=tmp_path / "full", save_interval=1, strict=True):
        for number in ALL:
            inputs, labels = batch(number)
            scaler.scale(squares(model(inputs), labels)).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            if number % EVERY == EVERY - 1:
                seen.append(evaluated(model.module, number, squares))
    np.testing.assert_allclose(stretches(tmp_path, "full"), seen, rtol=1e-6)
    run = open_run(tmp_path / "full")
    whole, part = (run.tensor(name).values(mode=Mode.TRAIN) for name in ("loss", "loss/handwritten"))
    assert part == {step: whole[step] for step in part}


def test_what_is_no_number_or_lies_in_another_thread_does_no_harm(after_an_evaluation: nn.Module) -> None:
    model = after_an_evaluation
    inputs, labels = batch(0)
    with torch.no_grad():
        outputs = model(inputs)
        errors = torch.func.vmap(lambda scale: squares(outputs * scale, labels))(torch.ones(3))
        assert errors.shape == (3,)
        assert (outputs * torch.tensor(1j)).is_complex()
        found: list[Tensor] = []
        thread = threading.Thread(target=lambda: found.append(torch.ones(2).as_subclass(Table).sub(1)))
        thread.start()
        thread.join()
        assert found == ["own"]
        assert "mean" not in vars(torch.Tensor)
        assert squares(outputs, labels) == errors[0]
