"""TooManyDataWorkers: more loader processes than cores."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from watchglass.config import parameter
from watchglass.records import Finding, facts
from watchglass.rules.needs import Needs, Windows
from watchglass.rules.rule import Rule, state
from watchglass.tables import JointStep


class TooManyDataWorkers(Rule):
    """The data loaders of a run have more worker processes than there are cores.

    Looks at: the number of workers of the largest data loader of each rank, and the cores that the run may use. Limits
        of containers and affinities count.
    Fires when: the workers of all ranks of the machine are more than `max_threshold` percent of the cores; or, if there
        are any, fewer than `min_threshold` percent. With ranks on several machines nothing is judged.
    Usual causes: a number of workers from a machine with more cores; the same number for each of several ranks; a
        container with few cores on a large machine.
    What to try: as many workers for all ranks together as there are cores, or fewer; measure with half of them.
    Costs: nothing in addition to the samples of the machine, which are recorded under a launcher.
    Source: 200 and 70 percent, the rule Dataloader of SageMaker Debugger's configuration package (calibration
        `sagemaker`); 100 percent: the warning of PyTorch's DataLoader.
    """

    needs = (
        Needs(facts=("data_loader",), why="to see the number of workers"),
        Needs(metrics=("cpu.limit",), why="to see the number of cores"),
    )
    streams = Windows(kinds=("samples",), length_s=1)
    calibrations: ClassVar = {"sagemaker": {"max_threshold": 200.0, "min_threshold": 70.0}}

    max_threshold: float = parameter(100.0, help="most workers, relative to the cores", unit="%", gt=0)
    min_threshold: float = parameter(0.0, help="fewest workers, relative to the cores", unit="%", ge=0)

    #: By rank: the number of workers of its largest loader. By stream: the cores of the machine.
    workers: dict[str, int] = state(dict)
    cores: dict[str, float] = state(dict)

    def check_step(self, step: JointStep) -> Iterable[Finding]:
        """A finding once the loaders and the cores are known."""
        before = dict(self.workers), len(self.cores)
        for view in step.views:
            for loader in view.facts(facts.LoaderSettings):
                if loader.num_workers is not None:
                    self.workers[view.worker] = max(loader.num_workers, self.workers.get(view.worker, 0))
        for window in step.streams:
            if window.stream not in self.cores and len(values := window.samples("cpu.limit").mean_of_instances):
                self.cores[window.stream] = float(values[-1])
        if (self.workers, len(self.cores)) != before and len(self.cores) == 1 and self.workers:
            yield from self._judged(step, sum(self.workers.values()), *self.cores.values())

    def applicable(self, step: JointStep) -> str:
        """Not for ranks on several machines, or where the cores are not known before the last step."""
        if len(self.cores) > 1:
            return "the run has several machines, and which rank is on which is not known"
        return "" if self.cores else "no step came after the first sample of the number of cores"

    def _judged(self, step: JointStep, workers: int, cores: float) -> Iterable[Finding]:
        percent = 100 * workers / cores
        few = 0 < percent < self.min_threshold
        if percent <= self.max_threshold and not few:
            return
        ranks = f"{len(self.workers)} ranks have " if len(self.workers) > 1 else ""
        yield self.finding(
            step,
            subject="few" if few else "many",
            value=percent,
            limit=self.min_threshold if few else self.max_threshold,
            message=f"{ranks}{workers} loader worker{'s' * (workers != 1)} on {cores:g} core{'s' * (cores != 1)}",
            symptoms=("few_loader_workers" if few else "many_loader_workers",),
            of_model=False,
            evidence={"workers": workers, "cores": cores},
        )
