"""A rule for language models that is not built in; README.md uses it."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from watchglass import Finding, Mode, Needs, Role, Rule, Severity
from watchglass.rules import parameter, state
from watchglass.tables import StepView


class StaysVague(Rule):
    """A language model whose predictions are hardly better than the frequencies of tokens.

    Looks at: the training loss at every step, and the labels of captured steps. The entropy of the labels' frequencies
        is the loss of a model that knows how often each token occurs, but nothing of its context.
    Fires when: at the end of the run the mean loss of the last `window` steps is above `share` of that entropy.
    Usual causes: too small a model, a learning rate that is too low, a run that ended too early.
    What to try: a wider or deeper model, a higher learning rate, or more steps.
    """

    needs = (
        Needs(scalars=("loss",), why="to know how well tokens are predicted"),
        Needs(role=Role.LABEL, raw=True, why="to know how often each token occurs"),
    )

    share: float = parameter(0.85, help="share of the entropy of token frequencies", unit="ratio", gt=0)
    window: int = parameter(50, help="last steps whose mean loss is judged", unit="steps", ge=1)

    occurrences: dict[str, int] = state(dict)

    def check(self, view: StepView) -> Iterable[Finding]:
        """No finding: it counts the tokens."""
        if view.mode is Mode.TRAIN:
            for name in view.whole(Role.LABEL):
                for token, count in zip(*np.unique(view.value(name), return_counts=True), strict=True):
                    self.occurrences[str(token)] = self.occurrences.get(str(token), 0) + int(count)
        return ()

    def finish(self, view: StepView) -> Iterable[Finding]:
        """The finding of the whole run."""
        losses = view.series("loss", Mode.TRAIN, last=self.window)
        if len(losses) < self.window or not self.occurrences:
            return
        counts = np.array(list(self.occurrences.values()))
        shares = counts / counts.sum()
        entropy, loss = -float(shares @ np.log(shares)), float(np.mean(losses))
        if math.isfinite(loss) and loss > self.share * entropy:
            yield self.finding(
                view,
                severity=Severity.WARNING,
                tensors=["loss"],
                value=loss,
                limit=self.share * entropy,
                message=f"the model stays vague: its loss is {loss:.3g}, and {entropy:.3g} needs no more than the "
                "frequencies of the tokens",
                causes=["context_not_learned"],
                what_to_try=["Train a wider or deeper model", "Raise the learning rate", "Train for more steps"],
            )
