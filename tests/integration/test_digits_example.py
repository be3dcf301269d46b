"""The example is ordinary PyTorch, and each of its faults is really there, as plain hooks see it."""

from __future__ import annotations

import importlib.util
import math
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

pytestmark = pytest.mark.usefixtures("preloaded_python")

MODELS = ("cnn", "mlp")


@pytest.fixture(scope="module")
def digits(digits_script: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("digits_example", digits_script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@dataclass
class Seen:
    """What plain hooks saw over some steps: losses, gradient norms of layers, units that were ever active."""

    losses: list[float]
    gradients: list[list[float]]
    active: dict[str, Tensor]
    layers: dict[str, nn.Module]

    def dead_ratio(self, layer: str) -> float:
        return 1 - float(self.active[layer].float().mean())


def train(digits: ModuleType, name: str, fault: str | None, steps: int) -> Seen:
    torch.manual_seed(0)
    loader, _ = digits.load_data(64, fault)
    model = digits.build_model(name, fault)
    layers = {path: m for path, m in model.named_modules() if isinstance(m, (nn.Linear, nn.Conv2d))}
    seen = Seen([], [], {}, layers)
    optimizer = torch.optim.SGD(model.parameters(), 50.0 if fault == "learning-rate" else 0.02, momentum=0.9)
    with active_units(seen):
        while len(seen.losses) < steps:
            for images, labels in loader:
                optimizer.zero_grad()
                loss = F.cross_entropy(model(images), labels)
                loss.backward()
                seen.losses.append(loss.item())
                seen.gradients.append([layer.weight.grad.norm().item() for layer in layers.values()])
                optimizer.step()
    return seen


@contextmanager
def active_units(seen: Seen) -> Iterator[None]:
    def look(path: str, output: Tensor) -> None:
        active = (output.transpose(0, 1).flatten(1) > 0).any(dim=1)
        seen.active[path] = seen.active.get(path, torch.zeros_like(active)) | active

    handles = [
        layer.register_forward_hook(lambda _, __, output, path=path: look(path, output))
        for path, layer in seen.layers.items()
    ]
    yield
    for handle in handles:
        handle.remove()


def test_the_script_says_nothing_of_watchglass(digits_script: Path) -> None:
    assert "watchglass" not in digits_script.read_text(encoding="utf-8").lower()


@pytest.mark.parametrize("name", MODELS)
def test_healthy_training_learns(digits: ModuleType, name: str) -> None:
    seen = train(digits, name, None, steps=150)
    assert seen.losses[-1] < 0.5
    assert max(seen.dead_ratio(layer) for layer in seen.layers) < 0.3
    assert all(math.isfinite(norm) and norm > 1e-4 for norms in seen.gradients for norm in norms)


@pytest.mark.parametrize("name", MODELS)
def test_learning_rate_diverges_to_nan_within_50_steps(digits: ModuleType, name: str) -> None:
    seen = train(digits, name, "learning-rate", steps=50)
    finite = [math.isfinite(loss) for loss in seen.losses]
    assert all(finite[:3])
    assert math.isnan(seen.losses[49])
    assert seen.losses[2] > 100 * seen.losses[0]


@pytest.mark.parametrize("name", MODELS)
def test_sigmoid_stack_loses_its_gradients_over_depth(digits: ModuleType, name: str) -> None:
    seen = train(digits, name, "sigmoid-stack", steps=20)
    for norms in seen.gradients:
        assert norms[0] < 1e-6 * norms[-1]
    assert seen.losses[-1] > 2


@pytest.mark.parametrize("name", MODELS)
def test_dying_relu_leaves_most_hidden_units_dead(digits: ModuleType, name: str) -> None:
    seen = train(digits, name, "dying-relu", steps=30)
    hidden = list(seen.layers)[1:-1]
    assert min(seen.dead_ratio(layer) for layer in hidden) > 0.9


@pytest.mark.parametrize("name", MODELS)
def test_identical_weights_stay_identical(digits: ModuleType, name: str) -> None:
    seen = train(digits, name, "identical-init", steps=100)
    for layer in list(seen.layers.values())[:-1]:
        rows = layer.weight.detach().flatten(1)
        assert torch.equal(rows, rows[:1].expand_as(rows))
    assert seen.losses[-1] > 1.5


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_overfit_validation_loss_rises_while_training_loss_falls(digits_script: Path, name: str) -> None:
    ended = subprocess.run(
        [sys.executable, str(digits_script), "--fault", "overfit", "--model", name],
        capture_output=True,
        text=True,
        check=True,
        timeout=200,
    )
    rows = [line.replace(",", "").split() for line in ended.stdout.splitlines()]
    training, validation = [float(row[4]) for row in rows], [float(row[7]) for row in rows]
    assert training[-1] < 0.01
    assert validation[-1] > 1.1 * min(validation)
