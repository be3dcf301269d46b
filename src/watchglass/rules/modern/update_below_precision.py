"""UpdateBelowPrecision: updates are lost in the rounding of the weights."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from watchglass.config import parameter
from watchglass.records import Finding, Mode, Severity
from watchglass.rules import signals
from watchglass.rules.modern.sampled_updates import SampledUpdates, middle, sampled_updates
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.tables import StepView

_HALF = ("bfloat16", "float16")


class UpdateBelowPrecision(Rule):
    """Updates are smaller than the distance between neighbouring numbers in the dtype of the weights.

    Looks at: sampled elements of weights that have a gradient: how many of them an update leaves as they are, bit by
        bit, and how many are still the same as in the sample before (8 to 64 updates ago).
    Fires when: in `patience` samples in a row, both shares are above `share` for most layers, since the start or while
        the loss has fallen by less than half. Rounding at random, sums in float32 and compensated sums move such
        weights over several updates and are not reported. Nor are a learning rate that is zero, warms up or has
        decayed, and resumed runs.
    Usual causes: weights in bfloat16 or float16 without a copy in float32; a learning rate that is far too small.
    What to try: keep the weights in float32 and compute under autocast, or raise the learning rate.
    Costs: the fact update_sample, 0.05 ms for each of at most 32 parameters at steps 8 to 64 apart.
    Source: exact; Micikevicius et al., Mixed Precision Training, ICLR 2018, 3.1; house: `share`, `patience`.
    """

    default = True
    needs = (
        Needs(facts=("update_sample",), why="to see which elements of weights an update changes"),
        Needs(scalars=("loss",), optional=True, why="to tell lost updates from convergence"),
        Needs(facts=("step_skipped",), optional=True, why="to omit skipped updates"),
    )

    share: float = parameter(0.8, help="share of elements that an update does not change", unit="ratio", gt=0, le=1)
    patience: int = parameter(3, help="samples in a row", unit="samples", ge=2)

    start: list[float] = state(list)
    #: Samples in a row with lost updates, and samples in which updates arrived.
    lost: int = state(int)
    arrived: int = state(int)

    def check(self, view: StepView) -> Iterable[Finding]:
        """At most one finding at a TRAIN step with a sample."""
        if view.mode is not Mode.TRAIN:
            return
        signals.remember_start(self.start, signals.loss(view))
        if signals.skipped(view) or signals.warming_up(view):
            return
        for sample in sampled_updates(view):
            yield from self._judge(view, sample)

    def _judge(self, view: StepView, sample: SampledUpdates) -> Iterable[Finding]:
        moves = sample.setting("lr") != 0
        unchanged, unmoved = sample["unchanged"][moves], sample["unmoved"][moves]
        if not np.isfinite(unmoved).any():
            return
        lost = middle(unchanged) >= self.share and middle(unmoved) >= self.share
        self.lost = self.lost + 1 if lost else 0
        self.arrived += not lost
        settled = signals.decayed(view) or signals.resumed(view)
        learned = self.arrived and signals.progress(self.start, signals.losses(view, 32)) >= 0.5
        if self.lost < self.patience or settled or learned:
            return
        half = [dtype for dtype in sample.dtypes if dtype in _HALF]
        dtype = half[0] if 2 * len(half) >= len(sample.dtypes) else sample.dtypes[0]
        worst = np.argsort(-np.nan_to_num(sample["unchanged"]))[:8].tolist()
        value = middle(unchanged)
        yield self.finding(
            view,
            severity=Severity.WARNING,
            subject="precision",
            tensors=[sample.names[row] for row in worst],
            value=value,
            limit=self.share,
            message=f"{100 * value:.0f} % of the elements of a weight do not change with an update, and "
            f"{100 * middle(unmoved):.0f} % did not change in {sample.since} steps, although they have a gradient: at "
            f"step {view.mode_step} the update is {middle(sample.ratio()):.2g} times the weight, below the precision "
            f"of {dtype}",
            symptoms=("update_lost_in_half_precision",) if dtype in _HALF else ("update_lost_in_rounding",),
            evidence={**signals.evidence(view), "update_ratio": middle(sample.ratio()), "dtype": dtype},
        )
