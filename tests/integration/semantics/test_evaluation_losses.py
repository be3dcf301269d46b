"""Losses of evaluations: wherever a script computes them, the run has what the script prints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import watchglass
from torch_hooks import forward_hooks
from train_twice import ALL, Stack, Watch, batch, trained_twice
from watchglass import Mode, Run, open_run
from watchglass.capture.pytorch import PyTorchAdapter

#: After which steps there is an evaluation, of batches of these sizes.
EVERY, SIZES = 6, (16, 16, 5)


@dataclass
class Output:
    """What models of a library return."""

    logits: Tensor
    loss: Tensor | None = None


class Returning(nn.Module):
    """A model that computes its loss, and returns it as ``form`` says."""

    def __init__(self, form: Callable[[Tensor, Tensor], Any], loss: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.stack, self.form, self.loss = Stack(), form, loss

    def forward(self, inputs: Tensor, labels: Tensor) -> Any:
        logits = self.stack(inputs)
        return self.form(logits, self.loss(logits, labels))


def by_hand(logits: Tensor, labels: Tensor) -> Tensor:
    return -logits.log_softmax(1).gather(1, labels[:, None]).mean()


FORMS: dict[str, tuple[Callable[[Tensor, Tensor], Any], Callable[[Any], Tensor]]] = {
    "in a tuple": (lambda logits, loss: (logits, loss), lambda output: output[1]),
    "by a name": (lambda logits, loss: {"loss": loss, "logits": logits}, lambda output: output["loss"]),
    "in an object": (lambda logits, loss: Output(logits, loss), lambda output: output.loss),
    "alone": (lambda logits, loss: loss, lambda output: output),
}


def by_function(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits, labels)


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"a function's": by_function, "by hand": by_hand}
#: What is made of the loss before its backward.
ENDS: dict[str, Callable[[Tensor, nn.Module], Tensor]] = {
    "as it is": lambda loss, model: loss,
    "divided": lambda loss, model: loss / 4,
    "with a penalty": lambda loss, model: loss + 1e-3 * sum((each**2).sum() for each in model.parameters()),
}


def evaluated(
    model: nn.Module, number: int, loss: Callable[[nn.Module, Tensor, Tensor], Tensor], *, no_grad: bool = True
) -> float:
    """The mean loss of an evaluation, weighted by batch size, as scripts compute it."""
    model.eval()
    total, count = 0.0, 0
    with torch.set_grad_enabled(not no_grad):
        for part, size in enumerate(SIZES):
            inputs, labels = batch(900 + 10 * number + part, size)
            total, count = total + loss(model, inputs, labels).item() * size, count + size
    model.train()
    return total / count


def check(path: Path, training: Callable[[Watch], Any], seen: list[float]) -> Run:
    """The run of a training run whose evaluations all have the losses that the script saw, however it was watched."""
    run = trained_twice(path, training)
    for name in ("full", "sparse", "found"):
        stretches = [stretch.means.get("loss", np.nan) for stretch in open_run(path / name).stretches(Mode.EVAL)]
        np.testing.assert_allclose(stretches, seen, rtol=1e-6, err_msg=name)
    return run


@pytest.mark.parametrize(
    ("form", "kind", "end"),
    [
        ("in a tuple", "a function's", "divided"),
        ("by a name", "a function's", "as it is"),
        ("in an object", "by hand", "divided"),
        ("in an object", "a function's", "with a penalty"),
        ("alone", "by hand", "as it is"),
    ],
)
def test_the_output_that_backwards_start_from_is_the_loss_of_evaluations(
    tmp_path: Path, form: str, kind: str, end: str
) -> None:
    make, pick = FORMS[form]
    seen: list[float] = []

    def training(watch: Watch) -> Any:
        seen.clear()
        model = Returning(make, LOSSES[kind])
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        watch(model)
        for number in ALL:
            inputs, labels = batch(number)
            optimizer.zero_grad()
            ENDS[end](pick(model(inputs, labels)), model).backward()
            optimizer.step()
            if number % EVERY == EVERY - 1:
                no_grad = number % (2 * EVERY) == EVERY - 1
                seen.append(evaluated(model, number, lambda model, x, y: pick(model(x, y)), no_grad=no_grad))
        return seen, model

    check(tmp_path, training, seen)


def test_an_evaluation_before_the_first_step_is_known_by_what_a_loss_function_returned(tmp_path: Path) -> None:
    seen: list[float] = []

    def training(watch: Watch) -> Any:
        seen.clear()
        model = Returning(lambda logits, loss: (logits, logits.mean(), loss), by_function)
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        watch(model)
        seen.append(evaluated(model, 0, lambda model, x, y: model(x, y)[2]))
        for number in ALL:
            optimizer.zero_grad()
            model(*batch(number))[2].backward()
            optimizer.step()
        seen.append(evaluated(model, 1, lambda model, x, y: model(x, y)[2]))
        return seen, model

    check(tmp_path, training, seen)


@pytest.mark.parametrize(
    ("backend", "parts"), [(None, 2), (None, 30), ("eager", 2), pytest.param("aot_eager", 30, marks=pytest.mark.slow)]
)
def test_an_evaluation_before_the_first_step_has_the_loss_that_training_shows_later(
    tmp_path: Path, backend: str | None, parts: int
) -> None:
    """As of a compiled model, inside of which no loss function is heard, or of one with a loss by hand."""
    seen: list[float] = []

    def training(watch: Watch) -> Any:
        seen.clear()
        torch.compiler.reset()
        inner = Returning(lambda logits, loss: (logits, logits.mean(), loss), by_hand)
        model = torch.compile(inner, backend=backend) if backend else inner
        optimizer = torch.optim.SGD(inner.parameters(), 0.05)
        watch(model)
        model.eval()
        with torch.no_grad():
            seen.extend(model(*batch(900 + part))[2].item() for part in range(parts))
        model.train()
        for number in ALL:
            optimizer.zero_grad()
            (model(*batch(number))[2] / 2).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            seen.append(model(*batch(0))[2].item())
        return seen, inner

    run = trained_twice(tmp_path, training)
    for name in ("full", "sparse", "found"):
        for series in ("loss", "loss/output"):
            recorded = open_run(tmp_path / name).scalars(series, mode=Mode.EVAL)[1]
            np.testing.assert_allclose(recorded, seen, rtol=1e-6, err_msg=name)
    assert run.steps() == ALL


def test_numbers_of_a_model_that_is_never_trained_are_no_losses(tmp_path: Path) -> None:
    hook = watchglass.Hook(run=tmp_path / "run", save_interval=1000, strict=True)
    PyTorchAdapter(hook.port, discover=True)
    model, other = Stack(), Returning(lambda logits, loss: (loss, logits.mean()), by_hand)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    with torch.no_grad():
        for number in range(20):
            other(*batch(number))
    for number in ALL:
        inputs, labels = batch(number)
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    hook.close()
    run = open_run(tmp_path / "run")
    assert run.steps() == ALL
    assert not [name for name in run.tensor_names() if name.endswith("loss/output")]
    assert not any(len(run.scalars(name, mode=Mode.EVAL)[1]) for name in run.tensor_names() if name.endswith("loss"))


def test_outputs_that_no_backward_starts_from_are_no_losses(tmp_path: Path) -> None:
    seen: list[float] = []

    def training(watch: Watch) -> Any:
        seen.clear()
        model = Returning(lambda logits, loss: (logits, loss.detach() * 7, logits.mean()), by_function)
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        watch(model)
        for number in ALL:
            inputs, labels = batch(number)
            optimizer.zero_grad()
            F.mse_loss(model(inputs, labels)[0], F.one_hot(labels, 4).float()).backward()
            optimizer.step()
            if number % EVERY == EVERY - 1:
                one_hot = lambda model, x, y: F.mse_loss(model(x, y)[0], F.one_hot(y, 4).float())  # noqa: E731
                seen.append(evaluated(model, number, one_hot))
        return seen, model

    check(tmp_path, training, seen)


class Smoothed(nn.Module):
    """A loss that a script wrote: of plain operations, and with a loss function for a part of it."""

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        chosen = logits.softmax(1).gather(1, labels[:, None])
        return 1 - chosen.mean() + 0.5 * F.cross_entropy(logits, labels)


@pytest.mark.parametrize("no_grad", [True, False])
def test_a_loss_that_is_a_module_of_the_script_is_known_by_its_calls(tmp_path: Path, no_grad: bool) -> None:
    seen: list[float] = []
    hook = watchglass.Hook(run=tmp_path / "run", save_interval=100, strict=True)
    PyTorchAdapter(hook.port, discover=True)
    model, criterion, metric = Stack(), Smoothed(), Metric()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for number in ALL:
        inputs, labels = batch(number)
        optimizer.zero_grad()
        logits = model(inputs)
        metric(logits, labels)
        criterion(logits, labels).backward()
        optimizer.step()
        if number % EVERY == EVERY - 1:
            seen.append(evaluated(model, number, lambda model, x, y: criterion(model(x), y), no_grad=no_grad))
    hook.close()
    run = open_run(tmp_path / "run")
    assert run.steps() == ALL
    stretches = [stretch.means.get("loss", np.nan) for stretch in run.stretches(Mode.EVAL)]
    np.testing.assert_allclose(stretches, seen, rtol=1e-6)
    assert not forward_hooks(criterion)
    assert not forward_hooks(metric)


class Metric(nn.Module):
    """What is no loss: nothing is trained on it."""

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        return (logits.argmax(1) == labels).float().mean()


@pytest.mark.parametrize("wrap", ["DataParallel", "OptimizedModule"])
def test_the_module_inside_a_wrapper_may_be_evaluated(tmp_path: Path, wrap: str) -> None:
    seen: list[float] = []

    def training(watch: Watch) -> Any:
        seen.clear()
        torch.compiler.reset()
        model = Stack()
        outer = nn.DataParallel(model) if wrap == "DataParallel" else torch.compile(model, backend="eager")
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        watch(outer)
        for number in ALL:
            inputs, labels = batch(number)
            optimizer.zero_grad()
            F.cross_entropy(outer(inputs), labels).backward()
            optimizer.step()
            if number % EVERY == EVERY - 1:
                seen.append(evaluated(model, number, lambda model, x, y: F.cross_entropy(model(x), y)))
        return seen, model

    run = check(tmp_path, training, seen)
    assert run.steps() == ALL
