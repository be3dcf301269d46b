"""OutputActivationMismatch: the last activation does not fit the loss or the targets."""

from __future__ import annotations

import math
from collections.abc import Iterable

from watchglass.config import parameter
from watchglass.records import OPERATIONS, Finding, Mode, Severity, facts
from watchglass.rules.graph.mistake import Mistake
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.rules.streaks import Streaks
from watchglass.tables import StepView

#: Share of an average over classes by which rounding moves it.
_ROUNDING = 1e-3


class OutputActivationMismatch(Rule):
    """The activation of the last layer does not fit the loss function, or the range of the targets.

    Looks at: the operation that made the predictions of each loss function, the size of the axis of a softmax, and the
        ranges of predictions and targets in samples of both.
    Fires when: one of these holds in training.

        * A softmax makes the predictions of cross_entropy, or a sigmoid (or softmax) those of a loss that applies a
          sigmoid. A log-softmax before cross_entropy changes nothing: an `info`.
        * A weighted sum, a softmax or a sigmoid makes the predictions of a loss on log-probabilities (nll_loss,
          kl_div), or a weighted sum those of binary_cross_entropy. Or "log-probabilities" of nll_loss are above 0 in
          `patience` samples in a row.
        * A softmax or cross_entropy has a single unit for `hold` steps: its output is always 1, without a gradient. An
          `error`.
        * A sigmoid, tanh, ReLU or softplus makes the output of a regression, and a part of the targets is beyond its
          range, in `patience` samples in a row; or it makes the logits of a classification, whose probabilities then
          cannot come near 0 or 1.
    Usual causes: a softmax or sigmoid at the end of the model with a loss that contains it, a loss for probabilities
        after a model that returns raw outputs, targets on another scale than the output layer.
    What to try: return raw outputs and use cross_entropy or binary_cross_entropy_with_logits.
    Costs: a few microseconds per loss function that is called at a captured step; a copy of at most 32,768 elements of
        outputs and targets at about 80 of 5,000 steps.
    Source: exact for operations; documentation of the losses of torch.nn; house: `patience`, `hold`, `tail`.
    """

    needs = (
        Needs(facts=("loss_call",), why="to see what made the predictions"),
        Needs(facts=("target_sketch", "output_sketch"), optional=True, why="to see the ranges of both"),
    )
    modes = (Mode.TRAIN,)

    patience: int = parameter(2, help="samples in a row with values out of range", unit="samples", ge=1)
    hold: int = parameter(8, help="steps for which a single unit must last", unit="steps", ge=0)
    tail: float = parameter(1.5, help="standard deviations around the mean within which targets count", gt=0)

    #: The last call of each loss function.
    calls: dict[str, facts.ComputedLoss] = state(dict)
    #: Model steps since which loss functions have had a single unit; -1 for those that also had several.
    single: dict[str, int] = state(dict)
    #: Sketches in a row with values out of range, by loss function.
    beyond: Streaks = state(Streaks)

    def check(self, view: StepView) -> Iterable[Finding]:
        """Findings of a step."""
        for call in view.facts(facts.ComputedLoss):
            self.calls[call.function] = call
            if not call.single:
                self.single[call.function] = -1
            self.single.setdefault(call.function, view.model_step)
            found = _by_operation(call)
            if found is not None:
                yield self._finding(view, call, found)
        yield from self._single(view, self.hold)
        for call in self.calls.values():
            yield from self._by_values(view, call)

    def finish(self, view: StepView) -> Iterable[Finding]:
        """A finding of a run that was too short for `hold`."""
        if view.mode is not Mode.TRAIN or view.model_step < self.hold:
            yield from self._single(view, None)

    def _single(self, view: StepView, hold: int | None) -> Iterable[Finding]:
        for function, since in self.single.items():
            if since >= 0 and (hold is None or view.model_step - since >= hold):
                call = self.calls[function]
                what = f"a softmax over a single unit makes the predictions of {function}: they are always 1"
                if call.normalized_over != 1:
                    what = f"{function} has a single class: it is always 0"
                message = f"{what}, and nothing gets a gradient"
                mistake = Mistake("single_unit_normalized", message, 1.0, 2.0, severity=Severity.ERROR)
                yield self._finding(view, call, mistake)

    def _by_values(self, view: StepView, call: facts.ComputedLoss) -> Iterable[Finding]:
        function = call.function
        targets = next((each for each in view.facts(facts.TargetSketch) if each.function == function), None)
        outputs = next((each for each in view.facts(facts.OutputSketch) if each.function == function), None)
        found = None
        if targets is not None and targets.variance is not None:
            at = targets.min or 0.0, targets.max or 0.0, targets.mean or 0.0
            found = self._of_targets(call, *at, math.sqrt(targets.variance))
        if found is None and outputs is not None and outputs.mean is not None:
            found = _of_predictions(call, outputs.min or 0.0, outputs.max or 0.0, outputs.mean)
        if found is None:
            if targets is not None or outputs is not None:
                self.beyond.follow(view.mode_step, False, function)
            return
        if self.beyond.follow(view.mode_step, True, function) >= self.patience:
            yield self._finding(view, call, found, self.beyond.since(function))

    def _of_targets(
        self, call: facts.ComputedLoss, least: float, most: float, mean: float, std: float
    ) -> Mistake | None:
        low, high = _range(call.operation)
        if not call.kind.of_differences or not math.isfinite(low) or not math.isfinite(std):
            return None
        # Noise and single values beyond the range are no mismatch; a tail of the targets is.
        below = least < low - 0.1 * std and mean - self.tail * std < low
        above = most > high + 0.1 * std and mean + self.tail * std > high
        if below or above:
            message = (
                f"the targets of {call.function} go from {least:.3g} to {most:.3g}, but the last operation of the "
                f"model, a {_name(call.operation)}, gives {_words(low, high)}"
            )
            at = (least, low) if below else (most, high)
            return Mistake("targets_beyond_output", message, *at, {"targets": [least, most]})
        one_hot = call.operation == "softmax" and (least, most) == (0.0, 1.0) and _one_in(mean, call.normalized_over)
        if one_hot and call.function == "mse_loss":
            message = "a softmax is compared with one-hot targets by mse_loss: its gradient vanishes at wrong answers"
            return Mistake("", message, severity=Severity.INFO)
        return None

    def _finding(self, view: StepView, call: facts.ComputedLoss, found: Mistake, since: int | None = None) -> Finding:
        return self.finding(
            view,
            severity=found.severity,
            subject=f"{call.function} {found.symptom}".strip(),
            value=found.value,
            limit=found.limit,
            message=found.message,
            symptoms=(found.symptom,) if found.symptom and found.severity is not Severity.INFO else (),
            evidence={"function": call.function, "operation": _name(call.operation), **found.evidence},
            since=since,
        )


