"""UpdateBelowPrecision: updates are lost in the rounding of the weights."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from watchglass.config import parameter
from watchglass.records import Finding, Mode, in_percent
from watchglass.rules import signals
from watchglass.rules.modern.sampled_updates import SampledUpdates, middle, sampled_updates
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.rules.streaks import Streaks
from watchglass.tables import StepView

_HALF = ("bfloat16", "float16")


class UpdateBelowPrecision(Rule):
    """Updates are smaller than the distance between neighbouring numbers in the dtype of the weights.

    Looks at: sampled elements of weights that have a gradient: how many of them an update leaves unchanged, bit by bit,
        and how many are still the same as in the sample before (8 to 64 updates ago).
    Fires when: in `patience` samples in a row, both shares are above `share` for most layers, since the start or while
        the loss has fallen by less than half. For weights in bfloat16 or float16, `share_half` and most of these
        elements are enough; and fewer samples, if the loss has fallen by less than a quarter at the end. Stochastic
        rounding, sums in float32 and compensated sums move such weights over several updates; the rule does not report
        them. It also skips resumed runs, and learning rates that are zero, warm up or have decayed.
    Usual causes: weights in bfloat16 or float16 without a copy in float32; a learning rate that is far too small.
    What to try: keep the weights in float32 and compute under autocast, or raise the learning rate.
    Costs: the fact update_sample, 0.05 ms for each of at most 32 parameters at steps 8 to 64 apart.
    Source: exact; Micikevicius et al., Mixed Precision Training, ICLR 2018, 3.1; house: `share`, `share_half`,
        `patience`.
    """

    needs = (
        Needs(facts=("update_sample",), why="to see which elements of weights an update changes"),
        Needs(scalars=("loss",), optional=True, why="to distinguish lost updates from convergence"),
        Needs(facts=("step_skipped",), optional=True, why="to omit skipped updates"),
    )
    modes = (Mode.TRAIN,)

    share: float = parameter(0.8, help="share of elements that an update does not change", unit="ratio", gt=0, le=1)
    share_half: float = parameter(0.75, help="the same in bfloat16 or float16", unit="ratio", gt=0, le=1)
    patience: int = parameter(3, help="samples in a row", unit="samples", ge=2)

    start: list[float] = state(list)
    #: Samples in a row with lost updates, and samples in which updates arrived.
    lost: Streaks = state(Streaks)
    arrived: int = state(int)
    #: What the last sample with lost updates says.
    last: dict[str, Any] = state(dict)

    def check(self, view: StepView) -> Iterable[Finding]:
        """At most one finding at a TRAIN step with a sample."""
        signals.remember_start(self.start, signals.loss(view))
        if signals.skipped(view) or signals.warming_up(view):
            return
        for sample in sampled_updates(view):
            yield from self._judge(view, sample)

    def _judge(self, view: StepView, sample: SampledUpdates) -> Iterable[Finding]:
        moves = sample.setting("lr") != 0
        unchanged, unmoved = middle(sample["unchanged"][moves]), middle(sample["unmoved"][moves])
        half = [dtype for dtype in sample.dtypes if dtype in _HALF]
        dtype = half[0] if 2 * len(half) >= len(sample.dtypes) else sample.dtypes[0]
        known = np.isfinite(unmoved)
        if not known and dtype not in _HALF:
            return
        least = self.share_half if dtype in _HALF else self.share
        # Rounding at random leaves an element as it is with the same chance in each step.
        as_still = max(0.5, (unchanged + unchanged**sample.since) / 2) if dtype in _HALF else self.share
        lost = unchanged >= least and not unmoved < as_still
        if known:
            self.lost.follow(view.mode_step, lost)
            self.arrived += not lost
        worst = np.argsort(-np.nan_to_num(sample["unchanged"]))[:8].tolist()
        steps = f", and {in_percent(unmoved)} did not change in {sample.since} steps" if known else ""
        ratio = middle(sample.ratio())
        self.last = {} if not lost else {
            "tensors": [sample.names[row] for row in worst],
            "value": unchanged,
            "limit": least,
            "message": f"{in_percent(unchanged)} of the elements of a weight do not change with an update{steps}, "
            f"although they have a gradient: at step {view.mode_step} the update is {ratio:.2g} times the weight, "
            f"below the precision of {dtype}",
            "dtype": dtype, "update_ratio": ratio, **({"unmoved": unmoved, "steps": sample.since} if known else {}),
        }  # fmt: skip
        settled = signals.decayed(view) or signals.resumed(view)
        learned = self.arrived and signals.progress(self.start, signals.losses(view, 32)) >= 0.5
        if self.lost.times() >= self.patience and not settled and not learned:
            yield self._lost(view)

    def finish(self, view: StepView) -> Iterable[Finding]:
        """The judgement of a run in half precision with few samples, by its loss."""
        few = self.last and self.last["dtype"] in _HALF and self.lost.times() < self.patience and not self.arrived
        if few and not signals.decayed(view) and not signals.resumed(view):
            losses = signals.losses(view, 32)
            if len(losses) and len(self.start) > 4 and signals.progress(self.start, losses) < 0.25:
                yield self._lost(view)

    def _lost(self, view: StepView) -> Finding:
        last = self.last
        stated = ("update_ratio", "dtype", "unmoved", "steps")
        evidence: dict[str, Any] = {name: last[name] for name in stated if name in last}
        return self.finding(
            view,
            subject="precision",
            tensors=last["tensors"],
            value=last["value"],
            limit=last["limit"],
            message=last["message"],
            symptoms=(("update_lost_in_half_precision",) if last["dtype"] in _HALF else ("update_lost_in_rounding",)),
            evidence={**signals.evidence(view), **evidence},
            since=self.lost.since(),
        )
