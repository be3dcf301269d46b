"""Extremes of all inputs and outputs of modules, in the order of the calls.

Numbers, not tensors: nothing is kept alive, and on a device nothing is waited for.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from watchglass.capture.facts.first_bad import Call, Seen
from watchglass.capture.guard import Guard, harmless
from watchglass.capture.module_places import Place
from watchglass.capture.pytorch.first_bad.extremes import look_at
from watchglass.capture.pytorch.first_bad.forward_replay import RefusedError
from watchglass.capture.pytorch.modules.module_hooks import observe_calls
from watchglass.capture.pytorch.modules.nested_tensors import tensors_in
from watchglass.capture.pytorch.saving.reduce import version_of
from watchglass.capture.pytorch.step.tensor_hooks import observe_gradient


class Trace:
    """Reads the tensors of the module calls that are reported to it.

    Args:
        place_of: Finds a module's place; modules without one are passed over.
        kwargs: Keyword arguments of the outermost call, which hooks do not get.
        most_bytes: Most bytes of tensors that may be alive at a time, None for no bound.
        graph: Whether autograd keeps all of them alive until the end.
        gradients: The guard under which the gradients of these tensors are examined too; None for not at all.
    """

    def __init__(
        self,
        place_of: Callable[[nn.Module], Place | None],
        kwargs: Any = None,
        *,
        most_bytes: int | None = None,
        graph: bool = False,
        gradients: Guard | None = None,
    ) -> None:
        self.seen = Seen()
        #: Most bytes that were alive at a time.
        self.peak_bytes = 0
        self._place_of = place_of
        self._kwargs = kwargs
        self._most_bytes = most_bytes
        self._graph = graph
        self._backward = gradients
        self._open: list[tuple[weakref.ref[nn.Module], int]] = []
        self._known: dict[tuple[int, int], tuple[weakref.ref[Tensor], int]] = {}
        self._held: dict[int, int] = {}
        self._bytes = 0
        self._handles: list[Any] = []

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Look at all module calls inside."""
        undo = observe_calls(self.entered, self.returned)
        try:
            yield
        finally:
            undo()

    def close(self) -> None:
        """Stop reading gradients: leaves would keep their hooks."""
        while self._handles:
            self._handles.pop().remove()

    def entered(self, module: nn.Module, arguments: Any) -> None:
        """A module is about to run. Its inputs are read now: they may be overwritten later."""
        place = self._place_of(module)
        if place is None:
            return
        call = Call(place, self._open[-1][1] if self._open else -1)
        index = len(self.seen.calls)
        self.seen.calls.append(call)
        self._open.append((weakref.ref(module), index))
        outermost = call.parent < 0
        call.inputs = self._look((arguments, self._kwargs) if outermost else arguments, ours=not outermost)
        if outermost:
            call.inputs = [(tensor, path[2:]) for tensor, path in call.inputs]
        self.seen.events.append((index, False))

    def returned(self, module: nn.Module, arguments: Any, output: Any) -> None:
        """A module has returned."""
        # Calls inside it that are still open were left by an exception that it caught.
        for depth in range(len(self._open) - 1, -1, -1):
            if self._open[depth][0]() is module:
                index = self._open[depth][1]
                del self._open[depth:]
                self.seen.calls[index].outputs = self._look(output)
                self.seen.events.append((index, True))
                return

    def _look(self, value: Any, *, ours: bool = True) -> list[tuple[int, str]]:
        found = []
        for path, tensor in tensors_in(value):
            if tensor.is_floating_point() or tensor.is_complex():
                index = self._index(tensor, ours)
                if index is not None:
                    found.append((index, path))
        return found

    def _index(self, tensor: Tensor, ours: bool) -> int | None:
        key = (id(tensor), version_of(tensor))
        known = self._known.get(key)
        if known is not None and known[0]() is tensor:
            return known[1]
        look = look_at(tensor)
        if look is None:
            return None
        if self._most_bytes is not None:
            self._hold(tensor, ours)
        index = len(self.seen.looks)
        self.seen.looks.append(look)
        self._known[key] = (weakref.ref(tensor), index)
        if self._backward is not None and tensor.requires_grad:
            self._handles.append(observe_gradient(tensor, self._backward, functools.partial(self._gradient, index)))
        return index

    def _gradient(self, index: int, gradient: Tensor | None) -> None:
        look = None if gradient is None else look_at(gradient)
        if look is not None:
            self.seen.gradients.append((index, look))

    def _hold(self, tensor: Tensor, ours: bool) -> None:
        """Count the memory of a tensor that was made in a re-run, as far as nothing else was found in it."""
        storage = tensor.untyped_storage()
        key = storage.data_ptr()
        if key in self._held:
            return
        self._held[key] = size = storage.nbytes() if ours else 0
        self._bytes += size
        self.peak_bytes = max(self.peak_bytes, self._bytes)
        if self._most_bytes is not None and self._bytes > self._most_bytes:
            raise RefusedError("a re-run would take more than capture_memory_bytes")
        if not self._graph:
            weakref.finalize(tensor, harmless(self._release), key).atexit = False

    def _release(self, key: int) -> None:
        self._bytes -= self._held.pop(key, 0)
