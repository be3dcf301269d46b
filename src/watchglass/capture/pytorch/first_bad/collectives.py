"""Whether one process can run a forward that the other ranks do not run with it."""

from __future__ import annotations

import contextlib
import gc
import sys
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

#: Modules whose forward waits for other ranks, by name: importing them imports parts of PyTorch that may not be needed.
_WAITING = ("SyncBatchNorm", "FullyShardedDataParallel", "FSDPModule")
#: Where PyTorch keeps the operations that talk to other ranks.
_OPERATIONS = ("c10d", "_c10d", "symm_mem", "_dtensor")


class RefusedError(RuntimeError):
    """A re-run is not possible; the text holds the reason."""


class _Alone(TorchDispatchMode):
    """Raises before an operation of ``torch.distributed`` runs."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace.startswith(_OPERATIONS):
            name = func.overloadpacket.__name__.rstrip("_")
            raise RefusedError(f"the forward calls {name} of torch.distributed, which needs all ranks")
        return func(*args, **(kwargs or {}))


def alone() -> contextlib.AbstractContextManager[Any]:
    """Inside, a :class:`RefusedError` is raised in place of everything that would talk to another rank.

    Communication outside of ``torch.distributed`` is not noticed.
    """
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return _Alone()  # type: ignore[no-untyped-call]
    return contextlib.nullcontext()


def why_not_alone(root: nn.Module) -> str:
    """The reason why one process cannot run this model alone, ``""`` where it can."""
    for module in root.modules():
        for kind in type(module).__mro__:
            if kind.__name__ in _WAITING:
                return f"the forward of {type(module).__name__} waits for other ranks"
    if any(hasattr(parameter, "to_local") for parameter in root.parameters()):
        return "the parameters are sharded over ranks"
    if _is_stage(root):
        return "the model is a stage of a pipeline: its inputs come from other ranks"
    return ""


def _is_stage(root: nn.Module) -> bool:
    pipelining = sys.modules.get("torch.distributed.pipelining")
    stage = getattr(pipelining, "PipelineStage", None)
    if stage is None:
        return False
    # A stage knows its module, but not the other way round. The search runs once in a run that uses stages; by type,
    # because reading the class of some objects runs their code.
    return any(issubclass(type(found), stage) and found.submod is root for found in gc.get_objects())
