"""Fact ``gradient_noise``: how much the gradients of single samples of a batch differ, now and then."""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from watchglass.capture.arrays import Elements
from watchglass.capture.port import Port
from watchglass.capture.pytorch.events import BackwardCall, ForwardCall, ModuleCall, Update
from watchglass.capture.pytorch.facts.copies import Copies
from watchglass.capture.pytorch.facts.rank_gradients import processes
from watchglass.capture.pytorch.modules.models import Models
from watchglass.capture.pytorch.step.tensor_hooks import observe_gradient
from watchglass.record import DeferredFact, OpenStep
from watchglass.records import Mode, facts

#: Inputs and outputs of a layer whose weights are sampled, and rows (samples times positions) of its batch.
INPUTS, OUTPUTS, ROWS = 64, 16, 4096
#: Most layers, spread over the model.
LAYERS = 8
#: Steps between two samples: a sixteenth of the steps so far, within these bounds.
_LEAST_APART, _MOST_APART = 2, 64


@dataclass(frozen=True)
class SampledLayer:
    """What a linear layer got for some samples of a batch, and the gradients that came back."""

    name: str  #: Name of its weight.
    size: int  #: Number of its weights.
    inputs: NDArray[Any]  #: Some inputs, float[samples, positions, inputs].
    gradients: NDArray[Any]  #: Gradients of some outputs, float[samples, positions, outputs].


