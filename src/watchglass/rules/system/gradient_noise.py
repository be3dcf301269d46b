"""GradientNoise: how much of the gradient is noise of the batch, and what a larger batch would gain."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from watchglass.config import parameter
from watchglass.records import Finding, Mode, Severity, count, facts, in_percent, rounded
from watchglass.rules import signals
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.stats import median
from watchglass.tables import StepView

#: Sampled steps that are enough at the end of a short run, and standard errors on each side of a figure.
_ENOUGH, _ERRORS = 8, 2.0
#: Upper over lower end up to which the noise scale is a figure, and not only a bound (house).
_CLEAR = 4.0
_WHAT_TO_TRY = (
    "Use a larger batch, up to the noise scale, or accumulate gradients to it; scale the learning rate with it: in "
    "proportion for SGD, by the square root for Adam",
    "Late in training, lower the learning rate instead: it averages the noise",
)


class _Scale(NamedTuple):
    """The noise scale in samples: the figure, and the ends of where it is; infinite where the gradient is all noise."""

    value: float
    low: float
    high: float


class GradientNoise(Rule):
    """The gradient of a batch is mostly noise, or hardly: what a larger batch gains.

    Looks at: gradients of the single samples of a batch, of some weights of linear layers. How much they differ is the
        noise; what their mean is beyond this noise is the signal.
    Fires when: over the last `window` sampled steps, the gradient noise scale is more than `limit` times the samples of
        an update, with two standard errors, and the loss still falls. The noise scale is the variance of the gradient
        of a sample over the square of the true gradient: an update on B samples needs 1 + scale / B times as many steps
        as one without noise. Micro-batches and ranks count. Where the true gradient does not stand out, the finding
        gives a lower bound. At the end of a run whose noise scale is below the samples of an update, the rule says this
        instead. Always `info`, because noise is no fault: late in training it dominates every gradient, since the
        true one vanishes, and a lower learning rate averages it. Noise of dropout counts.
    Usual causes: a batch size for little memory; noisy labels.
    What to try: a larger batch, up to the noise scale, and a learning rate that fits it; gradient accumulation where a
        batch does not fit.
    Costs: the fact gradient_noise, up to 0.1 ms for each of at most eight linear layers at steps 2 to 64 apart.
    Source: noise scale, and steps by batch size: McCandlish et al., An Empirical Model of Large-Batch Training
        (1812.06162), 2.2 and appendix A; house: `limit`, `window`, linear layers alone.
    """

    needs = (
        Needs(facts=("gradient_noise",), why="to compare the samples of a batch"),
        Needs(scalars=("loss",), why="to see whether the loss still falls"),
        Needs(facts=("batch",), optional=True, why="to see whether batches differ"),
    )
    modes = (Mode.TRAIN,)

    limit: float = parameter(4.0, help="noise scale over samples of an update", unit="ratio", gt=1)
    window: int = parameter(32, help="sampled steps that are judged", unit="captures", ge=_ENOUGH, le=1000)

    #: Of each sampled step: its number, noise and signal for a sample, samples of the update.
    rows: list[list[float]] = state(list)
    #: The hashes of the first batch that is known, and whether another step had others.
    first: list[str] = state(list)
    differ: bool = state(bool)
    noisy: bool = state(bool)
    turns: bool = state(bool)

    def check(self, view: StepView) -> Iterable[Finding]:
        """A finding at the first whole window that is noisy."""
        self.turns = self.turns or view.in_turns
        # Recorded where it differs, so a step without it has the batch of the one before.
        if hashes := [each for batch in view.facts(facts.BatchInputs) for each in batch.hashes]:
            self.first = self.first or hashes
            self.differ = self.differ or hashes != self.first
        for fact in view.facts(facts.SampledNoise)[:1]:
            row = [view.mode_step, fact.noise, fact.signal, fact.batch * fact.micro_batches * fact.ranks]
            self.rows = [*self.rows, row][-self.window :]
            if not self.noisy and len(self.rows) == self.window:
                yield from self._noisy(view)

    def finish(self, view: StepView) -> Iterable[Finding]:
        """The judgement of a short run, and whether a larger batch would gain little."""
        if not self.noisy:
            yield from self._noisy(view)
        if not self.noisy:
            yield from self._little(view)

    def applicable(self, view: StepView) -> str:
        """Not without linear layers whose samples show, or with few sampled steps."""
        if self.turns:
            return "models are trained in turns, so gradients of a step may belong to several models"
        if len(self.rows) < _ENOUGH:
            return (
                f"the run has {count(len(self.rows), 'step')} with gradients of the samples of a batch; {_ENOUGH} are "
                "needed, each with a linear layer and two samples"
            )
        return self._same()

    def _same(self) -> str:
        """Why a larger batch means nothing; "" if it does."""
        return "every step that was seen has the same batch" if self.first and not self.differ else ""

    def _scale(self) -> _Scale | None:
        """The noise scale; None where there is nothing to judge."""
        if self.turns or len(self.rows) < _ENOUGH or self._same():
            return None
        _, noises, signals_, _ = np.array(self.rows, np.float64).T
        noise, signal = float(noises.mean()), float(signals_.mean())
        if noise <= 0:
            return None
        error = _ERRORS * float(signals_.std(ddof=1)) / math.sqrt(len(signals_))
        value, low, high = (noise / each if each > 0 else math.inf for each in (signal, signal + error, signal - error))
        return _Scale(value, low, high)

    def _falls(self, view: StepView) -> bool:
        """Whether the loss is lower in the later half of the window, by more than its noise."""
        steps = view.series_steps(signals.loss_name(view) or "loss", Mode.TRAIN)
        losses = signals.losses(view, int(np.count_nonzero(steps >= self.rows[0][0])))
        halves = [half.tolist() for half in np.array_split(losses, 2)]
        if min(map(len, halves)) < _ENOUGH:
            return False
        before, after = map(median, halves)
        errors = (1.5 * median([abs(loss - middle) for loss in half]) / math.sqrt(len(half))
                  for half, middle in zip(halves, (before, after), strict=True))  # fmt: skip
        return before - after > _ERRORS * math.hypot(*errors)

    def _noisy(self, view: StepView) -> Iterable[Finding]:
        scale, samples = self._scale(), self._samples()
        if scale is None or not self.limit * samples <= scale.low < math.inf or not self._falls(view):
            return
        self.noisy = True
        clear = scale.high <= _CLEAR * scale.low
        figure, bound, most = (scale.value, "about", "about") if clear else (scale.low, "at least", "at most")
        yield self._finding(
            view, scale, figure, self.limit, "gradient_mostly_noise",
            f"is mostly noise: its noise scale is {self._size(bound, figure)}; up to about that size a larger batch "
            f"needs nearly proportionally fewer updates, twice the batch {most} "
            f"{in_percent(_updates(figure / samples))} of them",
        )  # fmt: skip

    def _little(self, view: StepView) -> Iterable[Finding]:
        scale, samples = self._scale(), self._samples()
        if scale is None or scale.high > samples:
            return
        yield self._finding(
            view, scale, scale.high, 1.0, "gradient_mostly_signal",
            f"has little noise: its noise scale is {self._size('at most', scale.high)}, so a larger batch needs almost "
            f"as many updates, twice the batch at least {in_percent(_updates(scale.high / samples))} of them",
        )  # fmt: skip

    def _finding(
        self, view: StepView, scale: _Scale, figure: float, limit: float, symptom: str, message: str
    ) -> Finding:
        samples, noisy = self._samples(), symptom == "gradient_mostly_noise"
        return self.finding(
            view,
            severity=Severity.INFO,
            subject=symptom,
            value=figure / samples,
            limit=limit,
            message=f"from step {rounded(self.rows[0][0])} to {rounded(self.rows[-1][0])} the gradient of an update on "
            f"{count(samples, 'sample')} {message}",
            symptoms=(symptom,),
            what_to_try=_WHAT_TO_TRY if noisy else (),
            evidence={
                "noise_scale_between": [None if math.isinf(end) else end for end in (scale.low, scale.high)],
                "batch_size": samples, "sampled_steps": len(self.rows),
                "sampled_between": [self.rows[0][0], self.rows[-1][0]],
                "updates_at_twice": _updates(figure / samples),
                # A scale below the batch is nothing to raise the batch to.
                **({"noise_scale": _round(figure)} if noisy else {}),
            },
        )  # fmt: skip

    def _samples(self) -> int:
        """Samples of an update: the last batch of an epoch may be smaller."""
        return int(median([row[3] for row in self.rows])) if self.rows else 0

    def _size(self, bound: str, figure: float) -> str:
        """``"about 640 samples, 80 times the batch"``."""
        return f"{bound} {count(_round(figure), 'sample')}, {figure / self._samples():.2g} times the batch"


def _round(samples: float) -> int:
    """Two significant digits."""
    return max(1, int(float(f"{samples:.2g}")))


def _updates(scale: float) -> float:
    """What twice the batch needs of the updates, as a ratio, by the noise scale over the batch."""
    return (1 + scale / 2) / (1 + scale)
