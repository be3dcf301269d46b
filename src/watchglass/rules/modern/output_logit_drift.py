"""OutputLogitDrift: the normaliser of the output softmax drifts."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from watchglass.config import parameter
from watchglass.records import Finding, Mode, Severity
from watchglass.rules import signals
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.stats import median
from watchglass.tables import StepView


class OutputLogitDrift(Rule):
    """The logits of the output drift: log Z, the logarithm of the softmax's normaliser, moves far from its start.

    Looks at: the mean of log Z over the samples of a batch, at captured steps.
    Fires when: its median over the last `window` captures is more than `drift` from that of the first ones, and the
        last capture is further from the start than the middle one: `warning`. A quarter of that is an `info`. A softmax
        does not change when all logits move together, so nothing but rounding notices the drift: at 64, neighbouring
        numbers of bfloat16 are 0.5 apart.
    Usual causes: a learning rate that is too high, an output layer without weight decay, no z-loss.
    What to try: add a z-loss, 1e-4 times the mean of the squared log Z; weight decay on the output layer.
    Costs: a log-sum-exp of at most 1,048,576 logits at captured steps.
    Source: z-loss: PaLM (2204.02311), 5; OLMo 2 (2501.00656); house: `drift`, `window`.
    """

    starts_with = "stage"
    needs = (
        Needs(collection="logsumexp", statistics=("mean",), optional=True, why="to see the normaliser of the softmax"),
        Needs(scalars=("loss",), optional=True, why="to report the loss"),
    )
    modes = (Mode.TRAIN,)

    drift: float = parameter(64.0, help="distance from the start, in nats", unit="nats", gt=0)
    window: int = parameter(8, help="captures for each median", unit="captures", ge=2)

    #: The first and the latest means, by name.
    first: dict[str, list[float]] = state(dict)
    latest: dict[str, list[float]] = state(dict)

    def check(self, view: StepView) -> Iterable[Finding]:
        """A finding for each loss function whose logits drift."""
        rows = view.statistics(collection="logsumexp", name_regex=r"^logsumexp")
        for name, mean in zip(rows.names, rows.mean.tolist(), strict=True):
            if not np.isfinite(mean):
                continue
            first = self.first.setdefault(name, [])
            signals.remember_start(first, mean, self.window)
            self.latest[name] = latest = [*self.latest.get(name, [])[1 - self.window :], mean]
            start, now = median(first), median(latest)
            moving = abs(latest[-1] - start) > abs(latest[len(latest) // 2] - start)
            if len(latest) == self.window and moving and abs(now - start) > self.drift / 4:
                yield self._finding(view, name, start, now)

    def applicable(self, view: StepView) -> str:
        """Not where no loss function gets logits."""
        return "" if self.first else "no loss function that applies a softmax was captured outside of compiled code"

    def _finding(self, view: StepView, name: str, start: float, now: float) -> Finding:
        far = abs(now - start) > self.drift
        return self.finding(
            view,
            severity=Severity.WARNING if far else Severity.INFO,
            tensors=[name],
            value=now,
            limit=start + (self.drift if now > start else -self.drift),
            message=f"log Z of the output softmax is {now:.3g} in the median of the last {self.window} captures up to "
            f"step {view.mode_step}, after {start:.3g} at the start, and still drifts",
            symptoms=("logits_drift",) if far else (),
            evidence={"at_start": start, **signals.evidence(view)},
        )
