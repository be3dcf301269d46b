"""UpdateAgainstGradient: the optimizer climbs the loss instead of descending it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from watchglass.config import parameter
from watchglass.records import Finding, Mode, Role, Severity
from watchglass.rules import signals
from watchglass.rules.modern.sampled_updates import SampledUpdates, sampled_updates, share
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.stats import median
from watchglass.tables import StepView

#: Latest values of a loss function that are compared with its first ones.
_LATEST = 8
#: A loss that is no loss function's.
_UNNAMED = "the loss without its sign"
#: Relative spread of what is the same number up to rounding.
_SAME = 1e-3


class UpdateAgainstGradient(Rule):
    """The sign of the loss is flipped: the optimizer drives up what should fall.

    Looks at: the loss that backward starts from beside the result of the loss function that it is made of (or the
        operations that make it), the sign of the cosine between sampled updates and gradients, and `maximize`.
    Fires when: backward starts from a negative multiple of a loss function, or of distances to targets (the same one at
        `patience` steps), or updates of most layers go along their gradients in `samples` samples in a row, decay left
        out; and that loss function (or the loss) has risen `rise`-fold over its start. This is an `error`. If it does
        not rise so far, it is a `warning` at the end of the run where it has not fallen. Models that are trained in
        turns with others (a generator against its critic), inputs that are trained instead of weights (adversarial
        examples), rewards, and losses that may be negative by themselves are not reported.
    Usual causes: a minus sign in front of the loss, `maximize=True`, an update that adds the gradient.
    What to try: remove the minus sign, or `maximize=True`.
    Costs: the fact update_sample, 0.05 ms for each of at most 32 parameters at steps 8 to 64 apart.
    Source: exact for plain SGD and for the multiple; house: `rise`, `samples`, `patience`.
    """

    default = True
    needs = (
        Needs(facts=("update_sample",), optional=True, why="to compare updates with gradients"),
        Needs(facts=("loss_graph",), optional=True, why="to see the sign of a loss that the script writes itself"),
        Needs(scalars=("loss",), why="to see which way the loss goes"),
    )

    rise: float = parameter(1.5, help="loss function over its start", unit="ratio", gt=1)
    samples: int = parameter(2, help="samples in a row with updates along the gradient", unit="samples", ge=1)
    patience: int = parameter(8, help="steps with the same negative multiple", unit="steps", ge=2)
    certain: float = parameter(0.1, help="cosine above which an update goes along the gradient", unit="ratio", ge=0)

    #: The loss function that the loss is a negative multiple of, this multiple, and steps with it; the first values.
    function: str = state(str)
    multiple: float = state(float)
    steps: int = state(int)
    start: list[float] = state(list)
    latest: list[float] = state(list)
    #: Sign of the loss where it is, by its graph, a multiple of what is never negative; 0 where that is not known.
    sign: int = state(int)
    #: Names of the loss functions that made it.
    functions: list[str] = state(list)
    #: Samples in a row that go along the gradient, and whether the optimizer is meant to climb.
    climbing: int = state(int)
    maximizes: bool = state(bool)
    #: Whether a loss function alone makes the loss. First losses and latest ones.
    of_function: bool = state(bool)
    losses: list[float] = state(list)
    recent: list[float] = state(list)
    #: Whether weights of modules are trained.
    of_modules: bool = state(bool)

    def check(self, view: StepView) -> Iterable[Finding]:
        """At most one finding at a TRAIN step."""
        if view.mode is not Mode.TRAIN:
            return
        for fact in view.facts("loss_graph"):
            self.sign = _sign(fact.data.get("terms"))
        loss = signals.loss(view)
        if loss is not None and math.isfinite(loss):
            signals.remember_start(self.losses, loss, _LATEST)
            self.recent = [*self.recent[1 - _LATEST :], loss]
            self._compare(view, loss)
        for sample in sampled_updates(view) if not signals.skipped(view) else ():
            self._take(sample)
        yield from self._judge(view, last=False)

    def finish(self, view: StepView) -> Iterable[Finding]:
        """The last judgement."""
        yield from self._judge(view, last=True)

    def _compare(self, view: StepView, loss: float) -> None:
        """Is the loss the negative of what a loss function gave?"""
        made = {name: value for name, value in view.scalars(Role.LOSS).items() if name.startswith("loss/")}
        made.pop("loss/handwritten", None)
        if made:
            self.functions = list(made)[:2]
        if len(self.functions) > 1 or (not made and (self.functions or not self.sign)):
            return  # several, or results that are not recorded at this step
        name, value = next(iter(made.items()), (_UNNAMED, loss * self.sign))
        self.of_function = value > 0 and loss > 0
        multiple = loss / value if value > 0 and loss < 0 else 0.0
        same = name == self.function and abs(multiple - self.multiple) <= _SAME * abs(self.multiple)
        if not multiple or not (same or not self.steps):
            self.steps, self.start = 0, []
            return
        self.function, self.multiple, self.steps = name, multiple, self.steps + 1
        signals.remember_start(self.start, value, _LATEST)
        self.latest = [*self.latest[1 - _LATEST :], value]

    def _take(self, sample: SampledUpdates) -> None:
        self.of_modules = self.of_modules or bool(np.any(sample["layer"] >= 0))
        cosine = sample["cosine_gradient"]
        known = np.isfinite(cosine)
        if known.any():
            self.climbing = self.climbing + 1 if share(cosine > self.certain, known) > 0.5 else 0
            self.maximizes = any(each.get("maximize") is True for each in sample.settings)

    def _judge(self, view: StepView, *, last: bool) -> Iterable[Finding]:
        if view.several:
            return
        negated = self.steps >= self.patience and self._trains_modules(view)
        meant = self.maximizes and not self.of_function  # a reward
        climbs = self.climbing >= self.samples and self.of_modules and not meant
        if negated == climbs:
            return  # neither; or the optimizer climbs the negative of a loss function, which is descent
        start, now = (self.start, self.latest) if negated else (self.losses, self.recent)
        if not start or not now or min(*start, *now) <= 0:
            return  # a reward that is climbed
        first, value = median(start[:3]), median(now)
        risen = value >= self.rise * first or now[-1] >= self.rise * self.rise * first
        if not risen and not (last and value >= first):
            return
        what = self.function.removeprefix("loss/") if negated else "the loss"
        how = (
            f"backward starts from {self.multiple:.3g} times {what}"
            if negated
            else "maximize is set"
            if self.maximizes
            else "updates of most layers go along their gradients"
        )
        went = "has risen" if risen else "has not fallen"
        yield self.finding(
            view,
            severity=Severity.ERROR if risen else Severity.WARNING,
            subject="sign",
            tensors=["loss"],
            value=value,
            limit=first,
            message=f"{how}, so that the optimizer drives {what} up: it {went}, from {first:.3g} to {value:.3g} at "
            f"step {view.mode_step}",
            symptoms=("update_climbs_loss",),
            evidence=signals.evidence(view),
        )

    def _trains_modules(self, view: StepView) -> bool:
        """Whether weights of a model are trained, not its inputs; assumed where no sample shows it."""
        return self.of_modules or view.latest_fact("update_sample") is None


#: Operations whose results are never below zero, and those that only arrange or average.
_DISTANCES = ("abs", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "nll_loss", "cross_entropy",
              "binary_cross_entropy", "binary_cross_entropy_with_logits")  # fmt: skip
_AVERAGES = ("mean", "sum", "view", "reshape", "squeeze", "unsqueeze")


def _sign(terms: Any) -> int:
    """1 or -1 where all terms of a loss that hang on data are such multiples of distances to targets, else 0."""
    data = [term for term in terms if term.get("kind") == "data"] if isinstance(terms, list) else []
    signs = {int(np.sign(term.get("coefficient") or 0)) if _is_distance(term) else 0 for term in data}
    return signs.pop() if len(signs) == 1 else 0


def _is_distance(term: dict[str, Any]) -> bool:
    operations = term.get("operations") or []
    at = len(operations) - 1
    while at >= 0 and operations[at].get("operation") in _AVERAGES:
        before = operations[at].get("of") or []
        at = before[0] if before and isinstance(before[0], int) else -1
    if at < 0:
        return False
    last = operations[at]
    before = last.get("of") or []
    if last.get("operation") in _DISTANCES[1:]:
        return True
    squared = last.get("operation") == "abs" or (last.get("operation") == "pow" and last.get("exponent") == 2)
    apart = operations[before[0]] if before and isinstance(before[0], int) else {}
    return squared and apart.get("operation") == "sub" and "constant" in (apart.get("of") or [])
