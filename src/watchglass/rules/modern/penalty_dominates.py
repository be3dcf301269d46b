"""PenaltyDominates: weight decay, or a penalty in the loss, outweighs the gradient of the data."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from watchglass.config import parameter
from watchglass.records import Finding, Mode, Role, facts, rounded
from watchglass.rules import signals
from watchglass.rules.graph.terms import terms_of
from watchglass.rules.modern.sampled_updates import SampledUpdates, middle, sampled_updates, share
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.tables import StepView

#: Relative difference of two losses that is no penalty.
_ROUNDING = 1e-3
#: Share of a weight that decoupled decay takes at each step, from which on it keeps too few updates to learn.
_FORGETS = 0.01


class PenaltyDominates(Rule):
    """Updates pull the weights to zero instead of following the data.

    Looks at: the cosine between sampled updates (or gradients) and weights, decay against gradient, the size of the
        weights against their start, and the result of the loss function without penalty where it is recorded.
    Fires when: for most layers the update points from the weight to zero (cosine below `-towards`), or a penalty makes
        nearly all of the gradient, or decay that is decoupled from it (AdamW) takes more than a hundredth of a weight
        at each step, in `patience` samples of the first half of those taken; most layers have shrunk
        below `shrunk` of their start; and the loss without penalty has fallen by less than `learned`. The rule does not
        report weights that shrink while the loss falls, decay of a converged model, or decay that exceeds the gradient
        only late in the run, when the gradient has become small.
    Usual causes: a weight decay that is orders of magnitude too large, a penalty that is summed over all weights.
    What to try: divide the weight decay, or the factor of the penalty, by 10 or more.
    Costs: the fact update_sample, 0.05 ms for each of at most 32 parameters at steps 8 to 64 apart.
    Source: TheDeepChecker (shrinking weights); house: all limits.
    """

    starts_with = "stage"
    needs = (
        Needs(facts=("update_sample",), why="to compare updates with weights"),
        Needs(scalars=("loss",), why="to see whether the run learns"),
        Needs(facts=("loss_graph",), optional=True, why="to see penalties in the loss"),
    )
    modes = (Mode.TRAIN,)

    towards: float = parameter(0.6, help="cosine of update and weight, negated", unit="ratio", gt=0, le=1)
    outweighs: float = parameter(2.0, help="decay over gradient above which it dominates", unit="ratio", gt=0)
    patience: int = parameter(2, help="samples in which it dominates", unit="samples", ge=1)
    shrunk: float = parameter(0.7, help="size of weights over that at the start", unit="ratio", gt=0, lt=1)
    learned: float = parameter(0.5, help="fall of the loss that shows learning", unit="ratio", gt=0, lt=1)

    #: First values of the loss without penalty, and its latest ones.
    start: list[float] = state(list)
    recent: list[float] = state(list)
    followed: str = state(str)
    #: Samples, those in which a penalty dominates, sizes of weights in the first sample by name.
    samples: int = state(int)
    dominated: int = state(int)
    sizes: dict[str, float] = state(dict)
    #: Median cosine and decay of the latest sample in which it dominates.
    cosine: float = state(float)
    decay: float = state(float)
    #: Of the latest sample: the weights that are pulled most, the sizes of all over those at the start, weight decay.
    names: list[str] = state(list)
    left: list[float] = state(list)
    factor: float = state(float)

    def check(self, view: StepView) -> Iterable[Finding]:
        """At most one finding at a TRAIN step with a sample."""
        self._follow(view)
        samples = sampled_updates(view) if not signals.skipped(view) else []
        for sample in samples:
            self._take(sample)
        if samples:
            yield from self._judge(view)

    def finish(self, view: StepView) -> Iterable[Finding]:
        """The last judgement."""
        yield from self._judge(view)

    def _follow(self, view: StepView) -> None:
        """Remember the loss without penalty: what the only loss function gave, else the loss."""
        made = [name for name in view.scalars(Role.LOSS) if name.startswith("loss/")]
        if len(made) > 1 or (not made and self.followed not in ("", "loss")):
            return
        name = made[0] if made else "loss"
        if name != self.followed:
            if made and self.followed not in ("", "loss"):
                return
            self.followed, self.start, self.recent = name, [], []
        value = view.scalar(name)
        if value is not None and np.isfinite(value):
            signals.remember_start(self.start, value)
            self.recent = [*self.recent[-7:], value]

    def _take(self, sample: SampledUpdates) -> None:
        self.samples += 1
        for name, size in zip(sample.names, sample["weight"].tolist(), strict=True):
            if size > 0:
                self.sizes.setdefault(name, size)
        cosine, decay, pull = sample["cosine_weight"], sample["decay"], sample["gradient_weight"]
        known = np.isfinite(cosine)
        with np.errstate(invalid="ignore"):
            dominates = (cosine < -self.towards) | (decay > self.outweighs) | ((pull > 0.9) & (cosine < 0))
            decoupled = np.array([each.decoupled for each in sample.settings])
            dominates |= decoupled & (sample.setting("lr") * sample.setting("weight_decay") > _FORGETS)
        if known.any() and share(dominates, known) > 0.5:
            self.dominated += 1
            self.cosine, self.decay = middle(cosine), middle(decay)
        self.names = [sample.names[row] for row in np.argsort(np.nan_to_num(cosine))[:8].tolist()]
        sizes = zip(sample.names, sample["weight"].tolist(), strict=True)
        self.left = [size / self.sizes[name] for name, size in sizes if name in self.sizes]
        self.factor = float(np.nanmax([0.0, *sample.setting("weight_decay")]))

    def _judge(self, view: StepView) -> Iterable[Finding]:
        if self.dominated < self.patience or 2 * self.dominated < min(self.samples, 8) or not self.left:
            return
        left = float(np.median(self.left))
        if left >= self.shrunk or signals.resumed(view) or self._learns() or not self._penalized(view):
            return
        # Momentum carries updates beyond zero.
        ways = [f"cosine {rounded(self.cosine, 2)} in the median of the layers"] if self.cosine < 0 else []
        outweighs = self.decay > self.outweighs
        ways += [f"the decay is {self.decay:.3g} times the gradient"] if self.decay > 1 else []
        how = f" ({', and '.join(ways)})" if ways else ""
        what = self.followed.removeprefix("loss/") or "loss"
        yield self.finding(
            view,
            subject="penalty",
            tensors=self.names,
            value=left,
            limit=self.shrunk,
            message=f"updates pull the weights to zero{how}: they have shrunk to {100 * left:.2g} % of their size by "
            f"step {view.mode_step}, and {what} is {np.median(self.recent):.3g} after {np.median(self.start):.3g} at "
            "the start",
            symptoms=("weights_pulled_to_zero", *(("decay_outweighs_gradient",) if outweighs else ())),
            evidence={
                **signals.evidence(view),
                "weight_decay": self.factor,
                "loss": float(np.median(self.recent)),
                "first_loss": float(np.median(self.start)),
            },
        )

    def _penalized(self, view: StepView) -> bool:
        """Whether the optimizer decays the weights, or the loss has a part that is not of the data."""
        if self.factor > 0 or self.decay > 0:
            return True
        graph = view.latest_fact(facts.TermsOfLoss)
        if graph is not None and not all(term.of_data for term in terms_of(graph)):
            return True
        whole, data = view.scalar("loss"), view.scalar(self.followed)
        return whole is not None and data is not None and abs(whole - data) > _ROUNDING * abs(whole)

    def _learns(self) -> bool:
        if not self.start or not self.recent:
            return True
        return signals.progress(self.start, np.array(self.recent)) >= self.learned
