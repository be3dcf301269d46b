"""AdamEpsilonDominates: epsilon determines the size of an adaptive optimizer's updates, or has no effect at all."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from watchglass.config import parameter
from watchglass.records import Finding, Mode, Role, Severity, in_percent
from watchglass.rules import signals
from watchglass.rules.modern.sampled_updates import SampledUpdates, middle, sampled_updates, share
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.rules.streaks import Streaks
from watchglass.tables import StepView

#: An epsilon up to this size is a usual one, which dominates only where the gradient has all but vanished.
_USUAL = 1e-6
#: The default of PyTorch is 1e-8, and that of Keras 1e-7.
_DEFAULT = 1e-7
#: Smallest number above zero that float16 knows; smaller ones become zero.
_LEAST = {"float16": 2.0**-24, "bfloat16": 2.0**-133, "float32": 2.0**-149, "float64": 0.0}


class AdamEpsilonDominates(Rule):
    """Epsilon outweighs the root of the second moment, or is too small to prevent a division by zero.

    Looks at: sampled second moments against epsilon, for elements that have one; non-finite weights and losses.
    Fires when: for most layers more than `share` of the elements have a root of the second moment below an epsilon
        above 1e-6, in `patience` samples in a row. This is a `warning` where updates are below `small` times the
        weights and the loss has fallen by less than half, else `info`. Or epsilon is zero in the dtype of the weights
        while second moments are zero: weights or the loss then become NaN, or updates are not finite: `error`.
    Usual causes: an epsilon of the size of the gradients; epsilon 0, or 1e-8 with weights in float16.
    What to try: epsilon 1e-8 (1e-4 with float16), or a higher learning rate for a large epsilon.
    Costs: the fact update_sample, 0.05 ms for each of at most 32 parameters at steps 8 to 64 apart.
    Source: Kingma and Ba, Adam, 2015; house: `share`, `small`, `patience`, severities.
    """

    needs = (
        Needs(facts=("update_sample",), why="to compare second moments with epsilon"),
        Needs(scalars=("loss",), optional=True, why="to see whether the run learns"),
        Needs(role=Role.WEIGHT, statistics=("nonfinite",), optional=True, why="to see a division by zero"),
    )
    modes = (Mode.TRAIN,)

    share: float = parameter(0.5, help="share of elements below epsilon", unit="ratio", gt=0, le=1)
    patience: int = parameter(3, help="samples in a row", unit="samples", ge=1)
    small: float = parameter(1e-3, help="update over weight below which little is learned", unit="ratio", gt=0)

    start: list[float] = state(list)
    #: ``"dominated"`` samples, and those of them with ``"slow"`` updates.
    samples: Streaks = state(Streaks)
    #: Epsilon that is nothing in the dtype of the weights beside second moments of zero; its dtype.
    nothing: float | None = state(lambda: None)
    dtype: str = state(str)
    broken: bool = state(bool)

    def check(self, view: StepView) -> Iterable[Finding]:
        """At most one finding at a TRAIN step."""
        loss = signals.loss(view)
        signals.remember_start(self.start, loss)
        for sample in sampled_updates(view) if not signals.skipped(view) else ():
            self._guards(sample)
            yield from self._dominates(view, sample)
        if self.nothing is None or self.broken:
            return
        bad = (loss is not None and not math.isfinite(loss)) or bool(np.any(view.statistics(Role.WEIGHT).nonfinite > 0))
        if bad or any(self._bursts(sample) for sample in sampled_updates(view)):
            self.broken = True
            as_is = f" is 0 in {self.dtype}" if self.nothing else ""
            yield self.finding(
                view,
                severity=Severity.ERROR,
                subject="division",
                value=self.nothing,
                limit=_LEAST.get(self.dtype, 0.0),
                message=f"epsilon {self.nothing:g}{as_is} and some second moments are 0: their updates are 0 / 0 at "
                f"step {view.mode_step}",
                symptoms=("epsilon_is_nothing",),
                evidence={
                    **signals.evidence(view),
                    **({"lost_epsilon": self.nothing, "dtype": self.dtype} if self.nothing else {}),
                },
            )

    def _guards(self, sample: SampledUpdates) -> None:
        for eps, dtype, zero in zip(
            sample.setting("eps").tolist(), sample.dtypes, sample["zero_moment"].tolist(), strict=True
        ):
            if eps == eps and eps <= _LEAST.get(dtype, 0.0) / 2 and zero > 0:
                self.nothing, self.dtype = eps, dtype

    def _bursts(self, sample: SampledUpdates) -> bool:
        """Whether updates are not finite although gradients are."""
        return bool(np.any(~np.isfinite(sample["update"]) & np.isfinite(sample["gradient"])))

    def _dominates(self, view: StepView, sample: SampledUpdates) -> Iterable[Finding]:
        below, eps = sample["below_epsilon"], sample.setting("eps")
        known = np.isfinite(below)
        now = known.any() and share((below > self.share) & (eps > _USUAL), known) > 0.5
        dominated = self.samples.follow(view.mode_step, now, "dominated")
        ratio = middle(sample.ratio())
        slowed = self.samples.follow(view.mode_step, now and ratio < self.small, "slow")
        if dominated < self.patience:
            return
        slow = slowed >= self.patience and not (signals.warming_up(view) or signals.decayed(view))
        learns = signals.progress(self.start, signals.losses(view, 32)) >= 0.5
        worst = np.argsort(-np.nan_to_num(below))[:8].tolist()
        yield self.finding(
            view,
            severity=Severity.WARNING if slow and not learns else Severity.INFO,
            subject="epsilon",
            tensors=[sample.names[row] for row in worst],
            value=middle(below),
            limit=self.share,
            message=f"epsilon {middle(eps):g} is above the root of the second moment for {in_percent(middle(below))} "
            f"of the elements: updates are {ratio:.2g} times the weights at step {view.mode_step}",
            symptoms=("epsilon_above_second_moment",),
            evidence={
                **signals.evidence(view),
                "update_ratio": ratio,
                "epsilon": middle(eps),
                **({"large_epsilon": middle(eps)} if middle(eps) > _DEFAULT else {}),
            },
            since=self.samples.since("dominated"),
        )
