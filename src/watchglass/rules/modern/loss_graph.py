"""LossGraph: what a script's own operations make of the model's output on its way to the loss."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from watchglass.config import parameter
from watchglass.records import Finding, Mode, Role, Severity
from watchglass.rules import signals
from watchglass.rules.loss_terms import LossTerm
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.tables import StepView

_NORMALIZING = ("softmax", "log_softmax")
_LAYERS = ("linear", "convolution", "bmm")
#: Operations that take differences of predictions and targets element by element.
_DISTANCES = ("pow", "abs", "mul")
#: Operations that weigh log-likelihoods by their targets, and average them.
_WEIGHED = ("mul", "neg", "mean", "sum")
#: Ratio of a loss to its start from which on it has diverged, and decrease from which on it falls as it should.
_RISEN, _FALLEN = 2.0, 0.5
#: Steps after which a loss has fallen by this share, where the run learns anything.
_LONG, _LEARNED = 64, 0.1


class _Found(NamedTuple):
    """What is wrong with a term."""

    severity: Severity
    symptom: str
    message: str
    value: float | None = None
    limit: float | None = None
    evidence: Mapping[str, Any] = {}


class LossGraph(Rule):
    """A loss that a script writes with tensor operations does not compute what it is meant to.

    Looks at: the operations from the last layers to the loss, in autograd's graph; the updates of a summed loss.
    Fires when: one of these holds in training.

        * A softmax or log-softmax normalises over the samples of the batch, and not over the classes: an `error` if
          nll_loss picks classes from it. Or over positions of a sequence, or over what a reshape has put together from
          the results of several positions.
        * All paths from a layer lead into a logarithm, with neither softmax nor sigmoid between: the loss takes raw
          outputs for probabilities.
        * A softmax is applied to the result of a softmax, or a sigmoid to that of a sigmoid.
        * A clamp limits logits so far that no sample can get a loss below `floor`.
        * Predictions of shape (n, 1) minus targets of shape (n) give differences of shape (n, n): an `error`.
        * The loss is summed over the batch, the optimizer is SGD, and the loss diverged. Or in `patience` captures
          after `hold` steps the update was more than `large` of the weight, and the loss had not fallen to half of its
          start. Or at the end of a run of 64 steps or more the loss has fallen by less than a tenth; the rule skips
          GANs and resumed runs. A sum that does no harm is an `info`. Adaptive optimizers do not depend on the scale of
          the loss.
    Usual causes: dim=0 in place of dim=1, a forgotten softmax or squeeze, reduction="sum" with a rate for means.
    What to try: use cross_entropy on raw outputs; give predictions and targets the same shape; average over the batch.
    Costs: the fact loss_graph, read at a few captured steps.
    Source: exact for operations; house: `floor`, `large`, `hold`, `patience`.
    """

    default = True
    needs = (
        Needs(facts=("loss_graph",), why="to see how the loss is made"),
        Needs(facts=("loss_call",), optional=True, why="to omit what a loss function does itself"),
        Needs(scalars=("loss",), optional=True, why="to see whether a summed loss does harm"),
        Needs(role=Role.WEIGHT, statistics=("rms",), optional=True, why="to compare updates with weights"),
        Needs(role=Role.UPDATE, statistics=("rms", "nonfinite"), optional=True, why="to compare updates with weights"),
    )

    floor: float = parameter(0.05, help="lowest loss of a sample that clamped logits allow", gt=0)
    large: float = parameter(0.1, help="median over layers of update over weight that is too large", gt=0)
    hold: int = parameter(16, help="first steps, in which large updates are the start", unit="steps", ge=0)
    patience: int = parameter(3, help="captures with such updates", unit="captures", ge=1)

    #: Samples that the loss is summed over; 0 for a mean.
    summed: int = state(int)
    #: Captures with large updates, and the first losses.
    jumps: int = state(int)
    start: list[float] = state(list)
    harmed: bool = state(bool)

    def check(self, view: StepView) -> Iterable[Finding]:
        """Findings of a step."""
        if view.mode is not Mode.TRAIN:
            return
        functions = {str(fact.data.get("function")) for fact in view.facts("loss_call")}
        for fact in view.facts("loss_graph"):
            terms = [LossTerm(each) for each in fact.data.get("terms") or () if each.get("kind") == "data"]
            self.summed = max((_summed(term) for term in terms), default=0)
            for found in self._judged(terms, functions, int(fact.data.get("batch") or 0)):
                yield self._finding(view, found)
        if self.summed:
            yield from self._of_sum(view)

    def finish(self, view: StepView) -> Iterable[Finding]:
        """A sum whose updates were not too large: with a loss that has not fallen, or without harm."""
        if not self.summed or self.harmed or not self._depends_on_scale(view):
            return
        unclear = view.in_turns or signals.resumed(view) or view.model_step < _LONG
        if not unclear and signals.progress(self.start, signals.losses(view, 16)) < _LEARNED:
            message = f"the loss is a sum over {self.summed} samples and has not fallen{self._as_mean(view)}"
            yield self._finding(view, _Found(Severity.WARNING, "loss_is_a_sum", message))
            return
        message = f"the loss is a sum over {self.summed} samples: its gradient grows with the size of the batch"
        yield self._finding(view, _Found(Severity.INFO, "", message))

    def _judged(self, terms: list[LossTerm], functions: set[str], batch: int) -> Iterable[_Found]:
        for term in terms:
            if not term.whole:
                continue
            for at, each in enumerate(term.operations):
                name = each.get("operation")
                if name in _NORMALIZING:
                    yield from _over_batch(term, at, batch)
                    yield from _over_positions(term, at)
                if name in (*_NORMALIZING, "sigmoid"):
                    yield from _twice(term, at, functions)
                if name == "clamp":
                    yield from _clamped(term, at, self.floor)
                if name == "sub":
                    yield from _broadcast(term, at)
        yield from _raw_logarithms(terms)

    def _of_sum(self, view: StepView) -> Iterable[Finding]:
        loss = signals.loss(view)
        signals.remember_start(self.start, loss)
        if self.harmed or not self._depends_on_scale(view):
            return
        ratio = 0.0
        if view.captured:
            _, _, ratios = signals.update_ratios(view)
            ratio = float(np.median(ratios)) if len(ratios) else 0.0
            late = view.model_step >= self.hold
            self.jumps += (
                late and ratio > self.large and signals.progress(self.start, signals.losses(view, 16)) < _FALLEN
            )
        losses = view.series(signals.loss_name(view) or "loss", Mode.TRAIN, 8)
        broken = len(losses) > 0 and not np.isfinite(losses).all()
        if len(losses) == 8 and len(self.start) == 8 and min(self.start) > 0:
            broken |= bool(np.median(losses) > _RISEN * np.median(self.start))
        if not (broken or self.jumps >= self.patience):
            return
        self.harmed = True
        shows = "the loss has diverged" if broken else f"an update is {ratio:.2g} of the weight"
        message = (
            f"the loss is a sum over {self.summed} samples and {shows} at step {view.mode_step}{self._as_mean(view)}"
        )
        limit = None if broken else self.large
        yield self._finding(view, _Found(Severity.WARNING, "loss_is_a_sum", message, ratio or None, limit))

    def _as_mean(self, view: StepView) -> str:
        rate = signals.learning_rate(view)
        return f"; for a mean, a learning rate of {rate:.3g} acts as {rate * self.summed:.3g}" if rate else ""

    @staticmethod
    def _depends_on_scale(view: StepView) -> bool:
        fact = view.latest_fact("optimizer")
        return fact is not None and fact.data.get("type") == "SGD"

    def _finding(self, view: StepView, found: _Found) -> Finding:
        return self.finding(
            view,
            severity=found.severity,
            subject=found.symptom or "sum",
            value=found.value,
            limit=found.limit,
            message=found.message,
            symptoms=(found.symptom,) if found.symptom else (),
            evidence={**signals.optimizer_evidence(view), **found.evidence},
        )


def _over_batch(term: LossTerm, at: int, batch: int) -> Iterable[_Found]:
    each, shape = term.operations[at], term.shape(at)
    if each.get("axis_of_output") != 0 or len(shape) != 2 or min(shape) < 2 or shape[0] == shape[1]:
        return
    size = int(each.get("size") or 0)
    made_of, used = term.before(at), term.after(at)
    mixed = any(len(set(term.sources(other))) > 1 for other in made_of)
    layers = [other for other in made_of if term.name(other) in _LAYERS]
    # Scores of items, one for each, are normalised over them.
    scores = any(term.shape(other)[-1:] == [1] for other in layers)
    if batch < 2 or size % batch or mixed or scores or not layers or _weighs(term, at):
        return
    picked = any(term.name(other) == "nll_loss" for other in used)
    classes = shape[1] if size == shape[0] else shape[0]
    message = (
        f"{_words(term.name(at))} before the loss normalises over the {size} samples of the batch and not over "
        f"the {classes} classes: "
        f"the probabilities of one sample do not add up to one"
    )
    severity = Severity.ERROR if picked else Severity.WARNING
    yield _Found(severity, "normalized_over_batch", message, float(size), float(classes))


def _over_positions(term: LossTerm, at: int) -> Iterable[_Found]:
    """Classes of a linear layer's results that a softmax over another axis, or behind a wrong reshape, takes apart."""
    each, shape, source = term.operations[at], term.shape(at), next(iter(term.sources(at)), None)
    if source is None or term.name(source) != "linear" or _weighs(term, at):
        return
    classes, size = term.shape(source)[-1], int(each.get("size") or 0)
    leading = each.get("axis_of_output") == 0 and each.get("axis") != 0 and len(shape) > 2
    if classes < 2 or not (leading or each.get("mixes")) or classes not in shape:
        return
    if size == classes:
        message = (
            f"a reshape to {tuple(shape)} before {_words(term.name(at))} takes values of several positions for the "
            f"{classes} classes of one: it does not swap axes, as transpose and permute do"
        )
        yield _Found(Severity.WARNING, "normalized_over_batch", message, float(size), float(classes))
    elif leading and any(_picks(term, other) for other in term.after(at)):
        message = (
            f"{_words(term.name(at))} before the loss normalises over {size} positions and not over the {classes} "
            f"classes: the probabilities of one position do not add up to one"
        )
        yield _Found(Severity.WARNING, "normalized_over_batch", message, float(size), float(classes))


