"""PyTorch for the table of frameworks."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from watchglass.capture.frameworks import Framework, Numbers
from watchglass.capture.hook import Hook
from watchglass.capture.pytorch.adapter import PyTorchAdapter
from watchglass.capture.pytorch.compiled.graphs import in_graph_capture
from watchglass.capture.pytorch.device.readback import DeviceRows
from watchglass.capture.pytorch.early_backwards import count_early_backwards
from watchglass.capture.pytorch.first_use import attach_at_first_use
from watchglass.capture.pytorch.modules.crashed_modules import module_and_figures
from watchglass.capture.pytorch.saving.reduce import for_numpy, plain
from watchglass.config import environment


class PyTorch(Framework):
    """Models are modules, found by their outermost calls where none is given; arrays are tensors on any device."""

    name = "torch"

    def is_model(self, value: object) -> bool:
        """Whether this is a module."""
        return isinstance(value, nn.Module)

    def attach(self, hook: Hook, model: Any = None) -> None:
        """Watch a module, or all modules that are trained."""
        adapter = PyTorchAdapter.of(hook)
        if adapter is None:
            count_early_backwards(hook)
        if adapter is None and model is None and threading.current_thread() is not threading.main_thread():
            attach_at_first_use(hook)
            return
        adapter = adapter or PyTorchAdapter(hook, discover=model is None)
        if model is not None:
            adapter.attach(model)

    def is_array(self, value: object) -> bool:
        """Whether this is a tensor."""
        return isinstance(value, Tensor)

    def read(self, array: Tensor) -> Numbers | None:
        """What is in a tensor; None while what is done to it would become part of a CUDA graph instead."""
        if in_graph_capture(array):
            return None
        tensor = plain(array)
        if tensor is None:
            raise ValueError("a tensor without values")
        tensor = for_numpy(tensor)
        elements: Any = tensor.numpy() if tensor.is_cpu else DeviceRows(tensor)
        dtype = str(array.dtype).removeprefix("torch.")
        return Numbers(tuple(tensor.shape), dtype, elements, tensor.is_complex())

    def crashed(self, trace: TracebackType | None) -> tuple[str, str]:
        """The innermost module in a traceback, and shapes, dtypes or ranges of its tensors."""
        return module_and_figures(trace)

    def rank(self) -> int | None:
        """Rank in the process group of ``torch.distributed``, else the one that the launcher gave."""
        distributed = torch.distributed
        if distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1:
            return int(distributed.get_rank())
        return environment.group_rank()
