"""UpdateAgainstGradient: the optimizer raises the loss instead of lowering it."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from watchglass.config import parameter
from watchglass.records import Finding, Mode, ModuleKind, Role, Severity, facts
from watchglass.rules import signals
from watchglass.rules.graph.growth import falls_without_limit
from watchglass.rules.graph.misfit import sign_of
from watchglass.rules.graph.reversed_parts import reversed_hinge, reversed_part
from watchglass.rules.graph.terms import terms_of
from watchglass.rules.modern.sampled_updates import SampledUpdates, sampled_updates, share
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.stats import median
from watchglass.tables import StepView

#: Latest values of a loss function that are compared with its first ones.
_LATEST = 8
#: The negative of a loss that is no loss function's.
_UNNAMED = "minus the loss"
#: Relative spread of what is the same number up to rounding.
_SAME = 1e-3
#: Cosine of an update that is a multiple of the gradient, and share of its start to which a loss has fallen that falls.
_EXACT, _FALLEN = 0.99, 0.9
_HINGE = (
    "the loss is a hinge on one plus a number for each sample times its output: if the numbers are targets, it is zero "
    "where outputs have the sign opposite to their targets"
)


class UpdateAgainstGradient(Rule):
    """The sign of the loss is flipped: the optimizer raises a value that should fall.

    Looks at: the loss that backward starts from, compared with the result of the loss function (or with the operations
        that compute it); the sign of the cosine between sampled updates and gradients; `maximize`.
    Fires when: one of these holds. The rule skips models that are trained in turns with others (a generator against its
        critic), inputs that are trained instead of weights (adversarial examples), rewards, and losses that may be
        negative by definition.
        * Backward starts from a negative multiple of a loss function (the same one at `patience` steps), or from a loss
        that falls with the distance to targets or rises with their likelihood. Or the updates of most layers, without
        decay, go along their gradients in `samples` samples in a row (in one sample, if it leaves no doubt). The loss
        function (or the loss) has risen to `rise` times its start: an `error`. If it has not risen so far, and has not
        fallen at the end of the run, it is a `warning`.
        * The loss has a part that falls without limit while outputs grow, faster than all other parts of the same
        outputs rise (minus a square, plus a log-density, minus the divergence of a variational autoencoder, minus the
        loss of an auxiliary head), and is far below zero.
        * A hinge loss is that of one plus target times output, so that outputs get the sign opposite to their targets.
        The graph does not show whether a script has negated the targets before.
        * A part of the loss has the wrong sign whatever the data are: a penalty on weights is subtracted, PPO's clipped
        objective is lowered, or cross entropy takes distances, or minus the similarities within a batch, as logits.
    Usual causes: a minus sign in front of the loss, `maximize=True`, an update that adds the gradient.
    What to try: remove the minus sign, or `maximize=True`.
    Costs: the fact update_sample, 0.05 ms for each of at most 32 parameters at steps 8 to 64 apart.
    Source: exact for plain SGD and for the multiple; house: `rise`, `samples`, `patience`.
    """

    needs = (
        Needs(facts=("update_sample",), optional=True, why="to compare updates with gradients"),
        Needs(facts=("loss_graph",), optional=True, why="to see the sign of a loss that the script writes itself"),
        Needs(scalars=("loss",), why="to see which way the loss goes"),
    )
    modes = (Mode.TRAIN,)

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
    #: -1 where the loss, by its graph, falls with the misfit, 1 where it grows; 0 where that is not known.
    sign: int = state(int)
    #: Whether, by its graph, the loss falls without limit while outputs grow.
    endless: bool = state(bool)
    #: Whether, by its graph, it is a reversed hinge; and what is wrong about the sign of another part.
    hinge: bool = state(bool)
    part: str = state(str)
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
        for fact in view.facts(facts.TermsOfLoss):
            terms = terms_of(fact)
            data = [term for term in terms if term.of_data]
            self.sign, self.hinge = sign_of(data), reversed_hinge(data)
            self.part = reversed_part(terms)
            known = len(terms) == (fact.terms_count or len(terms))
            self.endless = known and falls_without_limit(terms)
        loss = signals.loss(view)
        if loss is not None and math.isfinite(loss):
            signals.remember_start(self.losses, loss, _LATEST)
            self.recent = [*self.recent[1 - _LATEST :], loss]
            self._compare(view, loss)
        first = view.model_step == 0 and not signals.resumed(view)
        for sample in sampled_updates(view, vectors=True) if not signals.skipped(view) else ():
            self._take(sample, first=first)
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
        if self.sign < 0:
            name, value = _UNNAMED, -loss
        elif len(self.functions) > 1 or (not made and (self.functions or not self.sign)):
            return  # several, or results that are not recorded at this step
        else:
            name, value = next(iter(made.items()), (_UNNAMED, loss))
        self.of_function = value > 0 and loss > 0
        multiple = loss / value if (value > 0 and loss < 0) or (self.sign < 0 and value) else 0.0
        same = name == self.function and abs(multiple - self.multiple) <= _SAME * abs(self.multiple)
        if not multiple or not (same or not self.steps):
            self.steps, self.start = 0, []
            return
        self.function, self.multiple, self.steps = name, multiple, self.steps + 1
        signals.remember_start(self.start, value, _LATEST)
        self.latest = [*self.latest[1 - _LATEST :], value]

    def _take(self, sample: SampledUpdates, *, first: bool) -> None:
        self.of_modules = self.of_modules or bool(np.any(sample["layer"] >= 0))
        cosine = sample["cosine_gradient"]
        known = np.isfinite(cosine)
        if known.any():
            self.maximizes = any(each.maximize for each in sample.settings)
            # The first update of an optimizer has no momentum.
            limit = 0.0 if self.maximizes else self.certain if first else _EXACT
            alone = share(cosine > limit, known) == 1.0
            climbs = share(cosine > self.certain, known) > 0.5
            self.climbing = max(self.climbing + 1, self.samples if alone else 0) if climbs else 0

    def _judge(self, view: StepView, *, last: bool) -> Iterable[Finding]:
        if view.several:
            return
        if self.hinge or self.part:
            yield self._finding(view, _HINGE if self.hinge else self.part)
            return
        fallen = list(self._of_endless(view)) if self.endless and self.steps == 0 else []
        if fallen:
            yield from fallen
            return
        # A run may end before, with a loss that is not finite.
        patience = min(self.patience, len(self.losses)) if last else self.patience
        negated = self.steps >= max(patience, 1) and self._trains_modules(view)
        climbs = self.climbing >= self.samples and self.of_modules
        if negated == climbs or (climbs and self.maximizes and not self.of_function):
            return  # neither; or the optimizer climbs a reward, or the negative of a loss function, which is descent
        start, now = (self.start, self.latest) if negated else (self.losses, self.recent)
        if not start or not now or (min(*start, *now) <= 0 and not (negated and self.sign < 0)):
            return  # a reward that is climbed
        first, value = median(start[:3]), median(now)
        # A similarity has a negative misfit.
        risen = value - first >= (self.rise - 1) * abs(first) or now[-1] >= self.rise * self.rise * abs(first)
        if not risen and not (last and value >= first - (1 - _FALLEN) * abs(first)):
            return
        what = self.function.removeprefix("loss/") if negated else "the loss"
        went = "has risen" if risen else "has not fallen"
        values = f"it {went}, from {first:.3g} to {value:.3g} at step {view.mode_step}"
        if negated and self.function == _UNNAMED:
            went = "has fallen" if risen else "has not risen"
            values = f"it {went}, from {-first:.3g} to {-value:.3g} at step {view.mode_step}"
            message = f"by its operations, the loss falls as outputs fit their targets less: {values}"
        elif negated:
            message = f"backward starts from {self.multiple:.3g} times {what}, so the optimizer raises {what}: {values}"
        else:
            how = "maximize is set" if self.maximizes else "updates of most layers go along their gradients"
            message = f"{how}, so the optimizer raises {what}: {values}"
        yield self._finding(view, message, value, first, Severity.ERROR if risen else Severity.WARNING)

    def _of_endless(self, view: StepView) -> Iterable[Finding]:
        """A finding where a loss that has no limit has fallen far below zero."""
        if len(self.losses) < _LATEST or len(self.recent) < _LATEST or not self._trains_modules(view):
            return
        first, value = median(self.losses[:3]), median(self.recent)
        if value >= 0 or -value < self.rise * self.rise * abs(first) or max(self.recent) > min(self.losses):
            return
        message = (
            f"by its operations the loss falls without limit while the outputs grow, as one does with a part "
            f"of the wrong sign: it was {first:.3g} at the start, and is {value:.3g} at step {view.mode_step}"
        )
        yield self._finding(view, message, value, first)

    def _finding(
        self,
        view: StepView,
        message: str,
        value: float | None = None,
        limit: float | None = None,
        severity: Severity = Severity.WARNING,
    ) -> Finding:
        return self.finding(
            view,
            severity=severity,
            subject="sign",
            tensors=["loss"],
            value=value,
            limit=limit,
            message=message,
            symptoms=("hinge_reversed" if message is _HINGE else "update_climbs_loss",),
            evidence=signals.evidence(view),
        )

    def _trains_modules(self, view: StepView) -> bool:
        """Whether weights of a model are trained, not its inputs; assumed where no sample shows it."""
        fact = view.latest_fact(facts.UpdateSample)
        return self.of_modules or fact is None or ModuleKind.EMBEDDING.value in fact.kind
