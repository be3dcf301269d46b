"""DetachedGraph: the graph is cut in the middle of a model, so the layers before the cut get no gradient."""

from __future__ import annotations

from collections.abc import Iterable

from watchglass.config import parameter
from watchglass.records import Finding, Mode, Role, facts
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.tables import StepView


class DetachedGraph(Rule):
    """Trainable parameters before a point at which the graph is cut can get no gradient.

    Looks at: which parameters the backward can reach, the modules that ran, and what they took; the parameters of the
        optimizers; gradients.
    Fires when: parameters of an optimizer belong to modules that ran with gradients on, no backward reaches them, and a
        later module took values that have no graph and are no inputs of the model. None of them may have had a gradient
        in `patience` captures, or up to the end of a shorter run.
    Usual causes: detach(), .data, item() or NumPy between two parts of a model; argmax or rounding.
    What to try: remove the detach; keep values in tensors; freeze the parameters where the cut is intended.
    Costs: the fact loss_graph, read at a few captured steps; statistics of gradients.
    Source: exact; house: `patience`.
    """

    idle_at_plain_steps = True
    needs = (
        Needs(facts=("loss_graph",), why="to see what the backward can reach"),
        Needs(role=Role.GRADIENT, statistics=("l2",), why="to see that nothing else reaches it"),
        Needs(facts=("membership",), optional=True, why="to omit what no optimizer trains"),
    )
    modes = (Mode.TRAIN,)

    patience: int = parameter(4, help="captures with gradients of other parameters", unit="captures", ge=1)

    #: Parameters out of reach at every look, and the module before which the graph is cut.
    lost: list[str] = state(list)
    count: int = state(int)
    cut_before: str = state(str)
    looked: bool = state(bool)
    captures: int = state(int)
    fired: bool = state(bool)

    def check(self, view: StepView) -> Iterable[Finding]:
        """At most one finding."""
        for fact in view.facts(facts.TermsOfLoss):
            found = fact.unreached or facts.OutOfReach()
            cut = found.cut_before
            names = [*found.names] if cut and found.ran else []
            self.lost = [name for name in self.lost if name in names] if self.looked else names
            self.count = found.count
            self.cut_before, self.looked = cut or self.cut_before, True
        if not self.lost or self.fired:
            return
        gradients = view.statistics(Role.GRADIENT)
        if len(gradients):
            self.captures += 1
            # Some frameworks make gradients of zero of what a loss does not depend on.
            rows = zip(gradients.names, gradients.l2.tolist(), strict=True)
            used = {name.removeprefix("gradient/") for name, norm in rows if norm != 0}
            self.lost = [name for name in self.lost if name not in used]
        if self.captures >= self.patience:
            yield from self._judge(view)

    def finish(self, view: StepView) -> Iterable[Finding]:
        """The judgement of a short run."""
        if self.captures:
            yield from self._judge(view)

    def _judge(self, view: StepView) -> Iterable[Finding]:
        membership = view.latest_fact(facts.Membership)
        left_out = membership.left_out.names if membership is not None and membership.left_out is not None else ()
        lost = [name for name in self.lost if name not in left_out]
        if not lost or self.fired:
            return
        self.fired = True
        total = max(self.count, len(lost))
        others = f" and {total - 1} more" if total > 1 else ""
        yield self.finding(
            view,
            subject="graph",
            tensors=lost[:16],
            value=float(total),
            limit=0.0,
            message=f"no backward can reach {lost[0]}{others}: {self.cut_before} takes values that are cut off "
            "from the graph",
            symptoms=("graph_cut",),
            evidence={"module": self.cut_before},
        )
