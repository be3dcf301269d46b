"""MisplacedActivation: a softmax between layers, or a ReLU on the logits of a classification."""

from __future__ import annotations

from collections.abc import Iterable

from watchglass.records import Finding, Mode, ModuleKind, facts
from watchglass.rules import signals
from watchglass.rules.graph import forward
from watchglass.rules.graph.forward import WEIGHTED_SUMS, ForwardGraph
from watchglass.rules.graph.terms import Made, terms_of
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule
from watchglass.tables import StepView

#: What may lie beside a softmax without a purpose; noise or a temperature has one, and so has a product.
_BESIDE = frozenset({"softmax", "log_softmax"})
_LAYERS = (ModuleKind.LINEAR.value, ModuleKind.CONVOLUTION.value)


class MisplacedActivation(Rule):
    """An activation removes information that the next layer or the loss needs.

    Looks at: the operations between layers, and from the last layer to the loss, in autograd's graph.
    Fires when: a softmax is the only connection from one linear layer or convolution to the next: it passes on positive
        values that add up to one, and little gradient. The rule does not report attention, gates, experts and pooling,
        which multiply other values by a softmax. Nor does it report a softmax with noise or a temperature, or one that
        weighs rows of a table. Or a ReLU makes the logits of a softmax loss: a class whose logit is zero gets no
        gradient.
    Usual causes: a softmax inside a model, a loop that puts an activation after each layer, the last one included.
    What to try: a ReLU, GELU or tanh between layers; no activation after the last layer.
    Costs: the facts forward_graph and loss_graph, read at a few captured steps.
    Source: exact.
    """

    idle_at_plain_steps = True
    needs = (
        Needs(facts=("forward_graph",), why="to see what lies between layers"),
        Needs(facts=("loss_graph",), optional=True, why="to see what makes the logits"),
    )

    def check(self, view: StepView) -> Iterable[Finding]:
        """Findings at a step with a new graph."""
        yield from self._between(view, forward.at(view))
        for fact in view.facts(facts.TermsOfLoss) if view.mode is Mode.TRAIN else ():
            for term in terms_of(fact):
                yield from self._before_loss(view, term.results)

    def finish(self, view: StepView) -> Iterable[Finding]:
        """The judgement of a run that ended before its modules were known."""
        yield from self._between(view, forward.at_end(view))

    def applicable(self, view: StepView) -> str:
        """Not where a part of the graph is hidden."""
        return forward.hidden(view)

    def _between(self, view: StepView, graph: ForwardGraph) -> Iterable[Finding]:
        if not graph.whole:
            return
        modules = signals.modules(view)
        leads = {pair.second: 0 for pair in graph.pairs}
        for pair in graph.pairs:
            leads[pair.second] += 1
        for pair in graph.pairs:
            first, second = graph.layers[pair.first], graph.layers[pair.second]
            if "softmax" not in pair.kinds or leads[pair.second] > 1:
                continue
            beside = pair.between - _BESIDE
            if not pair.kinds <= {"softmax", "drops", "normalizes"} or beside & {"product", "scale", "residual"}:
                continue
            # A table of rows is a parameter of the model itself, or an embedding.
            of_modules = all(modules.get(each.module, ("",))[0] in _LAYERS for each in (first, second))
            if of_modules and first.operation in WEIGHTED_SUMS and second.operation in WEIGHTED_SUMS:
                yield self._finding(
                    view,
                    [first.name, second.name],
                    f"a softmax is the only connection from {first.module} to {second.module}: it passes on "
                    f"{first.outputs} positive values that add up to one",
                    first.module,
                    "softmax_between_layers",
                    outputs=first.outputs,
                )

    def _before_loss(self, view: StepView, results: list[Made]) -> Iterable[Finding]:
        # A softmax that weighs other results is a pooling.
        pools = any(len(set(other.sources)) > 1 for other in results)
        for each in results:
            layer = each.first.layer if each.first is not None and len(each.sources) == 1 else None
            if each.name != "relu" or layer is None or pools:
                continue
            logits = each.takers and all(other.operation.kind == "softmax" for other in each.takers)
            if logits and all(other.data.axis_of_output == 1 for other in each.takers):
                message = (
                    f"a ReLU makes the logits of the loss from {layer}: a class whose logit is zero for a sample gets "
                    "no gradient from it"
                )
                yield self._finding(view, [layer], message, layer.rpartition(".")[0], "rectified_logits")

    def _finding(
        self, view: StepView, tensors: list[str], message: str, layer: str, symptom: str, **more: int
    ) -> Finding:
        return self.finding(
            view,
            subject=symptom,
            tensors=tensors,
            message=message,
            symptoms=(symptom,),
            evidence={"layer": layer, **more},
        )
