"""Facts about memory."""

from __future__ import annotations

from dataclasses import dataclass

from watchglass.records.fact import DeclaredFact


@dataclass(frozen=True)
class AllocatorMemory(DeclaredFact):
    """Memory of a GPU that PyTorch's allocator has reserved, what tensors use of it, and retries.

    Attributes:
        device: Number of the GPU.
        reserved, allocated: Bytes that the allocator holds, and bytes of tensors, after the update.
        retries, out_of_memory: Allocations so far that gave all unused memory back and were tried again, and those that
            failed.
    """

    KIND = "allocator"
    FROM = "`torch.cuda.memory_stats`"
    WHEN = "captured steps, where a rule needs it"
    COST = "some microseconds at captured steps on a GPU; nothing without one"

    device: int | None = None
    reserved: int | None = None
    allocated: int | None = None
    retries: int | None = None
    out_of_memory: int | None = None


@dataclass(frozen=True)
class HeldGraphs(DeclaredFact):
    """Graphs of earlier steps that something still holds, and the number of Python's memory blocks.

    Of the graphs of the last captured steps, without the last two.

    Attributes:
        pid: Id of the process.
        graphs, held: Graphs that were marked, at most 16, and how many of them are still held.
        blocks: Memory blocks that Python has allocated, about one for each object.
    """

    KIND = "held_memory"
    FROM = "marks in autograd's graph, `sys.getallocatedblocks`"
    WHEN = "captured steps, where a rule needs it"
    COST = "two microseconds at captured steps, and 0.2 ms for each million of Python's memory blocks"

    pid: int
    graphs: int
    held: int
    blocks: int | None = None
