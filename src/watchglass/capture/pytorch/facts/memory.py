"""Facts ``allocator`` and ``held_memory``: memory of a GPU, graphs of earlier steps that something still holds.

Autograd frees the graph of a step when the script lets go of its results. A mark in the metadata of one of its nodes
lives as long as the node does, so a weak reference to the mark shows whether the graph is held.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections import deque
from typing import Any

import torch

from watchglass.capture.pytorch.events import ForwardCall, Update
from watchglass.capture.pytorch.modules.nested_tensors import tensors_in
from watchglass.records import Mode, facts

#: Of ``torch.cuda.memory_stats``, by our names: numbers of the host, which wait for no device.
_NUMBERS = {
    "reserved": "reserved_bytes.all.current", "allocated": "allocated_bytes.all.current",
    "retries": "num_alloc_retries", "out_of_memory": "num_ooms",
}  # fmt: skip


class Allocator:
    """Notes the numbers of the present device at captured steps, once the script has begun to use it."""

    def __init__(self) -> None:
        self._step = -1

    def update_ended(self, update: Update) -> None:
        """The optimizer has stepped: what is held now, outlives the step."""
        step = update.step.global_step
        if step == self._step or not torch.cuda.is_initialized():
            return
        self._step = step
        device = torch.cuda.current_device()
        stats = torch.cuda.memory_stats(device)
        numbers = {name: int(stats[key]) for name, key in _NUMBERS.items() if key in stats}
        update.step.records.add_fact(facts.AllocatorMemory(device, **numbers), "torch.cuda")


#: Captured steps whose graphs are looked for, and tensors of an output among which one has a graph.
_MOST_STEPS, _MOST_TENSORS = 16, 4
#: Script variables hold the results of a step until those of the next one replace them.
_YOUNG = 2
_KEY = "watchglass.held_memory"


class _Mark:
    __slots__ = ("__weakref__",)


class HeldMemory:
    """Marks the graphs of captured steps, and counts those that are held some steps later."""

    def __init__(self) -> None:
        self._marks: deque[tuple[int, weakref.ref[_Mark]]] = deque(maxlen=_MOST_STEPS + _YOUNG)
        self._step = -1

    def forward_ended(self, call: ForwardCall) -> None:
        """The captured forward has ended: mark the graph of its output, once in a step."""
        step = call.step.global_step
        if call.step.mode is not Mode.TRAIN or (self._marks and self._marks[-1][0] == step):
            return
        for _, tensor in tensors_in(call.output, _MOST_TENSORS):
            node: Any = tensor.grad_fn
            if node is not None:
                mark = _Mark()
                node.metadata[_KEY] = mark
                self._marks.append((step, weakref.ref(mark)))
                return

    def update_ended(self, update: Update) -> None:
        """The optimizer has stepped: look which graphs are held."""
        step = update.step.global_step
        if step == self._step:
            return
        self._step = step
        earlier = [mark() is not None for _, mark in list(self._marks)[:-_YOUNG]]
        fact = facts.HeldGraphs(os.getpid(), len(earlier), sum(earlier), sys.getallocatedblocks())
        update.step.records.add_fact(fact, "autograd")
