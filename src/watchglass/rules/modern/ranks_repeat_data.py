"""RanksRepeatData: ranks that train one model have the same batches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from watchglass.config import parameter
from watchglass.records import Finding, Mode, Role, facts
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.tables import JointStep

#: Hashes of steps that are remembered, to see whether the data ever change.
_MOST = 16


class RanksRepeatData(Rule):
    """Ranks that train one model have the same batches, so additional ranks add no data.

    Looks at: the hash of each rank's batch at steps that all ranks capture, and whether ranks hold the same weights.
    Fires when: at `patience` such steps with different batches all ranks had the same one, and they never had different
        ones. The rule is silent if ranks hold parts of the model: tensor and pipeline parallelism need equal batches.
    Usual causes: a data loader without DistributedSampler; batches that all ranks draw with the same seed.
    What to try: give the loader a DistributedSampler, or divide the samples by rank.
    Costs: a copy of at most 64 KiB of the inputs at captured steps, which is recorded by default.
    Source: exact; documentation of torch.utils.data.distributed.DistributedSampler; house: `patience`, `min_varied`.
    """

    idle_at_plain_steps = True
    needs = (
        Needs(facts=("batch",), why="to compare the batches of ranks"),
        Needs(role=Role.WEIGHT, statistics=("l2",), why="to know that ranks train one model"),
    )

    patience: int = parameter(3, help="steps with different batches that all ranks share", unit="steps", ge=2)
    min_varied: int = parameter(16, help="fewest sampled elements that differ from the most frequent value", ge=1)

    #: Hashes of batches that all ranks had.
    shared: list[str] = state(list)
    compared: int = state(int)
    #: Whether ranks had different batches once, or hold different weights.
    differ: bool = state(bool)

    def check_step(self, step: JointStep) -> Iterable[Finding]:
        """At most one finding at a step."""
        if step.mode is not Mode.TRAIN or len(step.views) < 2 or self.differ:
            return
        hashes = [self._hashes(view.facts(facts.BatchInputs)) for view in step.views]
        if not all(hashes):
            return
        self.compared += 1
        if any(each != hashes[0] for each in hashes) or self._weights_differ(step):
            self.differ = True
            return
        key = ",".join(hashes[0])
        if key not in self.shared:
            self.shared = [*self.shared, key][-_MOST:]
        if len(self.shared) >= self.patience:
            ranks = len(step.views)
            yield self.finding(
                step,
                subject="batches",
                value=float(ranks),
                limit=1.0,
                message=f"all {ranks} ranks trained on the same batch at each of {self.compared} compared steps, while "
                "batches of different steps differ",
                symptoms=("ranks_alike",),
                evidence={"ranks": ranks, "steps": self.compared},
            )

    def _hashes(self, batches: Sequence[facts.BatchInputs]) -> list[str]:
        """The hashes of the batches of a step; empty where they are not known or say too little."""
        found = [batch for batch in batches if batch.iterations is not None]
        if any(batch.varied < self.min_varied for batch in found):
            return []
        return [hashed for batch in found for hashed in batch.hashes]

    def _weights_differ(self, step: JointStep) -> bool:
        norms = []
        for view in step.views:
            rows = view.statistics(Role.WEIGHT)
            if any(info.placement not in ("local", "replicated") for info in rows.tensors):
                return True
            norms.append(dict(zip(rows.names, rows.l2.tolist(), strict=True)))
        return any(each != norms[0] for each in norms)

    def applicable(self, step: JointStep) -> str:
        """A reason where there is nothing to compare."""
        if len(step.views) < 2:
            return "the run has one rank"
        return "" if self.compared else "no batch was captured on all ranks"