def _weighs(term: LossTerm, at: int) -> bool:
    """Whether a softmax gives weights to other results, as those of an attention or pooling."""
    used = term.after(at)
    return any(set(term.sources(other)) - used - {at} for other in used if term.name(other) in ("mul", "div", "bmm"))


def _picks(term: LossTerm, at: int) -> bool:
    """Whether an operation picks the classes of the targets."""
    named = term.name(at)
    return named == "nll_loss" or (named == "mul" and "constant" in (term.operations[at].get("of") or ()))


def _twice(term: LossTerm, at: int, functions: set[str]) -> Iterable[_Found]:
    name, first = term.name(at), next(iter(term.sources(at)), None)
    if first is None or term.name(first) != ("sigmoid" if name == "sigmoid" else "softmax"):
        return
    # Of these functions another rule tells.
    if name == "log_softmax" and "cross_entropy" in functions:
        return
    if name != "sigmoid" and term.operations[at].get("size") != term.operations[first].get("size"):
        return
    symptom = "sigmoid_before_loss" if name == "sigmoid" else "softmax_before_loss"
    what = f"{_words(name)} takes the result of {_words(term.name(first))} on its way to the loss"
    yield _Found(Severity.WARNING, symptom, what, evidence={"operation": term.name(first)})


def _clamped(term: LossTerm, at: int, floor: float) -> Iterable[_Found]:
    each, source = term.operations[at], next(iter(term.sources(at)), None)
    low, high = each.get("min"), each.get("max")
    if source is None or low is None or high is None or term.name(source) not in _LAYERS:
        return
    takers = [term.operations[other] for other in term.takers.get(at, ())]
    if len(term.takers.get(source, ())) > 1 or not takers:
        return
    if not all(other.get("operation") in (*_NORMALIZING, "binary_cross_entropy_with_logits") for other in takers):
        return
    classes = max((int(other.get("size") or 2) for other in takers), default=2)
    least = math.log1p((classes - 1) * math.exp(-(high - low) if classes > 2 else -max(high, -low)))
    if least > floor and classes > 1:
        message = f"logits are clamped to {low:g} to {high:g}: no sample can get a loss below {least:.2g}"
        yield _Found(Severity.WARNING, "targets_beyond_output", message, least, floor)