def _by_operation(call: facts.ComputedLoss) -> Mistake | None:
    """What the last operation before a loss says alone."""
    function, made_by, takes = call.function, str(call.operation), call.kind.takes
    of_logits = takes == "logits" and call.kind.targets == "binary"
    share = made_by in OPERATIONS and OPERATIONS[made_by].probability
    what = f"a {_name(made_by)} makes the predictions of {function}"
    if call.single:
        return None  # a separate fault, which another check reports
    if call.normalizes and made_by == "softmax":
        return Mistake("softmax_before_loss", f"{what}, which applies another softmax to them")
    if call.normalizes and made_by == "log_softmax":
        return Mistake("", f"{what}: harmless, as {function} applies one itself", severity=Severity.INFO)
    if of_logits and share:
        return Mistake("sigmoid_before_loss", f"{what}, which applies a sigmoid to them")
    # Another rule reports those on sequences.
    logarithms = takes == "log-probabilities" and call.kind.targets != "lists"
    if logarithms and (made_by == "weighted_sum" or share):
        return Mistake("not_probabilities", f"{what}, which expects log-probabilities")
    if takes == "probabilities" and made_by == "weighted_sum":
        return Mistake("not_probabilities", f"{what}, which expects probabilities")
    low, high = _range(made_by)
    classes = 2 if of_logits else call.classes
    if (of_logits or call.normalizes) and math.isfinite(high) and classes > 1:
        span = high if of_logits else high - low
        floor = math.log1p((classes - 1) * math.exp(-span))
        message = f"{what}: between {low:g} and {high:g} they cannot bring the loss of a sample below {floor:.2g}"
        return Mistake("targets_beyond_output", message, floor, 0.0)
    if of_logits and low == 0:
        message = f"{what}: they are never negative, so no probability is below 0.5"
        return Mistake("targets_beyond_output", message, 0.5, 0.0)
    if call.normalizes and made_by == "relu":
        return Mistake("", f"{what}: where it gives 0 for a class, that class gets no gradient", severity=Severity.INFO)
    return None


def _of_predictions(call: facts.ComputedLoss, least: float, most: float, mean: float) -> Mistake | None:
    """What the values of predictions say where their last operation is hidden, as by compiled code."""
    if call.kind.of_classes and not call.normalizes and call.operation != "log_softmax" and most > 0.01:
        message = f"{call.function} expects log-probabilities but gets values up to {most:.3g}; these are at most 0"
        return Mistake("not_probabilities", message, most, 0.0)
    hidden = call.normalizes and call.operation not in ("softmax", "log_softmax")
    if hidden and least >= 0 and most <= 1 and call.classes > 1 and _one_in(mean, call.classes):
        message = f"the predictions of {call.function} add up to one: it applies another softmax to those of the model"
        return Mistake("softmax_before_loss", message)
    return None


def _range(operation: str | None) -> tuple[float, float]:
    """Least and greatest value of an operation, where it has a least one."""
    found = OPERATIONS.get(str(operation))
    return (found.low, found.high) if found is not None and math.isfinite(found.low) else (-math.inf, math.inf)


def _one_in(mean: float, classes: int | None) -> bool:
    """Whether a mean is that of the shares of this number of classes."""
    return bool(classes) and abs(mean * (classes or 0) - 1) < _ROUNDING


def _name(operation: str | None) -> str:
    """An operation in words."""
    return str(operation).replace("log_", "log-").replace("_", " ")


def _words(low: float, high: float) -> str:
    return f"{low:g} to {high:g}" if math.isfinite(high) else f"nothing below {low:g}"
