"""Which arguments of a model are its state and not its input: what it returned before, and gets back.

The hidden state of a recurrent network, the memory of a Transformer-XL and a cache of keys and values are known by
their memory: a script detaches what a model returned and passes it on. A copy of it shows by its place behind tokens,
with the shape of something that the model returned.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from watchglass.capture.pytorch.events import Events, ForwardCall
from watchglass.capture.pytorch.modules.nested_tensors import tensors_in

#: Calls of a model whose results are compared with the arguments of its next call.
_LOOKS = 8


@dataclass
class _Carried:
    """What is known of one model."""

    state: set[str] = field(default_factory=set)  #: Paths of the arguments that are its state.
    looks: int = 0  #: Number of calls whose results have been kept.
    #: The memory of the results of its last call, where that was captured.
    memory: list[weakref.ref[Any]] = field(default_factory=list)
    shapes: set[tuple[torch.Size, torch.dtype]] = field(default_factory=set)  #: Their shapes and dtypes.


class CarriedState:
    """Compares what a model gets with what it has returned, at its first captured calls and the calls after them."""

    def __init__(self) -> None:
        self._known: weakref.WeakKeyDictionary[nn.Module, _Carried] = weakref.WeakKeyDictionary()
        self._listeners: list[Callable[[ForwardCall], None]] = []

    def inputs(self, root: nn.Module, arguments: Any, kwargs: Any, limit: int = 64) -> Iterator[tuple[str, Tensor]]:
        """The tensors that a model gets as its input, each with its path in the arguments; without its state."""
        known = self._known.get(root)
        state = known.state if known is not None else ()
        return islice((each for each in _given(arguments, kwargs) if each[0] not in state), limit)

    def listen(self, events: Events) -> None:
        """Learn from the calls that are captured, before all parts that ask for inputs."""
        self._listeners = events.each_forward_began
        events.add(self)

    def forward_began(self, call: ForwardCall) -> None:
        """A captured forward is about to run."""
        self._look(call)

    def forward_ended(self, call: ForwardCall) -> None:
        """A captured forward has ended: keep what the next call may get back."""
        known = self._known.setdefault(call.root, _Carried())
        if known.looks >= _LOOKS:
            return
        known.looks += 1
        returned = [tensor for _, tensor in tensors_in(call.output)]
        known.shapes = {(tensor.shape, tensor.dtype) for tensor in returned}
        known.memory = [memory for tensor in returned if (memory := _memory(tensor)) is not None]
        if known.memory and self._look not in self._listeners:
            self._listeners.append(self._look)

    def _look(self, call: ForwardCall) -> None:
        known = self._known.get(call.root)
        if known is None or not known.memory:
            return
        returned, known.memory = {id(memory) for each in known.memory if (memory := each()) is not None}, []
        given = list(_given(call.arguments, call.kwargs))
        state = {path for path, tensor in given if id(_storage(tensor)) in returned}
        if given and not _is_number(given[0][1]):
            state |= {path for path, each in given[1:] if _is_number(each) and (each.shape, each.dtype) in known.shapes}
        # A model that gets nothing but what it returned works on that.
        if len(state) < len(given):
            known.state |= state
        if self._look in self._listeners and not any(each.memory for each in self._known.values()):
            self._listeners.remove(self._look)


def _given(arguments: Any, kwargs: Any) -> Iterator[tuple[str, Tensor]]:
    return tensors_in((*arguments, *((kwargs,) if kwargs else ())))


def _is_number(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _storage(tensor: Tensor) -> Any:
    """The object of a tensor's memory, one for all its views while any of them lives; None where it has none."""
    try:
        return tensor.untyped_storage()
    except (RuntimeError, NotImplementedError):
        return None


def _memory(tensor: Tensor) -> weakref.ref[Any] | None:
    memory = _storage(tensor)
    return None if memory is None else weakref.ref(memory)