def _broadcast(term: LossTerm, at: int) -> Iterable[_Found]:
    each, source = term.operations[at], next(iter(term.sources(at)), None)
    if source is None or each.get("of", ()).count("constant") != 1:
        return
    given, shape = list(each.get("from") or ()), term.shape(at)
    rows = shape[0] if shape else 0
    pairs = len(shape) == 2 and shape == [rows, rows] and rows > 1
    if not pairs or given not in ([rows, 1], [rows]) or term.shape(source) != [rows, 1]:
        return
    if not any(term.name(other) in _DISTANCES for other in term.takers.get(at, ())):
        return
    target = f"({rows},)" if given == [rows, 1] else f"({rows}, 1)"
    message = (
        f"predictions of shape {tuple(given)} minus targets of shape {target} are differences of shape {tuple(shape)}: "
        f"each prediction is compared with every target"
    )
    evidence = {"function": "the difference", "prediction_shape": str(tuple(given)), "target_shape": target}
    yield _Found(Severity.ERROR, "loss_shapes_broadcast", message, float(rows * rows), float(rows), evidence)


def _raw_logarithms(terms: list[LossTerm]) -> Iterable[_Found]:
    """Layers all of whose results go into a logarithm without becoming probabilities."""
    uses: dict[str, set[str]] = {}
    for term in terms:
        for at, each in enumerate(term.operations):
            if each.get("layer") is None:
                continue
            takers = set() if term.whole else {"unknown"}
            waiting = [at]
            while waiting:
                for other in term.takers.get(waiting.pop(), ()):
                    if term.shifted(other):
                        waiting.append(other)
                    else:
                        # Differences of logarithms are a distance on a scale of ratios.
                        weighed = all(term.name(each) in _WEIGHED for each in term.takers.get(other, ()))
                        takers.add(term.name(other) if weighed else "unknown")
            known = takers if each.get("operation") in _LAYERS else {*takers, "unknown"}
            uses.setdefault(str(each["layer"]), set()).update(known)
    for layer, takers in uses.items():
        if takers == {"log"}:
            message = f"the loss takes the logarithm of what {layer} gives: these are raw outputs, not probabilities"
            evidence = {"function": "a logarithm", "operation": "weighted sum"}
            yield _Found(Severity.WARNING, "not_probabilities", message, evidence=evidence)


def _summed(term: LossTerm) -> int:
    """Samples that a term is the sum of, after its division by a number; 0 for a mean."""
    if not term.operations:
        return 0
    last = term.operations[-1]
    given, rows = term.sources(len(term.operations) - 1), int(last.get("rows") or 1)
    is_sum = last.get("reduction") == "sum" or (
        last.get("operation") == "sum" and last.get("elements", 1) > 1 and given and len(term.shape(given[0])) > 0
    )
    if not is_sum or rows < 4 or term.coefficient is None:
        return 0
    return rows if abs(term.coefficient) * rows >= max(4, rows / 2) else 0


def _words(operation: str) -> str:
    return f"a {operation.replace('log_', 'log-')}"
