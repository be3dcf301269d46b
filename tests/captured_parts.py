"""A training run as the adapter's parts hear of it, and what they save of it: for tests of one part by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from torch.optim import Optimizer

from watchglass.capture import Hook, Port
from watchglass.capture.arrays import Arrays, arrays_of
from watchglass.capture.pytorch.events import Events, ForwardCall, LossCall, ModuleCall, Update
from watchglass.capture.pytorch.modules.models import Models
from watchglass.capture.saving.saving import Item
from watchglass.record import CapturedRecords, Forward, OpenStep
from watchglass.records import FACTS, SCALARS, UNITS, Role


@dataclass
class Recording:
    """Stands for ``Saving``: asks the plan as it does, and keeps copies."""

    port: Port
    tensors: dict[str, list[Tensor]] = field(default_factory=dict)
    items: dict[str, tuple[Role, Item]] = field(default_factory=dict)

    def arrays_of(self, tensor: Tensor) -> Arrays:
        return arrays_of(tensor)

    def save(self, records: CapturedRecords, role: Role, item: Item) -> int | None:
        saved = self.save_all(records, role, (item,))
        return saved[0] if saved else None

    def save_all(
        self, records: CapturedRecords, role: Role, items: Sequence[Item], scale: Tensor | None = None
    ) -> list[int]:
        assert not torch.is_grad_enabled()
        ids = []
        for item in items:
            place = item.place
            if self.port.plan.keep(item.name, role, place, item.tags) is None:
                continue
            value = item.tensor.detach().clone()
            self.tensors.setdefault(item.name, []).append(value if scale is None else value / scale)
            self.items[item.name] = (role, item)
            ids.append(len(ids) + 1)
        return ids


class Stage:
    """Calls models, losses and optimizers, and tells the parts of it as the adapter would, at every step.

    Args:
        run: Path that no run is ever written to.
        parts: Classes of parts.
        model: What is watched.
        settings: Of the hook; every step is captured.
    """

    def __init__(self, run: Path, parts: Sequence[Callable[..., Any]], *models: nn.Module, **settings: Any) -> None:
        self.hook = Hook(str(run), strict=True, **{"save_interval": 1, **settings})
        self.models = Models(self.hook.port.model_numbers)
        for model in models:
            self.models.settle(self.models.add(model).number)
        self.events = Events()
        self.saving = Recording(self.hook.port)
        self.facts: list[tuple[str, str, dict[str, Any]]] = []
        self.scalars: dict[str, list[float]] = {}
        self._forwards: list[tuple[OpenStep, Forward]] = []
        for part in parts:
            part(self.hook.port, self.models, self.saving, self.events)

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *error: object) -> None:
        self.gather()
        self.hook.close()

    @property
    def names(self) -> list[str]:
        return sorted(self.saving.tensors)

    def only(self, name: str) -> Tensor:
        """The tensor that was saved once under a name."""
        (tensor,) = self.saving.tensors[name]
        return tensor

    def tags(self, name: str) -> tuple[str, ...]:
        return self.saving.items[name][1].tags

    def role(self, name: str) -> Role:
        return self.saving.items[name][0]

    @contextmanager
    def forward(self, root: nn.Module, arguments: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Iterator[Any]:
        clock = self.hook.port.clock
        before, grad = clock.train, torch.is_grad_enabled()
        forward = clock.forward(grad=grad, training=root.training)
        step = clock.train if grad else clock.evaluation
        assert step is not None
        with torch.no_grad():
            if step is not before and grad:
                self._send(self.events.step_began, step)
            self.events.ask_module_listeners()
            self._send(self.events.forward_began, ForwardCall(step, forward, root, arguments, kwargs))

        def called(module: nn.Module, arguments: Any, output: Any) -> None:
            place = self.models.module(module)
            if place is not None:
                with torch.no_grad():
                    self._send(self.events.module_called, ModuleCall(forward.records, place, module, arguments, output))

        handle = register_module_forward_hook(called)
        try:
            yield forward
        finally:
            handle.remove()
        self._forwards.append((step, forward))

    def call(self, root: nn.Module, *arguments: Any, **kwargs: Any) -> Any:
        """Call a model."""
        with self.forward(root, arguments, kwargs) as forward:
            output = root(*arguments, **kwargs)
        step = self._forwards[-1][0]
        with torch.no_grad():
            self._send(self.events.forward_ended, ForwardCall(step, forward, root, arguments, None, output))
        return output

    def loss(self, function: Callable[..., Tensor], *arguments: Any, **kwargs: Any) -> Tensor:
        """Call a loss function."""
        forward = self._forwards[-1][1]
        result = function(*arguments, **kwargs)
        predictions = arguments[0] if arguments else kwargs.get("input")
        target = arguments[1] if len(arguments) > 1 else kwargs.get("target")
        call = LossCall(forward, function.__name__, predictions, target, arguments, kwargs, result, True)
        with torch.no_grad():
            self._send(self.events.loss_computed, call)
        return result

    def update(self, optimizer: Optimizer, closure: Callable[[], Any] | None = None, scale: Any = None) -> None:
        """Let an optimizer step."""
        step = self.hook.port.clock.begin_update(id(optimizer))
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        places = [(parameter, self.models.parameter(parameter)) for parameter in parameters]
        update = Update(step, optimizer, [(p, place.name, place) for p, place in places if place is not None], scale)
        with torch.no_grad():
            self._send(self.events.update_began, update)
        optimizer.step(closure) if closure else optimizer.step()
        with torch.no_grad():
            self._send(self.events.update_ended, update)
        self.gather(step)
        self.hook.port.clock.end_update()

    def train(self, model: nn.Module, optimizer: Optimizer, inputs: Any, loss: Callable[[Any], Tensor]) -> None:
        """One whole step."""
        optimizer.zero_grad()
        loss(self.call(model, inputs)).backward()
        self.update(optimizer)

    def units(self) -> list[Any]:
        """Rows about single units that forwards since the last update have recorded."""
        return [row for _, forward in self._forwards for row in forward.records.rows[UNITS]]

    def gather(self, step: OpenStep | None = None) -> None:
        """Collect facts and numbers of the events so far."""
        for records in [forward.records for _, forward in self._forwards] + ([step.records] if step else []):
            self.facts += records.rows[FACTS]
            names = {number: name for name, number in self.hook.port.ids._by_name.items()}
            for tensor_id, _, value in records.rows[SCALARS]:
                number = float(value.resolve() if hasattr(value, "resolve") else value)
                self.scalars.setdefault(names[tensor_id], []).append(number)
        self._forwards.clear()

    @staticmethod
    def _send(listeners: Sequence[Callable[[Any], None]], event: Any) -> None:
        for listener in listeners:
            listener(event)
