"""Updates that compiled code makes: the hooks of an optimizer whose step is compiled are compiled with it.

There they call a custom operator, which finds the optimizer by its parameters and notifies the hook's callback. The
operator takes parameters and gradients only so that the compiler keeps it in its place.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from watchglass.capture.guard import harmless
from watchglass.capture.pytorch.compiled.graphs import captured
from watchglass.capture.pytorch.modules.module_tree import parameters_of
from watchglass.capture.pytorch.updates.update_counters import living_optimizers

_numbers = itertools.count()
_all: weakref.WeakValueDictionary[int, CompiledUpdates] = weakref.WeakValueDictionary()

_library = torch.library.Library("watchglass", "FRAGMENT")
# ``number`` is declared as changed, so that the compiler leaves no call out and keeps their order; it is not.
_library.define(
    "update(Tensor[] parameters, Tensor[] gradients, bool ended, Tensor(a!) number) -> ()",
    # A CUDA graph would be replayed without it. Not in every version of PyTorch.
    tags=[torch.Tag.cudagraph_unsafe] if hasattr(torch.Tag, "cudagraph_unsafe") else [],
)


def _update(parameters: Sequence[Tensor], gradients: Sequence[Tensor], ended: bool, number: Tensor) -> None:
    updates = _all.get(int(number))
    if updates is not None and parameters and not captured():
        updates.reported(parameters, ended)


_library.impl("update", harmless(_update), "CompositeExplicitAutograd")
torch.library.register_fake(
    "watchglass::update", harmless(lambda parameters, gradients, ended, number: None), lib=_library
)


class CompiledUpdates:
    """Reports updates that compiled code makes.

    Args:
        before: Called with an optimizer, its arguments and keyword arguments as it is about to step.
        after: The same when it has stepped.
        hidden: Called between these where the new values are not yet in the memory of the parameters.
    """

    def __init__(self, before: Callable[..., Any], after: Callable[..., Any], hidden: Callable[[], None]) -> None:
        self._before = before
        self._after = after
        self._hidden = hidden
        self._known: dict[int, weakref.ref[Optimizer]] = {}
        self._stepping: Optimizer | None = None
        number = next(_numbers)
        self._number = torch.tensor(number, device="cpu")
        _all[number] = self

    def traced(self, optimizer: Optimizer, ended: bool) -> None:
        """A hook's part in compiled code."""
        every = parameters_of(optimizer)
        gradients = [parameter.grad.detach() for parameter in every if parameter.grad is not None]
        parameters = [parameter.detach() for parameter in every]
        torch.ops.watchglass.update(parameters, gradients, ended, self._number)

    def reported(self, parameters: Sequence[Tensor], ended: bool) -> None:
        """The operator has been reached."""
        optimizer = self._stepping if ended else self._optimizer(parameters[0].data_ptr())
        self._stepping = None if ended else optimizer
        if optimizer is None:
            return
        # The keyword marks the call: other calls of the optimizer need less care.
        if not ended:
            self._before(optimizer, (optimizer,), {"closure": None})
            return
        own = parameters_of(optimizer)
        if any(given.data_ptr() != parameter.data_ptr() for given, parameter in zip(parameters, own, strict=True)):
            self._hidden()
        self._after(optimizer, (optimizer,), {"closure": None})

    def _optimizer(self, address: int) -> Optimizer | None:
        known = self._known.get(address)
        optimizer = known() if known is not None else None
        if optimizer is None or next(iter(parameters_of(optimizer))).data_ptr() != address:
            # Only compiled code holds it for certain. Once for each.
            living = (each for each in living_optimizers() if parameters_of(each)[0].data_ptr() == address)
            optimizer = next(living, None)
            if optimizer is not None:
                self._known[address] = weakref.ref(optimizer)
        return optimizer
