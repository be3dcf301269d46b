"""WorkerSeedRepeats: several data workers give the same batches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from watchglass.config import parameter
from watchglass.records import Finding, Mode, facts
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.tables import StepView

#: More hashes of steps than there are hashes of first batches, so that one of another batch is among them.
_MOST = 32


class WorkerSeedRepeats(Rule):
    """Several workers of a data loader give the same batches.

    Looks at: the hashes of the first batches of an epoch, one from each worker of the data loader, and those of other
        captured steps.
    Fires when: batches of different workers are equal while other steps have other inputs. Without those other steps
        the data may simply be constant, and the rule is silent. It cannot see equal augmentations of different samples.
    Usual causes: random numbers of NumPy or of a generator in the data set, whose state each worker copies; an
        iterable data set of which every worker reads all.
    What to try: seed by worker in worker_init_fn, or draw with torch; divide an iterable data set by get_worker_info.
    Costs: a copy of at most 64 KiB of the inputs at captured steps and at the beginning of some epochs.
    Source: exact; documentation of torch.utils.data, "Randomness in multi-process data loading"; house: `min_varied`.
    """

    idle_at_plain_steps = True
    needs = (Needs(facts=("batch",), why="to compare the batches of data workers"),)
    modes = (Mode.TRAIN,)

    min_varied: int = parameter(16, help="fewest sampled elements that differ from the most frequent value", ge=1)

    #: What is equal, until a step with other inputs shows that the data are not constant.
    equal: dict[str, Any] = state(dict)
    other: list[str] = state(list)

    def check(self, view: StepView) -> Iterable[Finding]:
        """A finding at the first step that has other inputs."""
        for batch in view.facts(facts.BatchInputs):
            if batch.varied < self.min_varied:
                continue
            if batch.iterations is not None:
                self.other = list(dict.fromkeys([*self.other, *batch.hashes]))[:_MOST]
            elif batch.workers:
                self._compare(batch, batch.workers)
        if self.equal and any(each not in self.equal["hashes"] for each in self.other):
            yield self._finding(view)

    def _compare(self, batch: facts.BatchInputs, numbers: Sequence[int]) -> None:
        workers: dict[str, set[int]] = {}
        for hashed, worker in zip(batch.hashes, numbers, strict=False):
            workers.setdefault(hashed, set()).add(worker)
        same = {hashed: found for hashed, found in workers.items() if len(found) > 1}
        if not same:
            return
        self.equal = {
            "hashes": sorted(same),
            "workers": len(set(numbers)),
            "alike": sum(map(len, same.values())),
            "loader": str(batch.loader),
            "epoch": batch.iteration,
        }

    def _finding(self, view: StepView) -> Finding:
        equal, self.equal = self.equal, {}
        return self.finding(
            view,
            subject=equal["loader"],
            value=float(equal["alike"]),
            limit=1.0,
            message=f"{equal['alike']} of {equal['workers']} workers of the data loader gave the same first batch in "
            f"epoch {equal['epoch']}",
            symptoms=("workers_alike",),
            evidence={"workers": equal["workers"], "alike": equal["alike"]},
        )
