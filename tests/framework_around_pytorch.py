"""A toy framework around PyTorch, with its adapter: its models are modules, and it knows when they are trained."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from watchglass import Mode, ModuleKind
from watchglass.capture import Loop, Modules, Port
from watchglass.capture.module_places import ParameterPlace, Place
from watchglass.record import OpenStep


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
                listener.after(losses[-1])
            between(step)


class Listener:
    """Makes a step of each update."""

    def __init__(self, port: Port) -> None:
        self._port = port
        self._step: OpenStep | None = None
        self.before, self.after = port.guarded(self._before), port.guarded(self._after)

    def _before(self) -> None:
        self._step = self._port.begin(Mode.TRAIN)

    def _after(self, loss: float) -> None:
        step, self._step = self._step, None
        if step is not None:
            self._port.save_scalar("loss", loss, "losses")
            self._port.end(step)


class OuterLoop(Loop):
    """Drives the steps of its models."""

    name = "framework_around_pytorch"

    def is_loop(self, value: object) -> bool:
        """Whether it is one of its models."""
        return isinstance(value, Model)

    def attach(self, port: Port, watched: Any = None) -> None:
        """Listen to a model."""
        listener = Listener(port)
        watched.listeners.append(listener)
        port.detach_with(lambda: watched.listeners.remove(listener))


class OuterModules(Modules):
    """Names the modules of its models as its users know them."""

    def is_model(self, value: object) -> bool:
        """Whether it is one of its models."""
        return isinstance(value, Model)

    def modules(self, model: Model) -> Iterable[tuple[nn.Module, Place]]:
        """The model and its two layers."""
        yield model, Place("", "Model", 0, kind=ModuleKind.CONTAINER)
        yield model.body, Place("trunk", "Layer", 1, kind=ModuleKind.LINEAR)
        yield model.head, Place("classifier", "Layer", 2, kind=ModuleKind.LINEAR)

    def parameters(self, model: Model) -> Iterable[tuple[torch.Tensor, ParameterPlace]]:
        """Kernels and biases of the layers."""
        for module, place in self.modules(model):
            for leaf, parameter in module.named_parameters(recurse=False):
                name = "kernel" if leaf == "weight" else leaf
                yield parameter, ParameterPlace(f"{place.path}.{name}", name, place)
