"""The ways to put a hook on a tensor."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.utils.hooks import RemovableHandle, unserializable_hook

from watchglass.capture.guard import Guard


def observe_gradient(tensor: Tensor, guard: Guard, arrived: Callable[[Tensor | None], None]) -> RemovableHandle:
    """Call ``arrived`` with each gradient of this tensor, which passes unchanged, until the handle is removed.

    Autograd passes None for an output that the loss does not use, where one node made several outputs (``chunk``,
    ``unbind``, a compiled model that returns logits and loss).

    Args:
        tensor: Requires a gradient.
        guard: Keeps faults of ``arrived`` from autograd.
        arrived: Called on any thread, also by ``torch.autograd.grad``; returns nothing.
    """
    return hook_gradient(tensor, guard.shielded(arrived))


def hook_gradient(tensor: Tensor, shielded: Callable[..., None]) -> RemovableHandle:
    """The same for a function that the guard has wrapped: callers with many tensors wrap it once."""
    # A view that was changed through another one gets its node when it is asked for it. In register_hook, PyTorch up to
    # 2.14 asks too late, and the process crashes: https://github.com/pytorch/pytorch/issues/196459.
    _ = tensor.grad_fn
    # Nothing is lost when a tensor with this hook is saved, and PyTorch is not to warn of it.
    handle: RemovableHandle = tensor.register_hook(unserializable_hook(shielded))
    return handle


def observe_accumulated(parameter: Tensor, guard: Guard, arrived: Callable[[Tensor], None]) -> RemovableHandle:
    """Call ``arrived`` with a parameter each time a backward has added to its gradient, until the handle is removed.

    Copies and saved files of a parameter do not have such a hook.

    Args:
        parameter: A leaf that requires a gradient.
        guard: Keeps faults of ``arrived`` from autograd.
        arrived: Called on any thread; returns nothing.
    """
    handle: RemovableHandle = parameter.register_post_accumulate_grad_hook(guard.shielded(arrived))
    return handle
