"""The one way in which a hook of ours gets onto a tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils.hooks import RemovableHandle

from watchglass.capture.guard import Guard


class TensorHook:
    """Is shown the gradient that a backward sends to a tensor; the gradient passes unchanged.

    Autograd may call it on any of its threads. It passes None for an output that the loss does not use, where one node
    made several outputs (``chunk``, ``unbind``, a compiled model that returns logits and loss).
    """

    #: Tells PyTorch that nothing is lost when a tensor with this hook is saved.
    __torch_unserializable__ = True

    def __init__(self, guard: Guard, arrived: Callable[[Tensor | None], None]) -> None:
        self._arrived = guard.shielded(arrived)

    def __call__(self, gradient: Any) -> None:
        """A backward reached the tensor."""
        self._arrived(gradient)


def hear_gradient(tensor: Tensor, guard: Guard, arrived: Callable[[Tensor | None], None]) -> RemovableHandle:
    """Call ``arrived`` with each gradient of this tensor, None for one that is not used, until the handle is removed.

    Args:
        tensor: Requires a gradient.
        guard: Keeps faults of ``arrived`` from autograd.
        arrived: Called on any thread, also by ``torch.autograd.grad``.
    """
    handle: RemovableHandle = tensor.register_hook(TensorHook(guard, arrived))
    return handle
