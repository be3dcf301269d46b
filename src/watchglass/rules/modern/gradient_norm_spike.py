"""GradientNormSpike: the norm of the gradient jumps far above its recent values."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from watchglass.config import parameter
from watchglass.records import Finding, Mode, Severity, facts, rounded
from watchglass.rules import levels, signals
from watchglass.rules.modern.spike_batches import batch_words, follow_loader
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.stats import median
from watchglass.tables import StepView

#: Smallest spread of norms, as a share of their mean: that of very quiet ones would make every step a spike.
_QUIET = 0.05
#: Norms from which on a mean and a variance say something.
_FEWEST = 32


class GradientNormSpike(Rule):
    """Single steps have a gradient far larger than those before.

    Looks at: the total norm of the gradient before any clipping, as often as it is recorded.
    Fires when: the norm lies `z` standard deviations above its moving mean: `info`. The mean and the variance move by 1
        - `alpha` with each norm; a spike counts with the value of the limit. It is a `warning` if nothing clips the
        gradient and at least `often` of the last `within` norms lie `deviations` robust deviations above the median of
        their logarithms. The finding gives the hash of the batch at captured steps, and reports whether an earlier
        spike had the same batch. Captured or not, it gives the number of the batch in its epoch if the run takes its
        batches from one data loader of known length.
    Usual causes: bad batches, a learning rate that is too high, second moments of Adam that lag behind the gradient.
    What to try: clip the gradient norm near its usual value; look at the batches of these steps; lower beta2.
    Costs: nothing beyond the gradient norm; a copy of at most 64 KiB of the inputs at captured steps.
    Source: z of 2.5 at alpha 0.97: ZClip (2504.02507); 8 deviations: a public run monitor; house: `often`, `within`.
    """

    starts_with = "stage"
    needs = (
        Needs(scalars=("gradient_norm",), why="to follow the norm of the gradient"),
        Needs(scalars=("gradient_norm_before_clip",), optional=True, why="to know the norm before clipping"),
        Needs(facts=("batch", "data_loader"), optional=True, why="to know the batch of a spike"),
        Needs(facts=("clip",), optional=True, why="to know whether anything clips it"),
    )

    z: float = parameter(2.5, help="standard deviations above the moving mean", gt=0)
    alpha: float = parameter(0.97, help="weight of the earlier norms in the moving mean", unit="ratio", gt=0, lt=1)
    deviations: float = parameter(8.0, help="robust deviations of the log norm from its median", gt=0)
    often: int = parameter(5, help="large spikes that are too many", ge=1)
    within: int = parameter(256, help="norms among which they are counted", ge=_FEWEST)

    #: Logarithms of the latest norms.
    recent: list[float] = state(list)
    mean: float = state(float)
    variance: float = state(float)
    #: Steps of the latest spikes, by the hash of their batch.
    batches: dict[str, int] = state(dict)
    #: See :func:`follow_loader`.
    loader: dict[str, Any] = state(dict)

    def check(self, view: StepView) -> Iterable[Finding]:
        """At most one finding at a TRAIN step."""
        follow_loader(view, self.loader)
        norm = view.scalar("gradient_norm_before_clip")
        norm = view.scalar("gradient_norm") if norm is None else norm
        if view.mode is not Mode.TRAIN or signals.skipped(view) or norm is None or not 0 < norm < math.inf:
            return
        limit = self.mean + self.z * self._spread() if len(self.recent) >= _FEWEST else math.inf
        if norm > limit:
            yield self._finding(view, norm, limit)
        self._move(min(norm, limit))
        self.recent = [*self.recent[1 - self.within :], math.log(norm)]

    def _spread(self) -> float:
        return max(math.sqrt(self.variance), _QUIET * self.mean)

    def _move(self, norm: float) -> None:
        apart = norm - self.mean
        # The first norms count alike, so that the very first one is soon forgotten.
        share = max(1 - self.alpha, 1 / (len(self.recent) + 1))
        self.mean += share * apart
        self.variance = (1 - share) * (self.variance + share * apart * apart)

    def _finding(self, view: StepView, norm: float, limit: float) -> Finding:
        logs = np.asarray([*self.recent, math.log(norm)])
        spread = max(levels.spread(logs.tolist()), _QUIET)
        large = int(np.count_nonzero(logs > median(logs.tolist()) + self.deviations * spread))
        serious = large >= self.often and view.latest_fact(facts.Clip) is None
        words = f"the norm of the gradient jumped to {norm:.3g} at step {view.mode_step}, "
        deviations = (norm - self.mean) / self._spread()
        words += f"{rounded(deviations, 1)} standard deviations above its mean of "
        words += f"{self.mean:.3g}"
        if serious:
            words += f"; {large} of the last {len(logs)} norms were such spikes, and nothing clips them"
        words += batch_words(view, self.batches, self.loader)
        return self.finding(
            view,
            severity=Severity.WARNING if serious else Severity.INFO,
            subject="gradient",
            tensors=["gradient_norm"],
            value=norm,
            limit=limit,
            message=words,
            symptoms=("gradient_spikes",) if serious else (),
            evidence={
                "gradient_norm": self.mean,
                "standard_deviations": deviations,
                "spikes": large,
                "norms": len(logs),
                **signals.evidence(view),
            },
        )
