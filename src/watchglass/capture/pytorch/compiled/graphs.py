"""Whether there is compiled code, a compilation going on, or a CUDA graph under capture.

While a CUDA graph is captured, launches do not run: they become part of the graph and run at each replay. So capture
launches, copies and waits for nothing then. A replay calls no Python: its steps cannot be observed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.compiler import is_compiling

try:
    from torch._guards import TracingContext

    _compilation = TracingContext.try_get
except ImportError:  # a PyTorch without a context of compilations

    def _compilation() -> None: ...


#: Whether the context of a compilation must be asked: that takes most of the time of a callback that does nothing.
_BY_CONTEXT = torch.torch_version.TorchVersion(torch.__version__) < "2.13"


def compiled_so_far() -> bool:
    """Whether anything was compiled in this process, or is to be at its first call, as far as PyTorch shows.

    PyTorch imports its compiler for every optimizer; the backends that it knows show that ``torch.compile`` was called.
    """
    module = sys.modules.get("torch._dynamo.eval_frame")
    if module is None:
        return False
    backends = getattr(module, "cached_backends", None)
    return not isinstance(backends, dict) or any(map(callable, backends.values()))


def compiling() -> bool:
    """Whether PyTorch now compiles, so that tensors may be symbols without elements.

    The compiler calls functions once more after it has read the code. Before PyTorch 2.13 ``is_compiling`` is False
    then, and only the context of the compilation shows it.
    """
    return is_compiling() or (_BY_CONTEXT and _compilation() is not None)


def captured() -> bool:
    """Whether launches now become part of a CUDA graph; costs almost nothing without CUDA."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def in_graph_capture(tensor: torch.Tensor) -> bool:
    """Whether operations on this tensor would now become part of a CUDA graph."""
    return tensor.is_cuda and captured()


def unless_captured(callback: Callable[..., Any]) -> Callable[..., Any]:
    """``callback``, which does nothing while a CUDA graph is captured."""

    def run(*arguments: Any) -> Any:
        return None if captured() else callback(*arguments)

    return run
