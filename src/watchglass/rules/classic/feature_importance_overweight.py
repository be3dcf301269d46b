"""FeatureImportanceOverweight: a few features have nearly all the importance."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import numpy as np

from watchglass.config import parameter
from watchglass.records import Finding, Mode, facts, in_percent
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule
from watchglass.tables import StepView


class FeatureImportanceOverweight(Rule):
    """A few features have nearly all the importance of a tree ensemble.

    Looks at: the vector of feature importances of each captured round, as XGBoost's callback records it. A script
        without it saves one: `save_tensor("feature_importance/weight", vector, "feature_importance")`, recorded whole.
    Fires when: the `nfeatures` largest importances are more than `threshold` of their sum, at round `start` or later.
        The rule skips data with fewer than `least` features.
    Usual causes: a feature that reveals the label (an id, a date, a value from after the event), a task that needs few
        features.
    What to try: check whether the named features are known at the time of a prediction; train without them.
    Costs: one number for each feature at captured rounds, which XGBoost's callback records by default.
    Source: 0.8 of 3 features: SageMaker Debugger documentation; house: `start` and `least`.
    """

    needs = (Needs(collection="feature_importance", raw=True, why="to compare features"),)
    calibrations: ClassVar = {"sagemaker": {"threshold": 0.8, "nfeatures": 3, "start": 0, "least": 0}}

    threshold: float = parameter(0.8, help="share of the importance", unit="ratio", gt=0, le=1)
    nfeatures: int = parameter(3, help="how many features", unit="features", ge=1)
    importance: str = parameter("weight", help="kind of importance: weight (uses in splits), gain, cover")
    start: int = parameter(10, help="first round that is judged", unit="rounds", ge=0)
    least: int = parameter(10, help="fewest features that are judged", unit="features", ge=0)

    def check(self, view: StepView) -> Iterable[Finding]:
        """At most one finding of a round."""
        name = f"feature_importance/{self.importance}"
        if view.mode is not Mode.TRAIN or view.mode_step < self.start or name not in view.whole():
            return
        value = view.value(name)
        if value is None or not value.size:
            return
        # A linear booster has a column of coefficients for each class.
        scores = np.abs(np.asarray(value, np.float64)).reshape(len(value), -1).sum(axis=1)
        total = float(scores.sum())
        if len(scores) < max(self.least, self.nfeatures + 1) or not total > 0:
            return
        largest = np.argsort(-scores, kind="stable")[: self.nfeatures]
        share = float(scores[largest].sum()) / total
        if not share > self.threshold:
            return
        about = view.latest_fact(facts.ModelDescription)
        known = (about.features if about is not None else None) or ()
        names = [known[n] if n < len(known) else f"feature {n}" for n in largest.tolist()]
        yield self.finding(
            view,
            subject=self.importance,
            tensors=[name],
            value=share,
            limit=self.threshold,
            message=f"{', '.join(names)} have {in_percent(share)} of the importance ({self.importance}) of "
            f"{len(scores)} features at round {view.mode_step}",
            symptoms=("importance_concentrated",),
            evidence={"features": ", ".join(names), "of": len(scores)},
        )

    def applicable(self, view: StepView) -> str:
        """Not for models with layers."""
        about = view.latest_fact(facts.ModelDescription)
        return "the model has no feature importances" if about is not None and about.module_kinds else ""
