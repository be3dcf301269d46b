"""Memory of a training run by category: what models and optimizers hold, and what a profiled window needs beyond it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from watchglass.capture.pytorch.modules.nested_tensors import tensors_in
from watchglass.records import MemoryTotals


def held_memory(roots: Iterable[nn.Module], optimizers: Iterable[Optimizer]) -> list[MemoryTotals]:
    """Bytes of parameters, gradients, buffers and states of optimizers, by device.

    Each tensor counts once, a distributed one with its local part. Reads no values, so that it waits for no device.
    """
    sums: dict[tuple[str, str], int] = {}
    seen: set[int] = set()
    for category, tensor in _tensors(list(roots), list(optimizers)):
        if id(tensor) not in seen:
            seen.add(id(tensor))
            local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
            key = str(local.device), category
            sums[key] = sums.get(key, 0) + local.element_size() * local.nelement()
    return [MemoryTotals(device, category, size) for (device, category), size in sums.items()]


def temporary_memory(events: Iterable[Any]) -> list[MemoryTotals]:
    """The most that was allocated at a time in a window beyond its beginning, by device.

    These are activations, gradients that are made in each step, and workspaces.

    Args:
        events: Allocations and releases, as PyTorch's profiler has them, in the order of time.
    """
    now: dict[str, int] = {}
    most: dict[str, int] = {}
    for event in events:
        if event.name() == "[memory]":
            kind = event.device_type().name.lower()
            device = kind if kind == "cpu" else f"{kind}:{event.device_index()}"
            now[device] = now.get(device, 0) + event.nbytes()
            most[device] = max(most.get(device, 0), now[device])
    return [MemoryTotals(device, "temporary", size) for device, size in most.items() if size > 0]


def _tensors(roots: list[nn.Module], optimizers: list[Optimizer]) -> Iterator[tuple[str, Tensor]]:
    for root in roots:
        for parameter in root.parameters():
            yield "parameters", parameter
            if parameter.grad is not None:
                yield "gradients", parameter.grad
        for buffer in root.buffers():
            yield "buffers", buffer
    for optimizer in optimizers:
        for state in list(optimizer.state.values()):
            for _, tensor in tensors_in(state):
                yield "optimizer_state", tensor
