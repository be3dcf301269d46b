"""Running a forward a second time, from its recorded state, without a trace left in the training."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from watchglass.capture.pytorch.forwards import tensors_in
from watchglass.capture.pytorch.modules import is_compiled, unwrap

#: Modules whose forward talks to other ranks, which would wait for an answer that a re-run never gets.
_COLLECTIVE = ("SyncBatchNorm", "FullyShardedDataParallel")
_REPEATABLE = (Tensor, type(None), bool, int, float, str, bytes, torch.dtype, torch.device, torch.Size)


@dataclass(slots=True)
class ForwardState:
    """What a re-run of a forward on the CPU needs. References only: nothing is copied but the generator's state.

    Attributes:
        root: The outermost module.
        arguments: Its positional arguments.
        kwargs: Its keyword arguments; None where they were not seen.
        generator: State of PyTorch's CPU generator before the forward; None where it draws no random numbers.
        autocast: Dtype of CPU autocast, None where it was off.
        outputs: What it returned, by path, detached.
        gradients: What the loss's backward gave for each output.
        loss_call: Name, further arguments and keyword arguments of the loss function that was given its output.
    """

    root: nn.Module
    arguments: Any
    kwargs: Any
    generator: Tensor | None
    autocast: torch.dtype | None
    outputs: dict[str, Tensor] = field(default_factory=dict)
    gradients: dict[str, Tensor] = field(default_factory=dict)
    loss_call: tuple[str, tuple[Any, ...], dict[str, Any]] | None = None


def forward_state(root: nn.Module, arguments: Any, kwargs: Any, *, random: bool) -> ForwardState:
    """The state of a forward on the CPU that is about to run; ``random`` when it may draw random numbers."""
    autocast = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
    return ForwardState(root, arguments, kwargs, torch.get_rng_state() if random else None, autocast)


def refusal(state: ForwardState) -> str:
    """Why this forward cannot be repeated, ``""`` when it can."""
    if state.kwargs is None:
        return "the first call of a model is seen without its keyword arguments"
    leaves = _leaves((state.arguments, state.kwargs))
    if not all(isinstance(leaf, _REPEATABLE) for leaf in leaves):
        return "the forward takes arguments that cannot be given twice"
    if is_compiled(state.root):
        return "the model is compiled"
    for module in state.root.modules():
        if type(module).__name__.startswith(_COLLECTIVE):
            return f"the forward of {type(module).__name__} waits for other ranks"
    if any(hasattr(parameter, "to_local") for parameter in state.root.parameters()):
        return "the parameters are sharded over ranks"
    return ""


def repeat(state: ForwardState) -> dict[str, Tensor]:
    """Run the forward again and return its outputs by path, graph attached where gradients are on.

    The caller has suspended our own hooks. Buffers are not touched, and all random states are what they were when
    this returns.
    """
    # Of a data-parallel model only the part inside: its wrapper would broadcast buffers.
    module = unwrap(state.root)
    # On copies of the buffers: writing to the real ones, even to restore them, breaks the backward that is due.
    buffers = {name: buffer.detach().clone() for name, buffer in module.named_buffers()}
    with _restored_randomness():
        if state.generator is not None:
            torch.set_rng_state(state.generator)
        enabled = state.autocast is not None
        with torch.autocast("cpu", dtype=state.autocast or torch.bfloat16, enabled=enabled):
            output = torch.func.functional_call(module, buffers, state.arguments, state.kwargs)
            return dict(tensors_in(output))


def same(outputs: dict[str, Tensor], expected: dict[str, Tensor]) -> bool:
    """Whether two forwards returned the same bits, NaN equal to NaN."""
    return outputs.keys() == expected.keys() and all(
        tensor.shape == expected[path].shape
        and torch.equal(torch.isnan(tensor), torch.isnan(expected[path]))
        and torch.equal(torch.nan_to_num(tensor.detach()), torch.nan_to_num(expected[path]))
        for path, tensor in outputs.items()
    )


@contextlib.contextmanager
def _restored_randomness() -> Iterator[None]:
    torch_state, python_state = torch.get_rng_state(), random.getstate()
    # The legacy generator on purpose: it is the global one that a model's code may draw from.
    numpy_state = np.random.get_state()  # noqa: NPY002
    try:
        yield
    finally:
        torch.set_rng_state(torch_state)
        random.setstate(python_state)
        np.random.set_state(numpy_state)  # noqa: NPY002


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for child in value.values():
            yield from _leaves(child)
    elif isinstance(value, (tuple, list)):
        for child in value:
            yield from _leaves(child)
    else:
        yield value
