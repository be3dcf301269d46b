"""NoDataGradient: the loss does not depend on the weights, except through a penalty."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import takewhile

import numpy as np

from watchglass.config import parameter
from watchglass.records import Finding, Mode, Role, facts
from watchglass.rules import signals
from watchglass.rules.graph.terms import data_terms
from watchglass.rules.modern.sampled_updates import SampledUpdates, sampled_updates
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.rules.streaks import Streaks
from watchglass.tables import StepView

#: Cosines from here on differ from 1 by rounding alone.
_SAME = 1 - 2e-6
#: Elements of a weight up to which its gradient may be parallel to it by chance.
_FEW = 2


class NoDataGradient(Rule):
    """The gradients of weights are exactly zero, or exactly those of a penalty on the weights.

    Looks at: gradients of weights with two or more axes, and the cosine between sampled gradients and weights, which
        is 1 if only a squared penalty contributes to the gradient.
    Fires when: in `patience` captures in a row from the start, the gradients of all weights and biases are zero; or in
        `samples` samples in a row those of all layers, or of the first ones, are exactly a penalty's, and were so from
        the start. Gradients that are zero only in some layers (dead units) or only at times, embeddings, and steps that
        a scaler skips are not reported.
    Usual causes: detach(), item(), NumPy or argmax between the weights and the loss, so that only the penalty is left.
        Where the graph is whole and the gradients are zero: dead units, a factor of zero, a loss at its limit.
    What to try: compute the loss with tensor operations only, from the outputs of the model to the call of backward.
    Costs: statistics of gradients, and the fact update_sample, 0.05 ms for each of at most 32 parameters at steps 8 to
        64 apart.
    Source: exact; house: `patience`, `samples`.
    """

    idle_at_plain_steps = True
    needs = (
        Needs(role=Role.GRADIENT, statistics=("l2", "nonfinite"), why="to see gradients that are zero"),
        Needs(scalars=("gradient_norm_before_clip",), optional=True, why="to omit what clipping by infinity caused"),
        Needs(facts=("update_sample",), optional=True, why="to see gradients that only a penalty gives"),
        Needs(facts=("loss_graph",), optional=True, why="to distinguish a cut graph from gradients that are zero"),
    )

    patience: int = parameter(5, help="captures in a row with no gradient", unit="captures", ge=2)
    samples: int = parameter(2, help="samples in a row with the gradient of a penalty", unit="samples", ge=1)

    zero: Streaks = state(Streaks)
    #: Samples in a row in which the same first layers have the gradient of a penalty alone, and these layers.
    penalties: Streaks = state(Streaks)
    layers: list[str] = state(list)
    #: Layers whose gradient was once another one: data reach them, however little they contribute later.
    reached: list[str] = state(list)
    #: Whether the graph joins the loss to the weights by way of the data.
    joined: bool = state(bool)
    #: Whether a gradient ever came from the data.
    alive: bool = state(bool)

    applicable = staticmethod(signals.without_layers)

    def check(self, view: StepView) -> Iterable[Finding]:
        """At most one finding at a captured TRAIN step."""
        if view.mode is not Mode.TRAIN or signals.skipped(view) or signals.clipped_to_zero(view):
            return
        for fact in view.facts(facts.TermsOfLoss):
            self.joined = bool(data_terms(fact))
        samples = sampled_updates(view)
        for sample in samples:
            yield from self._penalty(view, sample)
        gradients = view.statistics(Role.GRADIENT)
        if not len(gradients) or self.alive or np.any(gradients.nonfinite > 0):
            return
        if np.all(gradients.l2 == 0):
            self.zero.follow(view.mode_step, True)
        elif not samples or not self.penalties:
            self.alive = bool(np.any(gradients.l2 > 0)) and not self.layers
            self.zero.clear()
        if (zero := self.zero.times()) >= self.patience:
            yield self._finding(
                view, gradients.names[:8], zero, self.zero.since(),
                f"all {len(gradients)} captured gradients are exactly zero in {zero} captures in a row up to step "
                f"{view.mode_step}, although the backward reaches the weights: a small change of them changes no loss",
                symptoms=("zero_gradients_everywhere",), layers=len(gradients),
            )  # fmt: skip

    def _penalty(self, view: StepView, sample: SampledUpdates) -> Iterable[Finding]:
        order = np.argsort(sample["layer"], kind="stable").tolist()
        # Of a weight that is not captured the catalog has the gradient alone.
        infos = [view.catalog.by_name(name) or view.catalog.by_name(f"gradient/{name}") for name in sample.names]
        # Two elements are parallel by chance, and one always is.
        enough = np.array([info is None or math.prod(info.shape) > _FEW for info in infos], np.bool_)
        penalised = enough & (sample["gradient_weight"] >= _SAME)
        only = penalised | (sample["zero_gradient"] == 1)
        for name, alone in zip(sample.names, only.tolist(), strict=True):
            if not alone and name not in self.reached:
                self.reached.append(name)
        only &= np.array([name not in self.reached for name in sample.names], np.bool_)
        first = [sample.names[row] for row in takewhile(lambda row: bool(only[row]), order)]
        if not first or not any(penalised[sample.names.index(name)] for name in first):
            self.penalties.clear()
            self.layers = []
            return
        if first != self.layers:
            self.penalties.clear()
        self.layers = first
        if (times := self.penalties.follow(view.mode_step, True)) >= self.samples:
            every = len(first) == len(sample.names)
            which = "all layers" if every else f"the first {len(first)} of {len(order)} layers"
            zero = every and self.joined
            yield self._finding(
                view, first[:8], times, self.penalties.since(),
                f"the gradients of {which} ({first[0]}) are a multiple of the weights, to six digits, in "
                f"{times} samples in a row up to step {view.mode_step}: only a penalty gives them, "
                + ("and those of the data are zero" if zero else "no data"),
                symptoms=("zero_gradients_everywhere" if zero else "no_gradient_from_data",),
                layers=len(order), of_penalty=len(first),
            )  # fmt: skip

    def _finding(
        self, view: StepView, names: list[str], times: int, since: int | None, message: str,
        symptoms: tuple[str, ...], **measured: int,
    ) -> Finding:  # fmt: skip
        return self.finding(
            view, subject="gradient", tensors=names, value=float(times),
            limit=float(self.patience), message=message, symptoms=symptoms, since=since,
            evidence=measured,
        )  # fmt: skip
