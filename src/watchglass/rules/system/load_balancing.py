"""LoadBalancing: the GPUs of a machine are used differently."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations
from typing import Any, ClassVar

import numpy as np

from watchglass.config import parameter
from watchglass.records import Finding, in_percent, rounded
from watchglass.rules.gpu_samples import of_used_gpus, unjudged
from watchglass.rules.needs import Needs, Windows
from watchglass.rules.rule import Rule, state
from watchglass.tables import Window

#: Classes of utilisation, each of 10 percent.
_CLASSES = 10


class LoadBalancing(Rule):
    """The GPUs of one machine have different work.

    Looks at: how often the utilisation of each GPU that the run uses was in each tenth from 0 to 100 percent, after the
        first training step.
    Fires when: after `patience` samples, these shares of two GPUs differ by more than `threshold`: half of the sum of
        absolute differences, which is 0 for equal shares and 1 for shares without a common tenth.
    Usual causes: `DataParallel`, which collects outputs on the first GPU; stages of a pipeline of different cost;
        batches of different lengths.
    What to try: `DistributedDataParallel`; stages of equal cost; batches of samples of similar length.
    Costs: nothing in addition to the samples of the machine, which are recorded under a launcher.
    Source: threshold 0.5 on a distance between histograms, and 10 samples: SageMaker Debugger documentation, which
        does not name the distance; house: the total variation distance, 100 samples, only those after the first
        training step, and only GPUs that the run uses.
    """

    needs = (Needs(metrics=("gpu.utilization",), why="to compare GPUs"),)
    streams = Windows(kinds=("samples",), length_s=10)
    calibrations: ClassVar = {"sagemaker": {"threshold": 0.5, "patience": 10}}

    threshold: float = parameter(0.5, help="greatest distance of two GPUs", ge=0, le=1)
    patience: int = parameter(100, help="samples before the first judgement", unit="samples", ge=1)

    #: By stream and GPU: number of samples in each tenth.
    counts: dict[str, dict[str, list[int]]] = state(dict)

    def check_window(self, window: Window) -> Iterable[Finding]:
        """A finding for each machine, about the two GPUs that differ most."""
        if window.last is None:
            return
        series = of_used_gpus(window, "gpu.utilization")
        counts = self.counts.setdefault(window.stream, {})
        for gpu, column in zip(series.instances, series.values.T, strict=True):
            known = np.clip(column[np.isfinite(column)], 0, 100)
            new, _ = np.histogram(known, _CLASSES, (0, 100))
            counts[gpu] = (np.array(counts.get(gpu, [0] * _CLASSES)) + new).tolist()
        ready = {gpu: np.array(each) / sum(each) for gpu, each in counts.items() if sum(each) >= self.patience}
        pairs = [(float(abs(ready[a] - ready[b]).sum() / 2), a, b) for a, b in combinations(ready, 2)]
        if not pairs or max(pairs)[0] <= self.threshold:
            return
        distance, one, other = max(pairs)
        means = [float(ready[gpu] @ (np.arange(_CLASSES) * 10 + 5)) for gpu in (one, other)]
        yield self.finding(
            window,
            subject=window.stream,
            value=distance,
            limit=self.threshold,
            message=f"GPU {one} was used {in_percent(means[0] / 100)} on average and GPU {other} "
            f"{in_percent(means[1] / 100)}, and their use "
            f"differs by {rounded(distance, 2)} of at most 1",
            symptoms=("gpus_differ",),
            evidence={"used_percent": means, "gpus": [one, other]},
        )

    def applicable(self, step: Any) -> str:
        """Not for runs with less than two GPUs on each machine, or with few samples."""
        second = [sorted(map(sum, each.values()))[-2] for each in self.counts.values() if len(each) > 1]
        if not second and any(self.counts.values()):
            return "the run uses one GPU of each machine"
        return unjudged(max(second, default=0), self.patience)
