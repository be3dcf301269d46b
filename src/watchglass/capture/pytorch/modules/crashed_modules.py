"""What a traceback shows of an exception in a model: the module, and the figures of the tensors that it got."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

#: Most elements of a tensor whose smallest and largest value are computed.
_MOST_ELEMENTS = 1 << 24


def module_and_figures(trace: TracebackType | None) -> tuple[str, str]:
    """The path of the innermost module that was running, and the figures of what it worked on; "" where unknown.

    Nothing on a device is read: after a failed kernel every read may raise or wait.

    Args:
        trace: The traceback of the exception.
    """
    frames: list[Mapping[str, Any]] = []
    names: list[str] = []
    while trace is not None:
        frames.append(trace.tb_frame.f_locals)
        names.append(trace.tb_frame.f_code.co_name)
        trace = trace.tb_next
    modules = [found for frame in frames if isinstance(found := frame.get("self"), nn.Module)]
    figures = next(
        (text for frame, name in zip(frames[::-1], names[::-1], strict=True) if (text := _figures(frame, name))), ""
    )
    return (_path(modules[0], modules[-1]) if modules else ""), figures


def _path(root: nn.Module, module: nn.Module) -> str:
    """A module's path below ``root`` and its class, ``"layers.0.attention (Attention)"``; of a loss the class alone."""
    if module.__class__.__module__.startswith("torch.nn.modules.loss"):
        return type(module).__name__
    path = next((name for name, each in root.named_modules() if each is module), "")
    return f"{path} ({type(module).__name__})" if path else type(module).__name__


def _figures(frame: Mapping[str, Any], function: str) -> str:
    """What the variables of one frame show, as PyTorch's functions name them; "" where they show nothing."""
    given = {name: value for name, value in frame.items() if isinstance(value, Tensor)}
    inputs, target, module = given.get("input"), given.get("target"), frame.get("self")
    weight = given.get("weight")
    if weight is None and isinstance(module, nn.Module):
        weight = getattr(module, "weight", None)
    if function == "embedding" and inputs is not None and weight is not None:
        return _range("indices", inputs, f"the table has {weight.shape[0]:,} rows")
    if inputs is not None and target is not None and not target.is_floating_point() and inputs.dim() > 1:
        return _range("targets", target, f"the output has {inputs.shape[1]:,} classes")
    if inputs is not None and target is not None:
        return f"predictions of {_kind(inputs)}, targets of {_kind(target)}"
    if inputs is not None and isinstance(weight, Tensor):
        return f"an input of {_kind(inputs)}, a weight of {_kind(weight)}"
    return ""


def _range(what: str, numbers: Tensor, limit: str) -> str:
    if not numbers.is_cpu or not 0 < numbers.numel() <= _MOST_ELEMENTS:
        return ""
    with torch.no_grad():
        return f"{what} go from {int(numbers.min()):,} to {int(numbers.max()):,}, {limit}"


def _kind(tensor: Tensor) -> str:
    return f"shape {tuple(tensor.shape)} and dtype {str(tensor.dtype).removeprefix('torch.')}"
