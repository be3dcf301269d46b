"""Fact ``allocator``: how much memory of a GPU PyTorch's allocator holds, and how much of it tensors use."""

from __future__ import annotations

import torch

from watchglass.capture.pytorch.events import Update
from watchglass.records import facts

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
