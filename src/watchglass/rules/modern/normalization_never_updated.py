"""NormalizationNeverUpdated: running statistics that do not follow the data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from watchglass.config import parameter
from watchglass.records import Finding, Mode, facts
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.tables import StepView


class NormalizationNeverUpdated(Rule):
    """The running statistics of a normalisation stay at their initial values, or lag far behind the data.

    Looks at: running means and variances, their momentum, and the moments of what the module normalises.
    Fires when: a module that ran in training still has a running mean of exactly 0 and a variance of exactly 1 after
        `min_steps` training steps, at an evaluation or at the end of the run. Or, at the end, its momentum has let them
        follow less than half of the way, and they differ from the data by more than one standard deviation in the mean,
        or by a factor of `factor` in the variance. Running statistics that were loaded and are kept (frozen,
        pretrained) are not reported. Nor is a model that is in evaluation mode as a whole: TrainEvalMode reports that.
    Usual causes: a momentum of 0 (PyTorch's momentum is the share of the new batch), fresh normalisation layers that
        are set to eval() in training, or called with training=False in Keras.
    What to try: momentum 0.1; train() on the normalisation layers while the model is trained.
    Costs: the fact running_statistics, a few reductions per normalisation at a handful of steps.
    Source: exact; PyTorch documentation of BatchNorm; house: `min_steps`, `factor`.
    """

    needs = (Needs(facts=("running_statistics",), why="to see whether they move"),)

    min_steps: int = parameter(8, help="training steps after which they must have moved", unit="steps", ge=2)
    factor: float = parameter(4.0, help="running variance over that of the input", unit="ratio", gt=1)

    #: Training steps, and the latest record of the modules in training.
    steps: int = state(int)
    modules: Sequence[facts.NormalizationState] = state(tuple)
    whole: bool = state(bool)
    reported: bool = state(bool)

    def check(self, view: StepView) -> Iterable[Finding]:
        """At most one finding, at an evaluation."""
        self.steps += view.covers if view.mode is Mode.TRAIN else 0
        for fact in view.facts(facts.NormalizationStatistics):
            if fact.modules is None:
                continue
            if view.mode is Mode.TRAIN:
                self.modules, self.whole = fact.modules, fact.model_training
            elif self.steps >= self.min_steps:
                now = {each.module for each in fact.modules if each.initial}
                yield from self._stay(view, [each for each in self.modules if each.module in now])

    def finish(self, view: StepView) -> Iterable[Finding]:
        """The last judgement."""
        if self.steps >= self.min_steps:
            yield from self._stay(view, self.modules)
            yield from self._lag(view)

    def applicable(self, view: StepView) -> str:
        """Not without running statistics."""
        return "" if self.modules else "no module has running statistics"

    def _stay(self, view: StepView, modules: Sequence[facts.NormalizationState]) -> Iterable[Finding]:
        still = [each for each in modules if each.initial]
        if not still or not self.whole or self.reported:
            return
        self.reported = True
        first = still[0]
        others = f" and {len(still) - 1} more" if len(still) > 1 else ""
        why = (
            "its momentum is 0" if first.momentum == 0
            else "it is in evaluation mode while the model is trained" if not first.training
            else f"with momentum {first.momentum:g}" if first.momentum is not None else "nothing updates them"
        )  # fmt: skip
        yield self._finding(
            view, [each.module for each in still], float(self.steps),
            f"the running mean of {first.module} ({first.type}){others} is still 0 and its variance 1 after "
            f"{self.steps} training steps: {why}",
        )  # fmt: skip

    def _lag(self, view: StepView) -> Iterable[Finding]:
        late = [each for each in self.modules if self._lags(each)]
        if not late or not self.whole or self.reported:
            return
        first = late[0]
        followed = _followed(first, self.steps)
        yield self._finding(
            view, [each.module for each in late], float(first.mean_off or 0.0),
            f"the running statistics of {first.module} ({first.type}) lag behind the data after {self.steps} "
            f"training steps: with momentum {first.momentum:g} they have gone "
            f"{100 * followed:.2g} % of the way, and are off by {first.mean_off:.3g} standard "
            f"deviations (variance: {first.variance_ratio:.3g} times)",
            momentum=first.momentum, followed=followed, variance_ratio=first.variance_ratio,
        )  # fmt: skip

    def _lags(self, module: facts.NormalizationState) -> bool:
        off, ratio = module.mean_off, module.variance_ratio
        if not module.training or module.momentum is None or module.initial or off is None or ratio is None:
            return False
        far = off > 1 or not 1 / self.factor < ratio < self.factor
        return far and _followed(module, self.steps) < 0.5

    def _finding(
        self, view: StepView, names: list[str], value: float, message: str, **measured: float | None
    ) -> Finding:
        return self.finding(
            view, subject="running statistics", tensors=names[:16], value=value,
            limit=0.0, message=message, symptoms=("running_statistics_stay",),
            evidence={"steps": self.steps, **measured},
        )  # fmt: skip


def _followed(module: facts.NormalizationState, steps: int) -> float:
    """How far the batches so far take the running statistics from their start to the data."""
    batches = max(module.batches or 0, steps)
    return float(1 - (1 - (module.momentum or 0.0)) ** batches)
