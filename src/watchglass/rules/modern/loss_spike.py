"""LossSpike: the loss jumps far above its recent values."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from watchglass.config import parameter
from watchglass.records import Finding, Mode, Severity
from watchglass.rules import levels, signals
from watchglass.rules.modern.spike_batches import batch_words, follow_loader
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.rules.streaks import Streaks
from watchglass.stats import median
from watchglass.tables import StepView


class LossSpike(Rule):
    """The training loss jumps far above its recent values: once, repeatedly, or permanently.

    Looks at: the training loss at every step, against the last `window` losses, and the last `fewest` of these.
    Fires when: the logarithm of the loss lies `deviations` robust deviations above the median of either, and the loss
        at least `jump` times that median. One spike that recovers is an `info`. It is a `warning` if more than
        `in_a_row` steps in a row are spikes, or if `often` spikes begin within `within` steps. A loss that has been
        zero or below is judged by its values instead of their logarithms. The finding gives the hash of the batch at
        captured steps, and reports whether an earlier spike had the same batch. Captured or not, it gives the number of
        the batch in its epoch (with gradient accumulation, those of all batches of the step), and how to fetch it
        again, if the run takes its batches from one data loader of known length. Models that are trained in turns with
        others get an `info` at most.
    Usual causes: bad batches, a learning rate that is too high, second moments of Adam that lag behind the gradient.
    What to try: look at the batches of these steps; clip the gradient norm; lower the learning rate or beta2.
    Costs: nothing in addition to the loss; a copy of at most 64 KiB of the inputs at captured steps.
    Source: a public run monitor (at most 4.5 deviations in six healthy language models, alarm at 8); window and more
        than 4 in a row: KillLossSpike of LLM Foundry, SkipStepOptimizer of OLMo-core; house: `jump`, `often`.
    """

    starts_with = "stage"
    needs = (
        Needs(scalars=("loss",), why="to follow the training loss"),
        Needs(facts=("batch", "data_loader"), optional=True, why="to know the batch of a spike"),
    )

    window: int = parameter(128, help="previous losses with which a loss is compared", unit="steps", ge=16)
    fewest: int = parameter(64, help="previous losses before the rule judges", unit="steps", ge=8)
    deviations: float = parameter(8.0, help="robust deviations above the median", gt=0)
    jump: float = parameter(1.1, help="loss over the median of the window", unit="ratio", gt=1)
    in_a_row: int = parameter(4, help="spikes in a row that count as one spike", unit="steps", ge=1)
    often: int = parameter(5, help="spikes that are too many", ge=2)
    within: int = parameter(1000, help="steps in which they are counted", unit="steps", ge=1)

    recent: list[float] = state(list)
    lowest: float = state(lambda: math.inf)
    #: Losses of the present spike: they join the recent ones when it ends, or when they have become the level.
    spike: list[float] = state(list)
    high: Streaks = state(Streaks)
    #: Steps at which spikes began.
    began: list[int] = state(list)
    #: Steps of the latest spikes, by the hash of their batch.
    batches: dict[str, int] = state(dict)
    #: See :func:`follow_loader`.
    loader: dict[str, Any] = state(dict)

    def check(self, view: StepView) -> Iterable[Finding]:
        """At most one finding at a TRAIN step."""
        follow_loader(view, self.loader)
        loss = signals.loss(view)
        if view.mode is not Mode.TRAIN or loss is None or not math.isfinite(loss):
            return
        self.lowest = min(self.lowest, loss)
        limit = self._limit()
        if self.high.follow(view.mode_step, loss > limit, covers=view.covers):
            if not self.spike:
                self.began = [step for step in self.began if step > view.model_step - self.within]
                self.began.append(view.model_step)
            self.spike.append(loss)
            yield self._finding(view, loss, limit)
        if loss <= limit or len(self.spike) >= self.fewest:
            latest = [] if loss > limit else [loss]
            self.recent = [*self.recent, *self.spike, *latest][-self.window :]
            self.spike = []

    def _limit(self) -> float:
        """The largest loss that is no spike."""
        if len(self.recent) < self.fewest:
            return math.inf
        # While a loss falls, its fall is most of the spread of the whole window.
        windows = {len(self.recent), self.fewest}
        return min(levels.highest(self.recent[-steps:], self.lowest, self.deviations, self.jump) for steps in windows)

    def _finding(self, view: StepView, loss: float, limit: float) -> Finding:
        usual = median(self.recent)
        lasts = self.high.times() > self.in_a_row
        repeated = len(self.began) >= self.often
        lasted, within = self.high.times(), view.model_step - self.began[0] + 1
        words = f"the loss jumped to {loss:.3g} at step {view.mode_step}, after {usual:.3g} in the median of the "
        words += f"{len(self.recent)} losses before"
        if lasts:
            words += f"; it has stayed there for {lasted} steps"
        elif repeated:
            words += f"; {len(self.began)} such spikes began within {within} steps"
        words += batch_words(view, self.batches, self.loader)
        serious = (lasts or repeated) and not view.in_turns
        return self.finding(
            view,
            severity=Severity.WARNING if serious else Severity.INFO,
            subject="loss",
            tensors=[signals.loss_name(view) or "loss"],
            value=loss,
            limit=limit,
            message=words,
            symptoms=("loss_spikes",) if serious else (),
            evidence={
                "usual": usual,
                "spikes": len(self.began),
                "lasted": lasted,
                "within": within,
                **signals.evidence(view),
            },
            since=self.high.since(),
        )
