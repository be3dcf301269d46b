"""Running a forward a second time, from its recorded state, without a trace left in the training."""

from __future__ import annotations

import contextlib
import math
import operator
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from watchglass.capture.pytorch.first_bad.randomness import Draws, Randomness, restored
from watchglass.capture.pytorch.first_bad.separate import alone, why_not_alone
from watchglass.capture.pytorch.modules import is_compiled, unwrap
from watchglass.capture.pytorch.nested import leaves_in, tensors_in

_PLAIN = (type(None), bool, int, float, str, bytes, torch.dtype, torch.device, torch.Size)
_REPEATABLE = (Tensor, *_PLAIN)
#: What a forward returned is kept until the update where all of it together is no larger than this: logits of a
#: language model must not live longer than without us.
_MOST_KEPT_BYTES = 4 << 20


class Settings(NamedTuple):
    """Settings of PyTorch that choose what a forward computes. Gradients are on: other forwards are not repeated."""

    autocast: tuple[str, torch.dtype] | None
    deterministic: bool
    warn_only: bool

    @staticmethod
    def now(device_type: str) -> Settings:
        """The settings as they are, for a forward on this type of device."""
        autocast = torch.is_autocast_enabled(device_type)
        return Settings(
            (device_type, torch.get_autocast_dtype(device_type)) if autocast else None,
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        )

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Inside, the settings are these."""
        before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
        device_type, dtype = self.autocast or ("cpu", torch.bfloat16)
        # Without its cache of converted weights: what a re-run puts there the training would find.
        autocast = torch.autocast(device_type, dtype, enabled=self.autocast is not None, cache_enabled=False)
        torch.use_deterministic_algorithms(self.deterministic, warn_only=self.warn_only)
        try:
            with autocast, torch.enable_grad():
                yield
        finally:
            torch.use_deterministic_algorithms(before[0], warn_only=before[1])


class Kept(NamedTuple):
    """An output that is kept, detached, with its version: it may be changed in place later."""

    tensor: Tensor
    version: int


@dataclass(slots=True)
class ForwardState:
    """What a re-run of a forward needs. References only: nothing is copied but states of generators.

    Attributes:
        root: The outermost module.
        arguments: Its positional arguments.
        kwargs: Its keyword arguments; None where they were not seen.
        settings: PyTorch's settings.
        versions: Those of all tensors it was given; None where they cannot be told.
        states: States of the generators that it may draw from, before it.
        draws: From which ones it is known to draw.
        outputs: What it returned, by path, where that is small.
        gradients: What the loss's backward gave for each output, where that is small.
        loss_call: Name, further arguments and keyword arguments of the loss function that was given its output.
        loss: What its backward started from; None where that is not known.
    """

    root: nn.Module
    arguments: Any
    kwargs: Any
    settings: Settings
    versions: tuple[int, ...] | None
    states: Randomness
    draws: Draws
    outputs: dict[str, Kept] = field(default_factory=dict)
    gradients: dict[str, Tensor] = field(default_factory=dict)
    loss_call: tuple[str, tuple[Any, ...], dict[str, Any]] | None = None
    loss: float | None = None

    def keep_outputs(self, outputs: list[tuple[str, Tensor]]) -> None:
        """Keep what the forward returned, the small part of it, and without its graph."""
        room = _MOST_KEPT_BYTES
        for path, tensor in outputs:
            if tensor.nbytes <= room and not tensor.is_inference():
                room -= tensor.nbytes
                self.outputs[path] = Kept(tensor.detach(), tensor._version)

    def keep_gradient(self, path: str, gradient: Tensor) -> None:
        """Keep what the loss sent back for an output, if that is small."""
        if gradient.nbytes <= _MOST_KEPT_BYTES:
            self.gradients[path] = gradient


def versions(arguments: Any, kwargs: Any) -> tuple[int, ...] | None:
    """How often each tensor that a module is given has been changed in place; None for what does not count it."""
    found: list[int] = []
    try:
        for value in (*arguments, *kwargs.values()) if kwargs else arguments:
            if isinstance(value, Tensor):
                found.append(value._version)
            elif not isinstance(value, _PLAIN):
                found += [tensor._version for _, tensor in tensors_in(value)]
    except RuntimeError:
        return None  # made in inference mode
    return tuple(found)


def refusal(state: ForwardState, room: int) -> str:
    """Why this forward cannot be repeated with so many bytes left, ``""`` when it can."""
    if state.kwargs is None:
        return "the first call of a model is seen without its keyword arguments"
    if not all(isinstance(leaf, _REPEATABLE) for _, leaf in leaves_in((state.arguments, state.kwargs))):
        return "the forward takes arguments that cannot be given twice"
    if is_compiled(state.root) or any(isinstance(part, torch.jit.ScriptModule) for part in state.root.modules()):
        return "the model is compiled"
    reason = why_not_alone(state.root)
    if reason:
        return reason
    if not unchanged(state):
        return "an input was changed after the forward"
    return "a re-run would take more than capture_memory_bytes" if room < 0 else ""


def unchanged(state: ForwardState) -> bool:
    """Whether the tensors that the forward was given are as they were."""
    return state.versions is not None and versions(state.arguments, state.kwargs) == state.versions


def repeat(state: ForwardState, *, graph: bool) -> dict[str, Tensor]:
    """Run the forward again and return its outputs by path.

    The caller has suspended our own hooks. Parameters, buffers, attributes of modules and random states are what they
    were when this returns.

    Args:
        state: The forward.
        graph: Whether a backward is to run through the outputs; else autograd keeps nothing of it alive.

    Raises:
        CollectiveError: The forward would have talked to other ranks.
    """
    # Of a data-parallel model only the part inside: its wrapper would broadcast buffers.
    module = unwrap(state.root)
    # On copies of the buffers: writing to the real ones, even to restore them, breaks the backward that is due.
    buffers = {name: buffer.detach().clone() for name, buffer in module.named_buffers()}
    # With gradients, as it was: some modules compute otherwise without.
    saving = contextlib.nullcontext() if graph else torch.autograd.graph.saved_tensors_hooks(_nothing, _nothing)
    with restored(), _restored_attributes(module), state.settings.applied(), saving, alone():
        state.states.restore()
        return dict(tensors_in(torch.func.functional_call(module, buffers, state.arguments, state.kwargs)))


def loss_of(state: ForwardState, outputs: dict[str, Tensor]) -> Tensor | None:
    """The loss function's result for the outputs of a re-run, None where no such function is known."""
    if state.loss_call is None or "" not in outputs:
        return None
    function, arguments, kwargs = state.loss_call
    with state.settings.applied():
        loss = getattr(torch.nn.functional, function)(outputs[""], *arguments, **kwargs)
    return loss if isinstance(loss, Tensor) and loss.numel() == 1 else None


