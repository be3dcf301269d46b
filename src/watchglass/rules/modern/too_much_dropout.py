"""TooMuchDropout: dropout removes almost everything."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from watchglass.config import parameter
from watchglass.records import Finding, Mode, facts, in_percent
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.tables import StepView


class TooMuchDropout(Rule):
    """Dropout removes so much that the model can hardly learn.

    Looks at: the probabilities of the dropout modules; the training loss, compared with the evaluation loss.
    Fires when: a module drops more than `certain` of its elements in training. Or it drops more than `high`, and the
        mean training loss between two evaluations is more than `gap` times that of the evaluation after it, at the last
        half of the evaluations. The rule does not see functional dropout.
    Usual causes: a probability of keeping that is passed as the probability of dropping; a value from another library
        or a search.
    What to try: 0.1 to 0.5; less for convolutions and small models.
    Costs: nothing beyond the data that are always recorded.
    Source: Srivastava et al., Dropout, JMLR 2014 (0.5 for hidden units, 0.2 for inputs; from 0.9 on the error rises
        steeply); house: limits.
    """

    needs = (Needs(scalars=("loss",), optional=True, why="to compare training and evaluation"),)

    certain: float = parameter(0.89, help="probability that is too high in any case", gt=0, le=1)
    high: float = parameter(0.65, help="probability that is too high if the training loss suffers", gt=0, le=1)
    gap: float = parameter(1.5, help="training loss over evaluation loss", gt=1)

    #: The module that drops most, and its probability.
    module: str = state(str)
    probability: float = state(float)
    #: Training loss of the latest stretch, and its ratio to the evaluation after it.
    training: float | None = state(lambda: None)
    ratios: list[float] = state(list)
    reported: bool = state(bool)

    def check(self, view: StepView) -> Iterable[Finding]:
        """A finding once the modules are known."""
        about = view.latest_fact(facts.ModelDescription) if not self.probability else None
        dropped = about.dropout if about is not None else None
        if dropped:
            self.module = max(dropped, key=lambda each: dropped[each])
            self.probability = float(dropped[self.module])
        self._stretches(view)
        # Evaluation mode switches it off, and a probability may still change before the first steps are over.
        if self.probability > self.certain and view.mode is Mode.TRAIN and view.model_step >= 8 and not self.reported:
            flags = view.latest_fact(facts.TrainingFlags)
            if flags is None or flags.training is not False:
                self.reported = True
                yield self._finding(view, self.probability, self.certain, "")

    def finish(self, view: StepView) -> Iterable[Finding]:
        """A finding about what the losses show."""
        self._stretches(view)
        late = self.ratios[len(self.ratios) // 2 :]
        if self.reported or self.probability <= self.high or len(late) < 2:
            return
        if (ratio := float(np.median(late))) > self.gap:
            words = f", and the training loss is {ratio:.3g} times that of evaluations"
            yield self._finding(view, ratio, self.gap, words)

    def applicable(self, view: StepView) -> str:
        """Not for models without dropout."""
        about = view.latest_fact(facts.ModelDescription)
        none = about is not None and not about.dropout
        return "the model has no module that drops elements" if none else ""

    def _stretches(self, view: StepView) -> None:
        for stretch in view.stretches:
            names = [name for name in stretch.means if name.startswith("loss/")]
            loss = stretch.means[names[0]] if len(names) == 1 else None
            if stretch.mode is Mode.TRAIN:
                self.training = loss
            elif loss is not None and self.training is not None and math.isfinite(self.training) and loss > 0:
                self.ratios = [*self.ratios, self.training / loss][-64:]

    def _finding(self, view: StepView, value: float, limit: float, words: str) -> Finding:
        return self.finding(
            view,
            tensors=[self.module],
            value=value,
            limit=limit,
            message=f"{self.module} drops {in_percent(self.probability)} of its elements in training{words}",
            symptoms=("dropout_high",),
            evidence={"dropout": self.probability},
        )
