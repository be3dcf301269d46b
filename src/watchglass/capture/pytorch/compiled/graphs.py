"""What compilers and CUDA graphs make of code: whether there is any.

While a CUDA graph is captured, what is launched is not done, but becomes part of it, to be done at each replay.

So nothing of ours is launched then, copied or waited for. A replay calls no Python: its steps are not heard of either.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch


def compiled_so_far() -> bool:
    """Whether anything was compiled in this process, or is to be at its first call, as far as PyTorch shows.

    PyTorch imports its compiler for every optimizer; the backends that it knows show that ``torch.compile`` was called.
    """
    module = sys.modules.get("torch._dynamo.eval_frame")
    if module is None:
        return False
    backends = getattr(module, "cached_backends", None)
    return not isinstance(backends, dict) or any(map(callable, backends.values()))


def captured() -> bool:
    """Whether what is launched now becomes part of a CUDA graph; costs next to nothing where CUDA is not in use."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def in_graph_capture(tensor: torch.Tensor) -> bool:
    """Whether what is done to this tensor now would become part of a CUDA graph."""
    return tensor.is_cuda and captured()


def unless_captured(callback: Callable[..., Any]) -> Callable[..., Any]:
    """``callback``, which does nothing while a CUDA graph is captured."""

    def run(*arguments: Any) -> Any:
        return None if captured() else callback(*arguments)

    return run
