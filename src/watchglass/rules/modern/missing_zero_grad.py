"""MissingZeroGrad: gradients are never cleared, or cleared before they are used."""

from __future__ import annotations

from collections.abc import Iterable

from watchglass.config import parameter
from watchglass.records import Fact, Finding, Mode, Severity
from watchglass.rules.modern.call_rounds import objects_of, orders_of, rounds_of
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.tables import StepView

#: In the fact, the lines of a script that change parameters.
_SCRIPT = "script"


class MissingZeroGrad(Rule):
    """Gradients are not cleared between updates, or are cleared before the optimizer uses them.

    Looks at: the order of backward, zero_grad and step, and gradients before the first backward of captured steps.
    Fires when: `patience` steps after gradients of an update were found before the next backward, no call has cleared
        those of this optimizer. If every update has one backward and the same optimizers, it is also enough to find
        such gradients `repeats` times, whichever calls cleared them, as with zero_grad once per epoch. For updates that
        the script writes itself, each examined gradient must be left over. Or zero_grad comes between the last backward
        and the step in every recorded order. Accumulation over micro-batches, closures, and gradients that are cleared
        without zero_grad are not reported.
    Usual causes: zero_grad is missing, is called on another optimizer, or comes after backward.
    What to try: zero_grad, backward, step, in this order, once per update.
    Costs: the facts calls (below a microsecond per call) and leftover_gradients (four gradients at captured steps).
    Source: the order is exact: PyTorch documentation of Optimizer.zero_grad; house: `patience`.
    """

    default = True
    needs = (
        Needs(facts=("calls",), optional=True, why="to see the order of zero_grad, backward and step"),
        Needs(facts=("leftover_gradients",), optional=True, why="to see whether gradients are left over"),
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
    #: Optimizers whose gradients some order clears.
    cleared: list[str] = state(list)

    def check(self, view: StepView) -> Iterable[Finding]:
        """At most one finding per optimizer at a TRAIN step."""
        for fact in view.facts("leftover_gradients"):
            name, found, of = (fact.data.get(key) for key in ("optimizer", "nonzero", "looked_at"))
            if isinstance(name, str) and isinstance(found, int) and isinstance(of, int):
                # Updates that a script writes itself may be of several models, of which each clears its own gradients.
                if found == of if name == _SCRIPT else found:
                    self.times[name] = self.times.get(name, 0) + (name not in self.left)
                    self.left.setdefault(name, [view.model_step, found, of])
                else:
                    self.left.pop(name, None)
        for fact in view.facts("calls"):
            self._take(view, fact)
        if view.mode is not Mode.TRAIN:
            return
        for name, (since, found, of) in self.left.items():
            if name == _SCRIPT and view.several:
                continue
            plain = len(self.kinds) == 1 and self.kinds[0].startswith("one ")
            certain = view.model_step - since >= self.patience or (plain and self.times[name] >= self.repeats)
            if certain and (plain or name not in self.cleared):
                yield self._never_cleared(view, name, since, found, of)
        for name, since in self.discarding.items():
            if view.model_step - since >= self.patience:
                yield self._discarded(view, name)

    def applicable(self, view: StepView) -> str:
        """Not where neither calls nor gradients were observed."""
        seen = any(view.latest_fact(kind) is not None for kind in ("calls", "leftover_gradients"))
        return "" if seen else "the facts calls and leftover_gradients never came (needed to see what is cleared)"

    def _take(self, view: StepView, fact: Fact) -> None:
        rounds = rounds_of(fact)
        for each in rounds:
            kind = f"{'one' if each.calls.count('backward') == 1 else 'other'} {' '.join(sorted(each.stepped()))}"
            if kind not in self.kinds and len(self.kinds) < 2:
                self.kinds.append(kind)
        # Gradients that are cleared unused are those of other backwards, as of adversarial examples.
        between = [each for each in orders_of(fact) if each.unused()]
        if between and "others" not in self.kinds:
            self.kinds.append("others")
        alone = len(objects_of(fact, "module")) == len(objects_of(fact, "optimizer")) == 1
        for name in objects_of(fact, "optimizer"):
            own = [each for each in rounds if name in each.stepped()]
            clearing = [f"{name}.zero_grad", *(["module.zero_grad"] if alone else [])]
            if own and all(each.discards(name, clearing) for each in own):
                self.discarding.setdefault(name, view.model_step)
            elif own:
                self.discarding.pop(name, None)
            if name not in self.cleared and any(each.clears(name) for each in (*rounds, *between)):
                self.cleared.append(name)

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
            message=f"zero_grad comes between backward and the step of {name}, so its updates use no gradients, "
            f"up to step {view.mode_step}",
            symptoms=("gradients_cleared_before_step",),
            evidence={"optimizer_name": name},
        )
