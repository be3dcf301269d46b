"""ExplodingTensor: a value became NaN or infinite."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from watchglass.config import parameter
from watchglass.records import Finding, Mode, Role, Severity, facts
from watchglass.rules import learning_rates, levels, signals
from watchglass.rules.classic.first_bad import Culprit, find_culprit, named_by_capture
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.stats import median
from watchglass.tables import Statistics, StepView

#: A non-finite value in one of these means that the run is broken.
_VITAL = (Role.LOSS, Role.GRADIENT, Role.WEIGHT, Role.BIAS, Role.UPDATE, Role.OPTIMIZER_STATE)
#: Norm of a gradient that a recurrent network rarely has: clipping at 1 to 5 is usual (Pascanu et al., ICML 2013).
_LARGE_NORM = 100.0


class ExplodingTensor(Rule):
    """A loss, gradient, weight or activation became NaN or infinite; names the place where it began.

    Looks at: the loss and the finiteness of gradients at every step; statistics of all tensors at captured steps.
    Fires when: a value is NaN or infinite. The severity is `error` in the loss, a gradient or a weight. It is `warning`
        in an activation while the loss is finite, in a validation loss, and in a loss whose gradients are zero (a mean
        over labels that are all ignored). It is `info` for a step that a gradient
        scaler skipped, because loss scaling is meant to skip steps. It is also `info` for activations that are negative
        infinity and nothing worse, because masks are made that way.
    Usual causes: a learning rate that is too high, NaN in the data, log or division by zero in the loss.
        An operation outside the range where its value or its gradient is finite: a root of zero, a logarithm of zero,
        a division by zero, a row of attention that is masked whole. It is named where it is known.
    What to try: the cure of the named operation; lower the learning rate if the loss rose before; otherwise inspect the
        batch and the named module.
    Costs: nothing while the loss is finite; statistics that are captured anyway show the faulty tensor.
    Source: SageMaker Debugger documentation; house: the search for the first bad module.
    """

    needs = (
        Needs(scalars=("loss",), why="to see a loss that is not finite"),
        Needs(statistics=("nan", "nonfinite"), optional=True, why="to see which tensor was hit"),
        Needs(facts=("step_skipped",), optional=True, why="to omit skipped updates"),
        Needs(facts=("clip",), optional=True, why="to know whether anything clips gradients"),
        Needs(facts=("loss_scale",), optional=True, why="to know whether a scaler is used"),
    )

    only_nan: bool = parameter(False, help="report NaN only, not infinities")
    name_regex: str | None = parameter(None, help="only tensors whose name contains a match of this")

    start: list[float] = state(list)
    broken: bool = state(bool)
    named: bool = state(bool)

    def check(self, view: StepView) -> Iterable[Finding]:
        """At most one finding: about the training step, its activations, or an evaluation."""
        bad = self._bad(view)
        loss = signals.loss(view)
        bad_loss = loss is not None and (math.isnan(loss) or (not self.only_nan and math.isinf(loss)))
        if view.mode is not Mode.TRAIN:
            # After training has broken, every evaluation is NaN as well: one disease, reported once.
            if (bad_loss or len(bad)) and not self.broken:
                yield self._evaluation(view, loss if bad_loss else None, bad)
            return
        signals.remember_start(self.start, loss)
        vital = any(info.role in _VITAL for info in bad.tensors) if len(bad) else False
        gradient_fact = bool(view.facts(facts.NonfiniteGradients))
        named = named_by_capture(view)
        if signals.skipped(view) and not bad_loss and not self._weights_bad(bad):
            yield self._skipped(view)
        elif bad_loss or vital or gradient_fact or named:
            yield self._broken(view, loss, bad_loss, bad, named)
        elif len(bad):
            yield self._activations(view, bad, loss)

    def _bad(self, view: StepView) -> Statistics:
        rows = view.statistics(name_regex=self.name_regex)
        return rows if not len(rows) else rows.where((rows.nan if self.only_nan else rows.nonfinite) > 0)

    @staticmethod
    def _weights_bad(bad: Statistics) -> bool:
        return any(info.role in (Role.WEIGHT, Role.BIAS) for info in bad.tensors)

    def _broken(
        self, view: StepView, loss: float | None, bad_loss: bool, bad: Statistics, named: list[facts.FirstBadPlace]
    ) -> Finding:
        culprit = find_culprit(view, bad, bad_loss=bad_loss)
        # If a module is named only later (by hooks that were armed after the first failure), a second finding names it.
        named_now = any(not each.refused for each in named)
        if culprit.harmless and not self.broken:
            return self._unharmed(view, loss, culprit)
        subject = "first bad module" if self.broken and named_now and not self.named else "training"
        self.broken, self.named = True, self.named or named_now
        value, what = (loss, "the loss") if bad_loss else (_worst(culprit, bad), culprit.name or "a gradient")
        tensors = list(dict.fromkeys([*([culprit.name] if culprit.name else []), *bad.names[:15]]))
        message = f"{what} became {_word(value)} at step {view.mode_step}{culprit.sentence}"
        jump = learning_rates.jump(view)
        return self.finding(
            view,
            severity=Severity.ERROR,
            subject=subject,
            tensors=tensors or (["loss"] if bad_loss else []),
            value=value,
            message=jump.then(message) if jump else message,
            symptoms=[*culprit.symptoms, *self._more(view, culprit), *(["rate_jumped"] if jump else [])],
            evidence={
                **culprit.to_json(),
                **signals.evidence(view),
                **(jump.evidence if jump else {}),
                "nonfinite_tensors": len(bad),
            },
        )

    def _unharmed(self, view: StepView, loss: float | None, culprit: Culprit) -> Finding:
        return self.finding(
            view,
            subject=f"unharmed: {culprit.symptoms[0]}",
            tensors=["loss"],
            value=loss if loss is not None else math.nan,
            message=f"the loss is {_word(loss)} at step {view.mode_step}{culprit.sentence}",
            symptoms=culprit.symptoms,
            evidence={**culprit.to_json(), **signals.evidence(view)},
        )

    def _more(self, view: StepView, culprit: Culprit) -> list[str]:
        """Symptoms of the steps before, of a recurrence that nothing clips, and of float16 without a scaler."""
        before = self._before(view)
        grew = not {"rose_before", "gradient_growth"}.isdisjoint(before) or culprit.where == "backward"
        norms = view.series("gradient_norm", Mode.TRAIN, 6)
        large = bool(np.any(norms[np.isfinite(norms)] > _LARGE_NORM))
        recurs = (grew or large) and culprit.where != "input" and signals.unclipped_recurrence(view)
        scaled = view.latest_fact(facts.LossScale) is not None or view.latest_fact(facts.StepSkipped) is not None
        # Activations in float16 have gradients in float16, whatever the weights are.
        half = any(info.dtype == "float16" for info in view.catalog)
        overflows = half and not scaled and culprit.where != "input"
        symptoms = ["half_precision_unscaled"] if overflows else []
        return [*before, *(["recurrent_gradient"] if recurs else []), *symptoms]

    def _before(self, view: StepView) -> list[str]:
        """Symptom of the steps before: the loss or the gradient rose, both were calm, or this is the first step."""
        before = signals.losses(view, 33)
        if view.model_step == 0 or not self.start:
            return ["first_step"] if view.model_step == 0 else []
        norms = view.series("gradient_norm", Mode.TRAIN, 33)
        norms = norms[np.isfinite(norms) & (norms > 0)]
        earlier = before[:-5] if len(before) >= 13 else before[:1]
        rose = len(before) >= 2 and self._rose(float(np.max(before[-5:])), earlier.tolist())
        grew = len(norms) >= 2 and float(np.max(norms[-5:])) > 10 * float(np.median(norms[: max(1, len(norms) - 5)]))
        if rose:
            return ["rose_before", *(["gradient_growth"] if grew else [])]
        if grew:
            return ["gradient_growth"]
        return ["calm_before"] if len(before) >= 3 else []

    def _rose(self, peak: float, earlier: list[float]) -> bool:
        """Whether the highest of the last losses is far above the start or the losses before it."""
        lowest = min(*self.start, *earlier, peak)
        if lowest > 0:
            return peak > 2 * self.start[0] or peak > 5 * median(earlier)
        first = levels.rise(self.start, peak, lowest=lowest, before=earlier)
        since = levels.rise(earlier, peak, lowest=lowest, before=self.start)
        return first.exceeds(2, levels.CERTAIN) and since.exceeds(2, levels.CERTAIN)

    def _skipped(self, view: StepView) -> Finding:
        return self.finding(
            view,
            severity=Severity.INFO,
            subject="skipped steps",
            message=f"the gradient scaler skipped step {view.mode_step} because scaled gradients overflowed; "
            "a few such steps are how loss scaling finds its scale",
        )

    def _activations(self, view: StepView, bad: Statistics, loss: float | None) -> Finding:
        masks = bool(np.all(bad.nan + bad.posinf == 0))
        name = find_culprit(view, bad, bad_loss=False).name
        what = "negative infinity" if masks else "NaN or infinite values"
        return self.finding(
            view,
            severity=Severity.INFO if masks else Severity.WARNING,
            subject="activations",
            tensors=[name, *[other for other in bad.names[:15] if other != name]],
            value=float(np.sum(bad.nonfinite)),
            message=f"{name} holds {what} at step {view.mode_step}"
            + (", while the loss is finite" if loss is not None else ""),
            symptoms=() if masks else ("nonfinite_forward", "calm_before"),
        )

    def _evaluation(self, view: StepView, loss: float | None, bad: Statistics) -> Finding:
        what = "the loss of an evaluation" if loss is not None else bad.names[0]
        return self.finding(
            view,
            subject="evaluation",
            tensors=bad.names[:15],
            value=loss if loss is not None else float("nan"),
            message=f"{what} is NaN or infinite at {view.mode.name} step {view.mode_step} "
            f"(after training step {view.train_step}), while training values are finite",
            symptoms=("nonfinite_validation",),
        )


def _word(value: float | None) -> str:
    if value is None:
        return "NaN or infinite"
    return "NaN" if math.isnan(value) else "infinite"


def _worst(culprit: Culprit, bad: Statistics) -> float | None:
    """NaN or infinity, as the tensor at fault holds it; None where its values were not captured."""
    row = bad.row(culprit.name) if len(bad) and culprit.name in bad.names else None
    if row is None:
        return None
    return math.nan if bad.nan[row] > 0 else math.inf if bad.posinf[row] > 0 else -math.inf
