"""TreeDepth: boosted trees that are very deep."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import ClassVar

from watchglass.config import parameter
from watchglass.records import Finding, Mode, facts, rounded
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule
from watchglass.tables import StepView


class TreeDepth(Rule):
    """A boosted tree is deeper than a limit.

    Looks at: depth and largest node number of the trees of each captured round, as XGBoost's callback records them. A
        script without it saves them: `save_tensor("trees/depth", depths, "trees")`.
    Fires when: a tree is deeper than `depth`; with `by_node`, when the base-2 logarithm of its largest node number is.
    Usual causes: a limit of depth that is switched off (max_depth=0), leaf-wise growth without max_leaves.
    What to try: max_depth of 4 to 10, a larger min_child_weight or gamma.
    Costs: a text dump of the trees of each captured round.
    Source: log2 of the largest node number above 4: SageMaker Debugger documentation; 12: house.
    """

    needs = (Needs(collection="trees", statistics=("max",), why="to know how deep they are"),)
    modes = (Mode.TRAIN,)
    calibrations: ClassVar = {"sagemaker": {"depth": 4, "by_node": True}}

    depth: int = parameter(12, help="greatest depth", unit="levels", ge=1)
    by_node: bool = parameter(False, help="judge the logarithm of the largest node number instead of the depth")

    def check(self, view: StepView) -> Iterable[Finding]:
        """At most one finding of a round."""
        rows = view.statistics(collection="trees")
        row = rows.row("trees/largest_node" if self.by_node else "trees/depth")
        if row is None:
            return
        largest = float(rows.max[row])
        deep = (math.log2(largest) if largest > 0 else 0.0) if self.by_node else largest
        if not deep > self.depth:
            return
        what = (
            f"the base-2 logarithm of its largest node number is {deep:.3g}"
            if self.by_node
            else f"it has {rounded(deep)}"
        )
        yield self.finding(
            view,
            subject="trees",
            tensors=["trees/depth"],
            value=deep,
            limit=float(self.depth),
            message=f"the deepest tree of round {view.mode_step} has more than {self.depth} levels: {what}",
            symptoms=("deep_trees",),
        )

    def applicable(self, view: StepView) -> str:
        """Not for models with layers."""
        about = view.latest_fact(facts.ModelDescription)
        return "the model has no trees" if about is not None and about.module_kinds else ""
