"""Running a forward a second time, from its recorded state, without an effect on the run."""

from __future__ import annotations

import contextlib
import gc
import math
import operator
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from watchglass.capture.pytorch.modules.module_tree import is_compiled, unwrap
from watchglass.capture.pytorch.modules.nested_tensors import leaves_in, tensors_in
from watchglass.capture.pytorch.step.forward_state import PLAIN, ForwardState, versions
from watchglass.capture.pytorch.step.random_state import restored
from watchglass.records import COMPILED_MODEL

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


_REPEATABLE = (Tensor, *PLAIN)


def refusal(state: ForwardState, free_bytes: int) -> str:
    """The reason why this forward cannot be repeated in the given bytes, ``""`` when it can."""
    if state.kwargs is None:
        return "the first call of a model is seen without its keyword arguments"
    if not all(isinstance(leaf, _REPEATABLE) for _, leaf in leaves_in((state.arguments, state.kwargs))):
        return "the forward takes arguments that cannot be given twice"
    if is_compiled(state.root) or any(isinstance(part, torch.jit.ScriptModule) for part in state.root.modules()):
        return COMPILED_MODEL
    reason = why_not_alone(state.root)
    if reason:
        return reason
    if not unchanged(state):
        return "an input was changed after the forward"
    return "a re-run would take more than capture_memory_bytes" if free_bytes < 0 else ""


def unchanged(state: ForwardState) -> bool:
    """Whether the tensors that the forward was given are as they were."""
    return state.versions is not None and versions(state.arguments, state.kwargs) == state.versions


def repeat(state: ForwardState, *, graph: bool) -> dict[str, Tensor]:
    """Run the forward again and return its outputs by path.

    The caller has suspended our hooks. When this returns, parameters, buffers, attributes of modules and random states
    are unchanged.

    Args:
        state: The forward.
        graph: Whether a backward is to run through the outputs; else autograd keeps nothing of it alive.

    Raises:
        RefusedError: The forward would have talked to other ranks.
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
    """The proof that a re-run repeated the forward: ``"outputs"``, ``"loss"``, or ``""``; None if it did not.

    Args:
        state: The forward.
        outputs: The outputs of the re-run.
        loss: The result of :func:`loss_of` for them.
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
    """Restore plain attributes that a forward writes, such as counters, and the elements of lists."""
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
