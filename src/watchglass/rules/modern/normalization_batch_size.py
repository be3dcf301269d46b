"""NormalizationBatchSize: batch normalisation takes statistics of one or two values."""

from __future__ import annotations

from collections.abc import Iterable

from watchglass.config import parameter
from watchglass.records import Finding, Mode, facts
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.tables import StepView


class NormalizationBatchSize(Rule):
    """Batch normalisation in training uses one or two values per channel.

    Looks at: the number of values per channel that batch normalisation takes (samples times positions), in autograd's
        graph.
    Fires when: at least half of the batch normalisations have at most two values per channel, at the last reading of
        the graph in `patience` captured steps, or at the end of a shorter run. With two values, one becomes -1 and the
        other 1, whatever they were.
    Usual causes: a batch size of one or two, a batch that is split over many devices or micro-batches.
    What to try: larger batches, group or layer normalisation; SyncBatchNorm where devices share a batch.
    Costs: the fact forward_graph, read at a few captured steps.
    Source: exact; Wu and He, Group Normalization, ECCV 2018; house: `patience`.
    """

    idle_at_plain_steps = True
    needs = (Needs(facts=("forward_graph",), why="to see the sizes"),)

    patience: int = parameter(4, help="captured steps", unit="captures", ge=1)

    fired: bool = state(bool)

    def check(self, view: StepView) -> Iterable[Finding]:
        """At most one finding."""
        for fact in view.facts(facts.ForwardLayers):
            # It is recorded again at the fourth captured step.
            if view.mode is Mode.TRAIN and fact.capture >= self.patience:
                yield from self._judged(view, fact)

    def finish(self, view: StepView) -> Iterable[Finding]:
        """The judgement of a short run."""
        fact = view.latest_fact(facts.ForwardLayers)
        if fact is not None:
            yield from self._judged(view, fact)

    def applicable(self, view: StepView) -> str:
        """Not without a batch normalisation in training mode."""
        fact = view.latest_fact(facts.ForwardLayers)
        none = fact is not None and not fact.batch_normalizations_count
        return "no batch normalisation in training mode shows in the graph" if none else ""

    def _judged(self, view: StepView, fact: facts.ForwardLayers) -> Iterable[Finding]:
        few = fact.batch_normalizations
        if self.fired or not few or 2 * len(few) < fact.batch_normalizations_count:
            return
        self.fired = True
        values, batch = few[0].values, few[0].batch
        yield self.finding(
            view,
            subject="batch normalisation",
            tensors=[each.name for each in few[:8] if each.name],
            value=float(values),
            limit=2.0,
            message=f"batch normalisation takes mean and variance of {values} values per channel, from batches of "
            f"{batch}",
            symptoms=("few_values_normalized",),
            evidence={"batch_size": batch},
        )
