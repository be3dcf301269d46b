"""MissingZeroGrad: gradients are never cleared, or cleared before they are used."""

from __future__ import annotations

from collections.abc import Iterable

from watchglass.config import parameter
from watchglass.records import Finding, Mode, Role, Severity, facts
from watchglass.rules.modern.call_rounds import orders_of, rounds_of
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.tables import StepView

#: Steps that are enough where a run ends.
_FEWEST = 2
#: In the fact, the lines of a script that change parameters.
_SCRIPT = "script"


class MissingZeroGrad(Rule):
    """Gradients are not cleared between updates, or are cleared before the optimizer uses them.

    Looks at: the order of backward, zero_grad and step, and gradients before the first backward of captured steps.
    Fires when: `patience` steps after gradients of an update were found before the next backward, no call has cleared
        those of this optimizer or of a module that has its parameters. If every update has one backward and the same
        optimizers, it is also enough to find such gradients `repeats` times, whichever calls cleared them, as with
        zero_grad once per epoch. For updates that the script writes itself, each examined gradient must be left over.
        Or zero_grad comes between the last backward and the step in every recorded order; or backward runs, and no
        parameter of the only optimizer, which holds all of them, has a gradient when it steps. Accumulation over
        micro-batches, closures, and gradients that are cleared without zero_grad are not reported.
    Usual causes: zero_grad is missing, is called on another optimizer, or comes after backward.
    What to try: zero_grad, backward, step, in this order, once per update.
    Costs: the facts calls (below a microsecond per call) and leftover_gradients (four gradients at captured steps).
    Source: the order is exact: PyTorch documentation of Optimizer.zero_grad; house: `patience`.
    """

    needs = (
        Needs(facts=("calls",), optional=True, why="to see the order of zero_grad, backward and step"),
        Needs(facts=("leftover_gradients",), optional=True, why="to see whether gradients are left over"),
        Needs(facts=("membership",), optional=True, why="to see whether an optimizer finds gradients"),
        Needs(role=Role.GRADIENT, statistics=("l2",), optional=True, why="to see whether there are any"),
    )

    patience: int = parameter(4, help="training steps after which the mistake is certain", unit="steps", ge=1)

    repeats: int = parameter(3, help="times that gradients are found after they were cleared", ge=2)

    #: By optimizer the step since which gradients are left over, and how many of those examined.
    left: dict[str, list[int]] = state(dict)
    #: By optimizer how often gradients were left over where they had not been before.
    times: dict[str, int] = state(dict)
    #: Kinds of rounds: the optimizers that step, and whether there is one backward.
    kinds: list[str] = state(list)
    #: By optimizer the step since which all its recorded orders discard gradients.
    discarding: dict[str, int] = state(dict)
    #: By optimizer the step since which none of its parameters has a gradient as it steps.
    bare: dict[str, int] = state(dict)
    #: Whether any captured step had gradients, and whether backward comes before the steps of optimizers.
    gradients: bool = state(bool)
    backward: bool = state(bool)
    #: Optimizers whose gradients some order clears.
    cleared: list[str] = state(list)

    def check(self, view: StepView) -> Iterable[Finding]:
        """At most one finding per optimizer at a TRAIN step."""
        for leftover in view.facts(facts.LeftoverGradients):
            name, found, of = leftover.optimizer, leftover.nonzero, leftover.looked_at
            # Updates that a script writes itself may be of several models, of which each clears its own gradients.
            if found == of if name == _SCRIPT else found:
                self.times[name] = self.times.get(name, 0) + (name not in self.left)
                self.left.setdefault(name, [view.model_step, found, of])
            else:
                self.left.pop(name, None)
        for calls in view.facts(facts.Calls):
            self._take(view, calls)
        for membership in view.facts(facts.Membership):
            self._take_membership(view, membership)
        if view.mode is Mode.TRAIN:
            self.gradients = self.gradients or bool(len(view.statistics(Role.GRADIENT)))
            yield from self._judge(view, self.patience)

    def finish(self, view: StepView) -> Iterable[Finding]:
        """The last judgement, of a run that may have ended at once by values that are not finite."""
        yield from self._judge(view, min(self.patience, _FEWEST))

    def _judge(self, view: StepView, patience: int) -> Iterable[Finding]:
        for name, (since, found, of) in self.left.items():
            if name == _SCRIPT and view.several:
                continue
            plain = len(self.kinds) == 1 and self.kinds[0].startswith("one ")
            certain = view.model_step - since >= patience or (plain and self.times[name] >= self.repeats)
            if certain and (plain or name not in self.cleared):
                yield self._never_cleared(view, name, since, found, of)
        for name, since in self.discarding.items():
            if view.model_step - since >= patience:
                yield self._discarded(view, name)
        for name, since in self.bare.items() if self.backward and not self.gradients else ():
            if view.model_step - since >= patience and name not in self.discarding:
                yield self._discarded(view, name)

    def applicable(self, view: StepView) -> str:
        """Not where neither calls nor gradients were observed."""
        seen = any(view.latest_fact(kind) is not None for kind in (facts.Calls, facts.LeftoverGradients))
        return "" if seen else "the facts calls and leftover_gradients never came (needed to see what is cleared)"

    def _take(self, view: StepView, fact: facts.Calls) -> None:
        rounds = rounds_of(fact)
        self.backward = self.backward or any("backward" in each.calls for each in rounds)
        for each in rounds:
            kind = f"{'one' if each.calls.count('backward') == 1 else 'other'} {' '.join(sorted(each.stepped()))}"
            if kind not in self.kinds and len(self.kinds) < 2:
                self.kinds.append(kind)
        # Gradients that are cleared unused are those of other backwards, as of adversarial examples.
        between = [each for each in orders_of(fact) if each.unused()]
        if between and "others" not in self.kinds:
            self.kinds.append("others")
        modules = fact.objects_of("module")
        alone = len(modules) == len(fact.objects_of("optimizer")) == 1
        for name in fact.objects_of("optimizer"):
            own = [each for each in rounds if name in each.stepped()]
            clearing = [f"{name}.zero_grad", *(["module.zero_grad"] if alone else [])]
            if own and all(each.discards(name, clearing) for each in own):
                self.discarding.setdefault(name, view.model_step)
            elif own:
                self.discarding.pop(name, None)
            # A model of which it holds no parameter is another one, as the discriminator is for a generator's.
            its = [module for module, row in modules.items() if row.optimizers is None or name in row.optimizers]
            if name not in self.cleared and any(each.clears(name, its) for each in (*rounds, *between)):
                self.cleared.append(name)

    def _take_membership(self, view: StepView, fact: facts.Membership) -> None:
        held, without, left_out = fact.of_stepped, fact.without_gradient, fact.left_out
        if held is None or without is None or left_out is None:
            return
        # Of several optimizers, or of other parameters, a backward may reach those of another one.
        alone = len(fact.optimizers) == 1 and left_out.count == 0
        if alone and 0 < held.trainable <= without.count:
            self.bare.setdefault(fact.stepped, view.model_step)
        else:
            self.bare.pop(fact.stepped, None)

    def _never_cleared(self, view: StepView, name: str, since: int, found: int, of: int) -> Finding:
        of_what = "that the script's own updates use" if name == _SCRIPT else f"of {name}"
        return self.finding(
            view,
            severity=Severity.ERROR,
            subject=name,
            value=float(found),
            limit=0.0,
            message=f"gradients {of_what} are {'not' if name in self.cleared else 'never'} cleared between updates: "
            f"before the first backward of step {since}, {found} of {of} examined ones still held those of earlier "
            f"steps{'' if name in self.cleared else f', and no zero_grad was called up to step {view.mode_step}'}",
            symptoms=("gradients_left_over",),
            evidence={**({} if name == _SCRIPT else {"optimizer_name": name}), "examined": of, "since": since},
        )

    def _discarded(self, view: StepView, name: str) -> Finding:
        return self.finding(
            view,
            severity=Severity.ERROR,
            subject=f"{name} discards",
            message=(
                f"zero_grad comes between backward and the step of {name}, so its updates use no gradients, "
                if name in self.discarding
                else f"backward runs, and no parameter of {name} has a gradient when it steps, "
            )
            + f"up to step {view.mode_step}",
            symptoms=("gradients_cleared_before_step",),
            evidence={"optimizer_name": name},
        )