def verified(state: ForwardState, outputs: dict[str, Tensor], loss: Tensor | None) -> str | None:
    """By what a re-run is known to have repeated the forward: ``"outputs"``, ``"loss"``, or ``""``; None if it did not.

    Args:
        state: The forward.
        outputs: What the re-run returned.
        loss: What :func:`loss_of` gave for them.
    """
    kept = {path: known.tensor for path, known in state.outputs.items() if known.tensor._version == known.version}
    if kept:
        return "outputs" if all(path in outputs and same(outputs[path], kept[path]) for path in kept) else None
    if state.loss is None:
        return ""
    # A model may return its loss, among other things.
    numbers = [one for one in (loss, *outputs.values()) if one is not None and one.numel() == 1]
    return "loss" if any(alike(one, state.loss) for one in numbers if not one.is_complex()) else ""


def same(tensor: Tensor, expected: Tensor) -> bool:
    """Whether two tensors hold the same numbers, NaN equal to NaN."""
    one, other = tensor.detach(), expected.detach()
    alike = one.shape == other.shape and one.dtype == other.dtype
    return alike and bool(((one == other) | ((one != one) & (other != other))).all())


def alike(tensor: Tensor, number: float) -> bool:
    """Whether a tensor of one element is this number, or both are NaN."""
    value = float(tensor.detach())
    return value == number or (math.isnan(value) and math.isnan(number))


def _nothing(value: Any) -> Any:
    return None


@contextlib.contextmanager
def _restored_attributes(root: nn.Module) -> Iterator[None]:
    """Plain attributes that a forward writes, counters or states of its own, are put back, and what lists hold."""
    before = [(vars(part), dict(vars(part))) for part in root.modules()]
    held = [
        (value, value.copy())
        for _, attributes in before
        for value in attributes.values()
        if type(value) in (list, dict, set)
    ]
    try:
        yield
    finally:
        for attributes, known in before:
            for name in attributes.keys() - known.keys():
                del attributes[name]
            attributes.update(known)
        for value, content in held:
            if len(value) != len(content) or any(map(operator.is_not, _items(value), _items(content))):
                value.clear()
                value.extend(content) if isinstance(value, list) else value.update(content)


def _items(value: Any) -> Iterator[Any]:
    return (part for pair in value.items() for part in pair) if isinstance(value, dict) else iter(value)
