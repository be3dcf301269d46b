"""ActivationMissing: the layers of a model have nothing non-linear between them."""

from __future__ import annotations

from collections.abc import Iterable

from watchglass.config import parameter
from watchglass.records import Finding, ModuleKind
from watchglass.rules import signals
from watchglass.rules.graph import forward
from watchglass.rules.graph.forward import WEIGHTED_SUMS, ForwardGraph
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule
from watchglass.tables import StepView

_WITH_WEIGHTS = (ModuleKind.LINEAR.value, ModuleKind.CONVOLUTION.value, ModuleKind.RECURRENT.value)


class ActivationMissing(Rule):
    """Consecutive layers have nothing non-linear between them, in the whole model or most of it.

    Looks at: the operations between layers, in autograd's graph.
    Fires when: no layer of the model is followed by an activation before the next, and at least two layers in a row
        compute nothing that a single one could not. Or at least `run` such pairs follow each other without
        normalisation, and they are at least `share` of all pairs. A hidden layer that is narrower than its input and
        its output is a deliberate factorisation. Normalisation, dropout and pooling do not count as activations;
        products of two results (gates, attention) do. The rule skips models with frozen or hidden layers, and
        recurrences.
    Usual causes: forgotten activations, one activation module that is not called, a list of layers without them.
    What to try: put a ReLU, GELU or tanh after each hidden layer.
    Costs: the fact forward_graph, read at a few captured steps.
    Source: exact; house: `run`, `share`.
    """

    idle_at_plain_steps = True
    needs = (Needs(facts=("forward_graph",), why="to see what lies between layers"),)

    run: int = parameter(3, help="pairs of layers in a row", unit="pairs", ge=1)
    share: float = parameter(0.5, help="share of the pairs of layers that have nothing between them", gt=0, le=1)

    def check(self, view: StepView) -> Iterable[Finding]:
        """At most one finding at a step with a new graph."""
        yield from self._of(view, forward.at(view))

    def finish(self, view: StepView) -> Iterable[Finding]:
        """The judgement of a run that ended before its modules were known."""
        yield from self._of(view, forward.at_end(view))

    def _of(self, view: StepView, graph: ForwardGraph) -> Iterable[Finding]:
        if graph.whole and not _hidden(view, graph):
            yield from self._judged(view, graph)

    def applicable(self, view: StepView) -> str:
        """Not where a part of the graph is hidden."""
        return forward.hidden(view)

    def _judged(self, view: StepView, graph: ForwardGraph) -> Iterable[Finding]:
        bare = [pair for pair in graph.pairs if graph.superfluous(pair)]
        # A layer that feeds itself is a recurrence: a linear system in time.
        if not bare or any(graph.layers[pair.first].name == graph.layers[pair.second].name for pair in graph.pairs):
            return
        sums = all(layer.operation in (*WEIGHTED_SUMS, "embedding") for layer in graph.layers)
        whole = sums and all(pair.linear for pair in graph.pairs)
        longest: dict[int, int] = {}
        for pair in sorted(bare, key=lambda pair: pair.second):
            if not pair.kinds & {"normalizes"} and "residual" not in pair.between:
                longest[pair.second] = max(longest.get(pair.second, 0), longest.get(pair.first, 0) + 1)
        run = max(longest.values(), default=0)
        if not (whole or (run >= self.run and run >= self.share * len(graph.pairs))):
            return
        first = graph.layers[bare[0].first]
        second = graph.layers[bare[0].second]
        where = "the model" if whole else f"{run + 1} layers in a row"
        yield self.finding(
            view,
            subject="activations",
            tensors=[first.name, second.name],
            value=float(len(bare)),
            limit=0.0,
            message=f"nothing non-linear lies between {first.name} and {second.name}: {where} with "
            f"{len({layer.name for layer in graph.layers})} layers can do no more than "
            f"{'one linear layer' if whole else 'one of them'}",
            symptoms=("no_activation_between",),
            evidence={"layer": first.module or first.name},
        )


def _hidden(view: StepView, graph: ForwardGraph) -> bool:
    """Whether the model has layers that the graph does not show: frozen ones, or those of another branch."""
    shown = {layer.module for layer in graph.layers}
    return any(kind in _WITH_WEIGHTS and path not in shown for path, (kind, _) in signals.modules(view).items())
