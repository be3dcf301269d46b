"""The physical limit of a capture: one read of every captured byte at the bandwidth of this machine."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from workloads import Training

#: Far more than a cache holds.
_CPU_BUFFER_BYTES, _DEVICE_BUFFER_BYTES = 256 << 20, 2 << 30
_PASSES = 9


@dataclass(frozen=True)
class Captured:
    """What one capture looks at.

    Attributes:
        tensors: How many.
        size: Their bytes.
    """

    tensors: int
    size: int


def captured(training: Training, kinds: Iterable[str]) -> Captured:
    """What a capture of ``kinds`` looks at in a step, found without watchglass; makes one training step.

    Args:
        training: A training run that runs eagerly.
        kinds: Any of ``parameters``, ``gradients``, ``updates`` and ``outputs`` (of modules, one that is handed on
            counted once).
    """
    parameters = list(training.model.parameters())
    found: list[Tensor] = []
    for kind in kinds:
        if kind == "outputs":
            found += _outputs(training)
        elif kind == "gradients":
            training.step()
            found += [parameter.grad for parameter in parameters if parameter.grad is not None]
        else:
            found += parameters
    return Captured(len(found), sum(tensor.nbytes for tensor in found))


def _outputs(training: Training) -> list[Tensor]:
    seen: dict[int, Tensor] = {}

    def look(module: nn.Module, arguments: Any, output: Any) -> None:
        # Held until the step is over, so that no two have one identity.
        if isinstance(output, Tensor) and output.is_floating_point():
            seen[id(output)] = output

    handle = register_module_forward_hook(look)
    try:
        training.step()
    finally:
        handle.remove()
    return list(seen.values())


def bandwidth(device: str = "cpu", size: int | None = None) -> float:
    """Bytes per second that memory gives: the fastest of several sums over a large buffer, with torch's threads."""
    size = size or (_CPU_BUFFER_BYTES if device == "cpu" else _DEVICE_BUFFER_BYTES)
    buffer = torch.zeros(size // 4, dtype=torch.float32, device=device)
    fastest = float("inf")
    for _ in range(_PASSES):
        _finish(device)
        start = time.perf_counter()
        buffer.sum()
        _finish(device)
        fastest = min(fastest, time.perf_counter() - start)
    return buffer.nbytes / fastest


def _finish(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()