def next_after(first: int, step: int) -> int:
    """The step from which on the next sample is due.

    Args:
        first: The step of the first sample.
        step: The step of the latest one.
    """
    return step + min(max((step - first) // 16, _LEAST_APART), _MOST_APART)


def noise_of(layers: Sequence[SampledLayer]) -> tuple[float, float] | None:
    """Noise and signal of the gradients of samples; None where they are not finite.

    The gradient of a weight is a sum over samples, each with its input times the gradient of its output. The sums over
    weights count each layer as if all its weights were sampled.

    Args:
        layers: The layers, all with the same samples.
    """
    noise = signal = 0.0
    samples = len(layers[0].inputs)
    for layer in layers:
        each = np.einsum("nto,ntk->nok", layer.gradients, layer.inputs, dtype=np.float64, casting="unsafe")
        each = each.reshape(samples, -1)
        variance = float(each.var(0, ddof=1).sum())
        share = layer.size / each.shape[1]
        noise += share * variance
        # The square of a mean exceeds that of the true one by the noise that is left in it.
        signal += share * (float(np.square(each.mean(0)).sum()) - variance / samples)
    if not (math.isfinite(noise) and math.isfinite(signal)):
        return None
    return float(f"{noise:.6g}"), float(f"{signal:.6g}")


class _Layer:
    """A linear layer that is sampled in one forward.

    Args:
        module: The layer.
        inputs: Some of its inputs, [samples, positions, inputs].
    """

    def __init__(self, module: nn.Module, inputs: Tensor) -> None:
        self.module = weakref.ref(module)
        self.inputs = inputs
        self.gradients: Tensor | None = None
        #: How often it was called, and how often a gradient came back: more than once, and these are not all.
        self.calls = 1
        self.arrivals = 0
        self.remove: Callable[[], None] = lambda: None

    def arrived(self, gradient: Tensor | None) -> None:
        """The gradient of its output is there, on any thread."""
        self.arrivals += 1
        if gradient is not None and self.arrivals == 1:
            with torch.no_grad():
                samples, positions, _ = self.inputs.shape
                self.gradients = _some(gradient, samples, positions, OUTPUTS)


class _Looked:
    """The first forward of a step, which is sampled.

    Args:
        root: The outermost module.
        step: Number of the step.
        batch: Samples of the forward.
    """

    def __init__(self, root: nn.Module, step: int, batch: int) -> None:
        self.root = weakref.ref(root)
        self.step = step
        self.batch = batch
        self.chosen = set(_linear(root))
        self.layers: dict[nn.Module, _Layer] = {}
        self.runs = True
        self.forwards = 1
        self.backwards = 0


class GradientNoiseFact:
    """Copies some inputs and gradients of linear layers in the first forward of some captured steps."""

    def __init__(self, port: Port, models: Models, leave: ExitStack) -> None:
        self._port = port
        self._models = models
        self._paces: weakref.WeakKeyDictionary[nn.Module, tuple[int, int]] = weakref.WeakKeyDictionary()
        self._fit: weakref.WeakKeyDictionary[nn.Module, bool] = weakref.WeakKeyDictionary()
        self._looked: _Looked | None = None
        self._listening = True
        #: An entry of :attr:`Events.module_listeners`.
        self.module_listeners = (lambda: self._listening, self._called)
        leave.callback(self._forget)

    def _forget(self) -> None:
        looked, self._looked = self._looked, None
        for layer in looked.layers.values() if looked is not None else ():
            layer.remove()

    def step_began(self, step: OpenStep) -> None:
        """A captured step has opened."""
        self._listening = step.mode_step >= min((due for _, due in self._paces.values()), default=0)

    def forward_began(self, call: ForwardCall) -> None:
        """A captured forward is about to run."""
        looked, root, step = self._looked, call.root, call.step.mode_step
        if call.step.mode is not Mode.TRAIN:
            return
        if looked is not None and looked.step == step and looked.root() is root:
            looked.forwards += 1
            return
        self._forget()
        if step < self._paces.get(root, (0, step))[1] or not self._has_samples_first(root):
            return
        batch = _batch((*call.arguments, *(call.kwargs or {}).values()))
        if batch > 1:
            self._looked = _Looked(root, step, batch)

    def _has_samples_first(self, root: nn.Module) -> bool:
        """Whether no module wants time as the first axis: of its inputs that would not count samples."""
        known = self._fit.get(root)
        if known is None:
            known = self._fit[root] = all(getattr(module, "batch_first", True) for module in root.modules())
        return known

    def _called(self, call: ModuleCall) -> None:
        looked = self._looked
        if looked is None or not looked.runs or call.module not in looked.chosen:
            return
        known = looked.layers.get(call.module)
        if known is not None:
            known.calls += 1
            return
        given: Any = call.arguments[0] if call.arguments else None
        output = call.output
        if not (_usable(given, looked.batch) and _usable(output, looked.batch) and output.requires_grad):
            return
        positions = given[0, ..., 0].numel()
        samples = min(looked.batch, ROWS // max(positions, 1))
        if samples < 2 or output[0, ..., 0].numel() != positions:
            return
        layer = looked.layers[call.module] = _Layer(call.module, _some(given, samples, positions, INPUTS))
        layer.remove = observe_gradient(output, self._port.guard, layer.arrived).remove

    def forward_ended(self, call: ForwardCall) -> None:
        """The forward has ended: what is called after it belongs to another one."""
        if self._looked is not None:
            self._looked.runs = False

    def backward_began(self, call: BackwardCall) -> None:
        """A backward of the step is about to run."""
        if self._looked is not None:
            self._looked.backwards += 1

    def update_began(self, update: Update) -> None:
        """All gradients are there."""
        looked = self._looked
        root = looked.root() if looked is not None else None
        if looked is None or root is None or looked.step != update.step.mode_step:
            return
        self._forget()
        first = self._paces.get(root, (looked.step, 0))[0]
        self._paces[root] = first, next_after(first, looked.step)
        # Several forwards of one backward share samples, or have parts of each.
        if looked.forwards not in (1, looked.backwards):
            return
        copies = Copies()
        rows: list[tuple[str, int, Elements, Elements, tuple[int, int]]] = []
        for layer in looked.layers.values():
            module = layer.module()
            place = self._models.module(module) if module is not None else None
            if place is None or layer.gradients is None or (layer.calls, layer.arrivals) != (1, 1):
                continue
            name = f"{place.path}.weight" if place.path else "weight"
            places = copies.add(layer.inputs), copies.add(layer.gradients)
            rows.append((name, module.weight.numel(), *places, layer.inputs.shape[:2]))  # type: ignore[union-attr,operator,arg-type]
        fewest = min((row[4][0] for row in rows), default=0)
        if rows:
            copies.send()
            about = looked.batch, looked.forwards, processes()
            make = functools.partial(_noise, about, fewest, rows)
            update.step.records.add_fact(DeferredFact(facts.SampledNoise, make), "backward")

    #: Lines of the script may do the update.
    script_update_began = update_began


def _noise(about: tuple[int, int, int], samples: int, rows: list[Any]) -> facts.SampledNoise | None:
    layers = [
        SampledLayer(name, size, *(each.received().reshape(*shape, -1)[:samples] for each in (inputs, gradients)))
        for name, size, inputs, gradients, shape in rows
    ]
    noise = noise_of(layers)
    if noise is None:
        return None
    return facts.SampledNoise(*about, *noise, len(layers[0].inputs), tuple(layer.name for layer in layers))


def _linear(root: nn.Module) -> list[nn.Module]:
    """Some linear layers that are trained, spread over the model."""
    found: list[nn.Module] = [
        module for module in root.modules() if isinstance(module, nn.Linear) and module.weight.requires_grad
    ]
    return [found[index * len(found) // LAYERS] for index in range(LAYERS)] if len(found) > LAYERS else found


def _batch(arguments: tuple[Any, ...]) -> int:
    """The first axis of the first input; 0 where it does not count samples."""
    first = next((each for each in arguments if isinstance(each, Tensor)), None)
    return int(first.shape[0]) if first is not None and first.dim() > 1 else 0


def _usable(values: Any, batch: int) -> bool:
    """Whether this is a plain tensor with a row for each sample."""
    return (
        type(values) is Tensor and values.layout is torch.strided and values.is_floating_point()
        and not values.is_meta and values.dim() > 1 and values.shape[0] == batch and values.numel() > 0
    )  # fmt: skip


def _some(values: Tensor, samples: int, positions: int, most: int) -> Tensor:
    """A copy of some features of the first samples, [samples, positions, features]."""
    values = values.detach()[:samples]
    # Neighbours, of which each row needs a few lines of cache; in the middle, since images are empty at their borders.
    begin = max(0, (values.shape[-1] - most) // 2)
    return values[..., begin : begin + most].reshape(samples, positions, -1).clone()
