"""Fact ``rank_gradients``: some elements of a gradient as a rank computes it, and as its optimizer uses it.

The difference is the average over ranks, taken by a wrapper or by the script. With the facts of all ranks a rule sees
whether it was a mean, a sum, or left out.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from watchglass.capture.port import Port
from watchglass.capture.pytorch.events import ForwardCall, Update
from watchglass.capture.pytorch.facts.copies import Copies, some
from watchglass.capture.pytorch.modules.models import Models
from watchglass.capture.pytorch.modules.module_tree import inside, is_compiled, is_wrapper, type_name
from watchglass.capture.pytorch.step.tensor_hooks import observe_accumulated
from watchglass.record import DeferredFact
from watchglass.records import Mode, facts

#: Elements of each of the two samples, and the least that a parameter has to have.
_ELEMENTS, _FEWEST = 16, 4
#: Wrappers that exchange gradients or hold a part of each parameter, by name.
_EXCHANGING = ("DistributedDataParallel", "FullyShardedDataParallel")


class _Wrapped(NamedTuple):
    """How a step calls its model."""

    wrapper: str  #: Class of the wrapper that exchanges gradients, "" without one.
    called: bool  #: Whether the model is called through it.
    synchronised: bool  #: Whether it exchanges gradients, other than inside ``no_sync``.


class _Observed:
    """A parameter whose gradient is observed in one step.

    Args:
        parameter: The parameter.
        wrapped: How its model was first called.
    """

    def __init__(self, parameter: Tensor, wrapped: _Wrapped) -> None:
        self.parameter = weakref.ref(parameter)
        self.wrapped = wrapped
        self.own: Tensor | None = None
        self.remove: Callable[[], None] = lambda: None

    def arrived(self, parameter: Tensor) -> None:
        """A backward has added to the gradient, on any thread; no other rank has seen it yet."""
        with torch.no_grad():
            self.own = some(parameter.grad, _ELEMENTS)


class RankGradients:
    """Observes one gradient of each model at captured steps, where several processes train together."""

    def __init__(self, port: Port, models: Models, leave: ExitStack) -> None:
        self._port = port
        self._models = models
        self._step = -1
        self._observed: dict[int, _Observed] = {}
        leave.callback(self._forget)

    def _forget(self) -> None:
        while self._observed:
            self._observed.popitem()[1].remove()

    def forward_began(self, call: ForwardCall) -> None:
        """A captured forward is about to run."""
        if call.step.mode is not Mode.TRAIN or processes() < 2:
            return
        if call.step.global_step != self._step:
            self._forget()
            self._step = call.step.global_step
        wrapped = self._wrapped(call.root)
        parameter = _last_trainable(call.root)
        if parameter is None:
            return
        known = self._observed.get(id(parameter))
        if known is not None:
            together = known.wrapped
            called, synchronised = together.called or wrapped.called, together.synchronised or wrapped.synchronised
            known.wrapped = _Wrapped(together.wrapper, called, synchronised)
            return
        observed = self._observed[id(parameter)] = _Observed(parameter, wrapped)
        if wrapped.wrapper != "FullyShardedDataParallel" and not is_compiled(call.root):
            observed.remove = observe_accumulated(parameter, self._port.guard, observed.arrived).remove

    def _wrapped(self, root: nn.Module) -> _Wrapped:
        own = [root, *inside(root)] if is_wrapper(root) else []
        # A wrapper that was made before watching began is known where it was given.
        tops = (each for each in self._models.roots() if root in inside(each))
        top = next(tops, None) or self._models.parents.owner(root)
        for module in (*own, top, *inside(top)):
            if type(module).__name__ in _EXCHANGING:
                synchronised = getattr(module, "require_backward_grad_sync", True)
                called = any(module is each for each in own)
                return _Wrapped(type_name(module), called, called and bool(synchronised))
        return _Wrapped("", False, False)

    def update_began(self, update: Update) -> None:
        """The optimizer of a captured step has its gradients."""
        for parameter, name, place in update.parameters:
            observed = self._observed.pop(id(parameter), None)
            if observed is None:
                continue
            observed.remove()
            if observed.parameter() is parameter:
                fact = facts.AveragedGradient(processes(), name, *observed.wrapped, model=place.place.model)
                make = _with_samples(fact, observed.own, some(parameter.grad, _ELEMENTS))
                update.step.records.add_fact(DeferredFact(facts.AveragedGradient, make), "backward and update")


def processes() -> int:
    """Processes that train together by ``torch.distributed``, 1 without it."""
    distributed = torch.distributed
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def _last_trainable(root: nn.Module) -> Tensor | None:
    """The last parameter of a model that can be trained and is whole on this rank: it lies close to the loss."""
    found = None
    for parameter in root.parameters():
        if parameter.requires_grad and parameter.numel() >= _FEWEST and not hasattr(parameter, "to_local"):
            found = parameter
    return found


def _with_samples(
    fact: facts.AveragedGradient, own: Tensor | None, used: Tensor | None
) -> Callable[[], facts.AveragedGradient]:
    """Makes the fact; without samples where one of them could not be read."""
    if own is None or used is None or own.shape != used.shape:
        return lambda: fact
    copies = Copies()
    of_own, of_used = copies.add(own), copies.add(used)
    copies.send()
    return lambda: replace(fact, own=tuple(of_own.received().tolist()), used=tuple(of_used.received().tolist()))
