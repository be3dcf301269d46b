"""Training runs that fail on purpose, and what a run says about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from limited import watching_within
from watchglass import open_run
from watchglass.capture.limits import DEFAULT_LIMITS, CaptureLimits

Act = Callable[[Tensor], Tensor]


class Bad(nn.Module):
    """Passes its input through, until a test lets it spoil the input."""

    def __init__(self, spoil: Act) -> None:
        super().__init__()
        self.spoil = spoil
        self.on = False

    def forward(self, x: Tensor) -> Tensor:
        return self.spoil(x) if self.on else x


class Poisoned(torch.autograd.Function):
    """Identity whose gradient is NaN."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return gradient * float("nan")


def to_nan(x: Tensor) -> Tensor:
    return x * float("nan")


def network(spoil: Act = to_nan) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.BatchNorm1d(8), Bad(spoil), nn.ReLU(), nn.Linear(8, 3))


class Guard(torch.optim.SGD):
    """Leaves an update out where a gradient is not finite, as careful scripts do."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        gradients = [one.grad for group in self.param_groups for one in group["params"] if one.grad is not None]
        if all(bool(gradient.isfinite().all()) for gradient in gradients):
            super().step(closure)


class Training:
    """A manual training run, its pieces to be changed by a test."""

    def __init__(self, model: nn.Module, *, guarded: bool = False) -> None:
        self.model = model
        self.optimizer: torch.optim.Optimizer = (Guard if guarded else torch.optim.SGD)(model.parameters(), lr=0.01)
        torch.manual_seed(3)
        self.inputs = torch.randn(16, 6)
        self.labels = torch.randint(0, 3, (16,))

    def spoil(self, on: bool = True) -> None:
        """Let every module that can spoil its input do so from now on."""
        for module in self.model.modules():
            if isinstance(module, Bad):
                module.on = on

    def loss(self) -> Tensor:
        return F.cross_entropy(self.model(self.inputs), self.labels)

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.loss().backward()
        self.optimizer.step()


def facts_of(
    path: Path,
    training: Training,
    before_step: Callable[[int], None],
    steps: int = 6,
    limits: CaptureLimits = DEFAULT_LIMITS,
    **settings: Any,
) -> list[dict[str, Any]]:
    """Train watched; returns the data of all facts about the first bad module, each with its global step as ``at``."""
    with watching_within(limits, training.model, path, **{"save_interval": 1, **settings}):
        for number in range(steps):
            before_step(number)
            training.step()
    run = open_run(path)
    assert not run.facts("capture_fault")
    return [{**fact.data, "at": fact.global_step} for fact in run.facts("first_bad_module")]


def fact_of(path: Path, training: Training, at: int = 3, **settings: Any) -> dict[str, Any]:
    """The one fact about the first bad module of a training run that is spoilt from this step on."""
    facts = facts_of(path, training, lambda number: training.spoil(number >= at), **{"steps": at + 3, **settings})
    assert len(facts) == 1, "the first bad module is looked for once"
    return facts[0]


class Once(nn.Module):
    """A model that is given an iterator, so that no forward of it can be repeated."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor, more: Iterator[float]) -> Tensor:
        return self.body(x) * next(more)  # type: ignore[no-any-return]


def unrepeatable(body: nn.Module, *, guarded: bool = True) -> Training:
    """A training run of which every re-run is refused; guarded, so that it goes on with finite weights."""
    training = Training(Once(body), guarded=guarded)
    training.loss = lambda: F.cross_entropy(training.model(training.inputs, iter([1.0])), training.labels)  # type: ignore[method-assign]
    return training
