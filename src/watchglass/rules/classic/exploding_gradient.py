"""ExplodingGradient: the gradient grows far beyond its earlier size."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from watchglass.config import parameter
from watchglass.records import Finding, Mode, Role, rounded
from watchglass.rules import learning_rates, levels, signals
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.rules.streaks import Streaks
from watchglass.stats import median
from watchglass.tables import StepView

_WINDOW = 64


class ExplodingGradient(Rule):
    """The norm of the gradient grows far beyond its earlier size while the loss rises.

    Looks at: the total gradient norm (or the norms of all captured gradients), and the loss.
    Fires when: the norm is more than `growth` times the median of the first steps in two captures in a row, and the
        loss is more than twice its start. One capture is enough if the norm is beyond ten times that limit and the loss
        beyond ten times its start. Or the norm lies `deviations` robust deviations above the median of the last 64 in
        at least three of five captures, and the loss has doubled. Or the norm exceeds `absolute`. If no loss is known,
        the norm must be ten thousand times that of the start in three captures in a row. A loss that has been zero or
        below must rise by more than eight spreads of its earlier values instead. Growth of the norm alone is no fault:
        gradients grow while a run leaves a plateau and its loss falls, and small batches have single spikes. The
        severity is `warning`, because the consequences (non-finite values, a diverged loss) are reported as errors. For
        a model that is trained in turns with others, only the last 64 norms count, because its targets may grow.
    Usual causes: a learning rate that is too high, weights initialised too large, a bad batch.
    What to try: lower the learning rate, warm it up, clip the gradient norm.
    Costs: statistics of gradients, which are read in one pass at captured steps.
    Source: growth of 70: AutoTrainer (ICSE 2021); 8 deviations: a public run monitor that saw at most 4.5 on healthy
        runs; house: the condition on the loss.
    """

    starts_with = "stage"
    needs = (
        Needs(role=Role.GRADIENT, statistics=("l2",), why="to follow the norm of the gradient"),
        Needs(scalars=("loss",), optional=True, why="to distinguish growth from trouble"),
        Needs(facts=("step_skipped",), optional=True, why="to omit skipped updates"),
        Needs(facts=("clip",), optional=True, why="to know whether anything clips it"),
    )

    growth: float = parameter(70.0, help="norm over that of the first steps", unit="ratio", gt=1)
    deviations: float = parameter(8.0, help="robust deviations of the log norm from its median", gt=0)
    absolute: float = parameter(1e12, help="norm that is too large in any run", gt=0)

    start: list[float] = state(list)
    start_loss: list[float] = state(list)
    recent: list[float] = state(list)
    recent_loss: list[float] = state(list)
    grows: Streaks = state(Streaks)
    flags: list[bool] = state(list)

    def check(self, view: StepView) -> Iterable[Finding]:
        """A finding while the gradient explodes."""
        if view.mode is not Mode.TRAIN or signals.skipped(view):
            return
        norm, loss = _total_norm(view), signals.loss(view)
        if loss is not None and math.isfinite(loss):
            self.recent_loss = [*self.recent_loss[-(_WINDOW - 1) :], loss]
        if norm is None or not math.isfinite(norm) or norm <= 0:
            signals.remember_start(self.start_loss, loss, 3)
            return
        growth = norm / levels.level(self.start, lowest=min(self.start)) if self.start else 1.0
        rise = self._loss_rise()
        # The targets of a model that learns from another one (a student, a critic) have no scale before that has one.
        early = None if view.in_turns else self._early(view, norm, growth, rise)
        finding = early or self._late(view, norm) or self._absolute(view, norm)
        signals.remember_start(self.start, norm, 3)
        signals.remember_start(self.start_loss, loss, 3)
        self.recent = [*self.recent[-(_WINDOW - 1) :], math.log10(norm)]
        if finding is not None:
            yield finding

    applicable = staticmethod(signals.without_layers)

    def _loss_rise(self) -> levels.Rise | None:
        """How far the latest loss is above the first ones; None without losses to compare."""
        if not self.recent_loss or not self.start_loss:
            return None
        lowest = min(*self.recent_loss, *self.start_loss)
        return levels.rise(self.start_loss, self.recent_loss[-1], lowest=lowest, before=self.recent_loss[:-5])

    def _early(self, view: StepView, norm: float, growth: float, rise: levels.Rise | None) -> Finding | None:
        """Growth since the start, while the loss is far above its start: a diverging run."""
        if rise is None:
            grows = growth > 1e4
        else:
            grows = growth > self.growth and rise.exceeds(2, levels.CERTAIN)
        times = self.grows.follow(view.mode_step, grows)
        sudden = rise is not None and growth > 10 * self.growth and rise.exceeds(10, 10 * levels.CERTAIN)
        if not grows or (times < (3 if rise is None else 2) and not sudden):
            return None
        loss = f", and the loss is {rise.now:.3g}, {rise.words}" if rise is not None else ""
        return self._finding(
            view, norm, norm / growth * self.growth,
            f"the gradient norm has grown {growth:.3g}-fold since the start, to {norm:.3g} at step {view.mode_step}"
            + loss,
            "gradient_growth", {"growth": growth, **(rise.evidence if rise is not None else {})}, self.grows.since(),
        )  # fmt: skip

    def _late(self, view: StepView, norm: float) -> Finding | None:
        """Far outside the recent norms, several times, while the loss is far above the recent losses."""
        if len(self.recent) < 32 or len(self.recent_loss) < 32 or not self.start_loss:
            return None
        middle = median(self.recent)
        excess, deviations, spread = math.log10(norm) - middle, 0.0, 0.0
        if excess > 1.0:
            # 1.4826 x MAD estimates the standard deviation; the floor keeps a very quiet history from making noise
            # loud.
            spread = max(1.4826 * median([abs(log - middle) for log in self.recent]), 0.05)
            deviations = excess / spread
        self.flags = [*self.flags[-4:], deviations > self.deviations]
        if sum(self.flags) < 3 or not self.flags[-1]:
            return None
        usual, now = median(self.recent_loss), median(self.recent_loss[-5:])
        if not self._loss_rose(usual, now):
            return None
        return self._finding(
            view, norm, 10 ** (middle + self.deviations * spread),
            f"the gradient norm jumped to {norm:.3g} at step {view.mode_step}, {rounded(deviations, 1)} robust "
            f"deviations "
            f"above the median of {10**middle:.3g}, and the loss rose with it, from {usual:.3g} to {now:.3g} in the "
            "median",
            "gradient_growth",
            {"deviations": deviations, "usual": 10**middle, "loss_before": usual, "loss": now},
        )  # fmt: skip

    def _loss_rose(self, usual: float, now: float) -> bool:
        """Whether the latest losses are far above the recent ones, and not almost zero."""
        if min(self.recent_loss) > 0:
            start = levels.level(self.start_loss, lowest=min(self.start_loss))
            return now >= 2 * usual and now >= 0.25 * start
        unit = levels.spread(self.recent_loss)
        return unit > 0 and now - usual >= levels.CERTAIN * unit

    def _absolute(self, view: StepView, norm: float) -> Finding | None:
        if norm < self.absolute:
            return None
        message = f"the gradient norm is {norm:.3g} at step {view.mode_step}"
        return self._finding(view, norm, self.absolute, message, "gradient_huge", {})

    def _finding(
        self, view: StepView, norm: float, limit: float, message: str, symptom: str, measured: dict[str, float],
        since: int | None = None,
    ) -> Finding:  # fmt: skip
        gradients = view.statistics(Role.GRADIENT)
        order = np.argsort(-gradients.l2)[:3].tolist()
        recurs = signals.unclipped_recurrence(view, [gradients.tensors[i].module for i in order])
        jump = learning_rates.jump(view)
        return self.finding(
            view, subject="gradient", tensors=[gradients.names[i] for i in order],
            value=norm, limit=limit, message=jump.then(message) if jump else message,
            symptoms=(symptom, *(["recurrent_gradient"] if recurs else []), *(["rate_jumped"] if jump else [])),
            evidence={**signals.evidence(view), **measured, **(jump.evidence if jump else {})}, since=since,
        )  # fmt: skip


def _total_norm(view: StepView) -> float | None:
    """Euclidean norm over all gradients: as recorded at every step, else from the captured gradients."""
    norm = view.scalar("gradient_norm")
    if norm is not None:
        return norm
    gradients = view.statistics(Role.GRADIENT)
    return float(np.sqrt(np.sum(gradients.l2**2))) if len(gradients) else None
