"""CorrelatedFeatures: input features that carry the same information."""

from __future__ import annotations

from collections.abc import Iterable

from watchglass.config import parameter
from watchglass.records import Finding, Mode, Severity, facts, in_percent
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.tables import StepView

#: Rows and features from which the correlations count.
_ROWS, _FEATURES = 24, 3

#: The correlation above which the capture counts two features as alike.
_ALIKE = 0.95


class CorrelatedFeatures(Rule):
    """Many pairs of input features are strongly correlated.

    Looks at: the share of pairs of features of a table with an absolute correlation above 0.95, over the rows of the
        sketched batches; features that do not vary do not count.
    Fires when: this share is above `share` at the last sketch: an `info`. If it is above `most`, for at least
        `features` features, nearly all features carry the same information: a `warning`.
    Usual causes: a column that appears twice or in other units, one-hot columns of the same category, windows of a slow
        signal.
    What to try: drop one of each pair, or decorrelate the features (PCA whitening); weight decay helps little.
    Costs: the correlations of at most 256 features over 512 rows at about 80 of 5,000 steps, in the recorder's thread.
    Source: correlated inputs make the Hessian ill-conditioned: LeCun et al., Efficient BackProp, 1998, 4.3; limits:
        house.
    """

    idle_at_plain_steps = True
    needs = (Needs(facts=("input_sketch",), why="to see correlations"),)
    modes = (Mode.TRAIN,)

    share: float = parameter(0.2, help="share of pairs with a correlation above 0.95", gt=0, lt=1)
    most: float = parameter(0.8, help="share above which nearly all features carry the same information", gt=0, le=1)
    features: int = parameter(8, help="fewest features for which this is a warning", ge=3)

    tables: int = state(int)

    def check(self, view: StepView) -> Iterable[Finding]:
        """A finding at a sketched step with enough rows."""
        for sketch in view.facts(facts.InputSketch):
            found = sketch.correlations
            if found is None or found.rows < _ROWS or found.features < _FEATURES:
                continue
            self.tables += 1
            if found.share <= self.share:
                continue
            severe = found.share > self.most and found.features >= self.features
            yield self.finding(
                view,
                severity=Severity.WARNING if severe else Severity.INFO,
                subject=sketch.tensor,
                value=found.share,
                limit=self.most if severe else self.share,
                message=(
                    f"{in_percent(found.share)} of the pairs of {found.features} input features have a "
                    f"correlation above {_ALIKE}, over {found.rows} rows"
                ),
                symptoms=("features_correlated",) if severe else (),
                evidence={"features": found.features, "rows": found.rows, "correlation": _ALIKE},
            )

    def applicable(self, view: StepView) -> str:
        """Not for models whose inputs are no table."""
        return "" if self.tables else "no input is a table of 3 to 256 features with enough rows"
