"""A toy framework around PyTorch, with its adapter: its models are modules, and it knows when they are trained."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from watchglass import Hook, Mode, Role
from watchglass.capture import Framework


class Model(nn.Module):
    """What the framework trains."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 8)
        self.head = nn.Linear(8, 3)
        self.listeners: list[Any] = []

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.head(F.relu(self.body(inputs)))
        return hidden

    def fit(
        self,
        steps: int,
        losses: list[float],
        between: Callable[[int], object] = lambda step: None,
        *,
        by_hand: bool = False,
    ) -> None:
        """Train on noise.

        Args:
            steps: Number of updates.
            losses: Gets the loss of each.
            between: Called after each, with its number.
            by_hand: Update without an optimizer of PyTorch.
        """
        optimizer = None if by_hand else torch.optim.Adam(self.parameters(), lr=0.01)
        for step in range(steps):
            for listener in self.listeners:
                listener.before()
            self.zero_grad()
            loss = F.cross_entropy(self(torch.randn(8, 4)), torch.randint(0, 3, (8,)))
            loss.backward()
            if optimizer is not None:
                optimizer.step()
            else:
                with torch.no_grad():
                    for parameter in self.parameters():
                        parameter -= 0.1 * parameter.grad  # type: ignore[operator]
            losses.append(loss.item())
            for listener in self.listeners:
                listener.after(self, losses[-1])
            between(step)


class Listener:
    """Makes a step of each update."""

    def __init__(self, hook: Hook) -> None:
        self._hook = hook
        self.before, self.after = hook.guarded(self._before), hook.guarded(self._after)

    def _before(self) -> None:
        self._hook.apply_changes()
        self._hook.clock.begin(Mode.TRAIN)
        self._hook.ensure_started()

    def _after(self, model: Model, loss: float) -> None:
        step = self._hook.clock.train
        if step.due:
            self._hook.save_tensor("outer/body.weight", model.body.weight.grad, "gradients")
        self._hook.add_scalar(step.records, "loss", loss, Role.LOSS)
        self._hook.clock.end(step)


class Outer(Framework):
    """Owns the steps of its models."""

    name = "framework_around_pytorch"

    def is_model(self, value: object) -> bool:
        """Whether it is one."""
        return isinstance(value, Model)

    def attach(self, hook: Hook, model: Any = None) -> None:
        """Listen to a model."""
        listener = Listener(hook)
        model.listeners.append(listener)
        hook.detach_with(lambda: model.listeners.remove(listener))
