"""MemoryFragmentation: a GPU's memory is held in pieces that do not fit what is needed."""

from __future__ import annotations

from collections.abc import Iterable

from watchglass.config import parameter
from watchglass.records import Finding, count, facts, in_percent, rounded
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.tables import StepView


class MemoryFragmentation(Rule):
    """PyTorch holds much memory of a GPU that no tensor uses, and yet has to ask for it again.

    Looks at: the numbers of PyTorch's allocator for the GPU that the process uses: bytes that it has reserved, bytes of
        tensors, and how often an allocation failed at first, so that all unused pieces were given back and it was tried
        again (retries). Each retry waits for the device.
    Fires when: at the last `window` captured steps at least `percent` percent of the reserved bytes were in no tensor,
        and retries rose by `retries` or more over them.
    Usual causes: batches or sequences of ever new sizes; a model that nearly fills the memory.
    What to try: `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`; batches padded to a few sizes; a smaller batch.
    Costs: the fact allocator: some microseconds at captured steps, without waiting for the device.
    Source: PyTorch documentation: CUDA semantics, memory management; house: 30 percent, 8 captured steps, one retry.
    """

    needs = (Needs(facts=("allocator",), why="to see what is reserved and what is used"),)

    percent: float = parameter(30.0, help="reserved memory that no tensor uses", unit="%", gt=0, lt=100)
    retries: int = parameter(1, help="retries over the window", ge=1)
    window: int = parameter(8, help="captured steps", unit="captures", ge=2)

    #: Steps with numbers; of the last ones reserved and allocated bytes, and retries so far.
    seen: int = state(int)
    last: list[list[int]] = state(list)

    def check(self, view: StepView) -> Iterable[Finding]:
        """A finding at a captured step."""
        for fact in view.facts(facts.AllocatorMemory):
            numbers = [each for each in (fact.reserved, fact.allocated, fact.retries) if each is not None]
            if len(numbers) == 3:
                self.seen += 1
                self.last = [*self.last[1 - self.window :], numbers]
                yield from self._judged(view, fact.device)

    def applicable(self, view: StepView) -> str:
        """Not for runs that are too short."""
        few = f"the run has {count(self.seen, 'captured step')} on a GPU; {self.window} are needed"
        return few if self.seen < self.window else ""

    def _judged(self, view: StepView, device: object) -> Iterable[Finding]:
        unused = [100 * (1 - allocated / reserved) for reserved, allocated, _ in self.last if reserved > 0]
        more = self.last[-1][2] - self.last[0][2]
        if len(unused) < self.window or min(unused) < self.percent or more < self.retries:
            return
        reserved, allocated, _ = self.last[-1]
        yield self.finding(
            view,
            subject=f"device {device}",
            value=unused[-1],
            limit=self.percent,
            message=f"PyTorch holds {rounded(reserved / 1e9, 2)} GB of GPU {device}, of which tensors use "
            f"{rounded(allocated / 1e9, 2)} GB; {in_percent(unused[-1] / 100)} is in pieces that do not fit: "
            f"{count(more, 'allocation')} "
            f"had to give all of them back and wait over the last {self.window} captured steps",
            symptoms=("gpu_memory_in_pieces",),
            of_model=False,
            evidence={
                "reserved_bytes": reserved,
                "allocated_bytes": allocated,
                "unused_bytes": reserved - allocated,
                "retries": more,
            },
        )
