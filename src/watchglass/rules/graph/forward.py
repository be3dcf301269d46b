"""The content of the fact ``forward_graph``: layers with weights, and the operations between them."""

from __future__ import annotations

import math
from typing import NamedTuple

from watchglass.records import Mode, facts
from watchglass.rules.graph.terms import once_for_each
from watchglass.tables import StepView

#: Operations that multiply by weights, and nothing else.
WEIGHTED_SUMS = ("linear", "convolution")
_SATURATING = frozenset({"sigmoid", "hardsigmoid", "tanh", "hardtanh"})
#: What lets a gradient around a saturating activation, or makes a gate of it.
_AROUND = frozenset({"residual", "product"})
#: What an attention is made of where a script computes it, and what may be part of one that knows no positions; what
#: may lie before it: a token for the whole sequence is concatenated.
_BY_HAND = frozenset({"product", "softmax"})
_BETWEEN_TOKENS = frozenset({"attention", "product", "scale", "softmax", "dropout", "layer_norm", "rms_norm"})
_BEFORE_TOKENS = frozenset({"scale", "cat", "dropout", "layer_norm", "rms_norm"})
#: Most layers of a head (house).
_HEAD = 3


class Layer(NamedTuple):
    """An operation with weights."""

    name: str  #: Name of its parameter; "" for one of no model.
    operation: str  #: Its operation.
    inputs: int  #: Units or channels that it takes; 0 if unknown.
    outputs: int  #: Those that it gives.

    @property
    def module(self) -> str:
        """Path of the module that holds the parameter."""
        return self.name.rpartition(".")[0]


class Pair(NamedTuple):
    """Two layers of which one feeds the other."""

    first: int  #: Place of the first among the layers.
    second: int  #: Place of the second.
    between: frozenset[str]  #: Operations between them.
    kinds: frozenset[str]  #: Kinds of these operations.

    @property
    def linear(self) -> bool:
        """Whether nothing between them is non-linear but normalisations and pooling."""
        return self.kinds <= {"adds", "drops", "normalizes", "pools"}


class ForwardGraph:
    """The data of one fact; an empty graph where there is none.

    Attributes:
        whole: Whether it lists all layers and pairs, and hides nothing.
        layers: Operations with weights, operands first.
        pairs: Pairs of them.
        opaque: Functions whose inside is hidden.
        kinds: Kinds of the operations between layers.
        depth: Layers of the longest chain.
        residuals: Shortcuts that end on it.
        normalizations: Normalisations on it.
    """

    def __init__(self, data: facts.ForwardLayers) -> None:
        self.kinds, self.opaque = data.kinds, data.opaque
        self.depth, self.residuals, self.normalizations = data.depth, data.residuals, data.normalizations
        self.layers = [Layer(*each) for each in data.layers]
        self.pairs = [
            Pair(
                first, second, frozenset(names.split()), frozenset(str(data.kinds.get(each)) for each in names.split())
            )
            for first, second, names in data.pairs
        ]
        listed = (data.layers_count, data.pairs_count) == (len(self.layers), len(self.pairs))
        self.whole = data.complete and not self.opaque and listed
        # By layer, those that it feeds; and layers that none feeds.
        self._after: list[list[int]] = [[] for _ in self.layers]
        for pair in self.pairs:
            self._after[pair.first].append(pair.second)
        self._first = set(range(len(self.layers))) - {pair.second for pair in self.pairs}

    def superfluous(self, pair: Pair) -> bool:
        """Whether two weighted sums in a row compute nothing that a single one could not.

        Fewer units between them than before or behind are a factorisation on purpose.
        """
        first, second = self.layers[pair.first], self.layers[pair.second]
        if first.operation not in WEIGHTED_SUMS or second.operation not in WEIGHTED_SUMS or not pair.linear:
            return False
        return 0 < min(first.inputs, second.outputs) <= first.outputs and first.name != second.name

    @property
    def shortcuts(self) -> list[Pair]:
        """Pairs between which a shortcut around other layers ends."""
        return [pair for pair in self.pairs if "residual" in pair.between]

    def head(self) -> frozenset[str] | None:
        """Names of the layers that follow the last shortcut; None without a shortcut, or for more than a few layers."""
        last = max((pair.first for pair in self.shortcuts), default=None)
        if last is None:
            return None
        inside = {layer.name for layer in self.layers[: last + 1]}
        behind = frozenset(layer.name for layer in self.layers if layer.name not in inside)
        return behind if len(behind) <= _HEAD else None

    def saturating_in_a_row(self, first: str, last: str) -> list[str]:
        """Saturating operations that gradients must pass between two layers, at least two; empty for fewer.

        Those before a shortcut ends do not count, and a product with another result (a gate) is no activation.

        Args:
            first: Name of the parameter of the first layer.
            last: That of the last.
        """
        # Of a cell that is used at each step in time, the last step is as near as any.
        passed: dict[int, list[str]] = {at: [] for at, layer in enumerate(self.layers) if layer.name == first}
        for pair in sorted(self.pairs, key=lambda pair: (pair.first, pair.second)):
            before = passed.get(pair.first)
            if before is None:
                continue
            found = pair.between & _SATURATING if pair.between.isdisjoint(_AROUND) else ()
            now = [*(() if "residual" in pair.between else before), *sorted(found)]
            if pair.second not in passed or len(now) < len(passed[pair.second]):
                passed[pair.second] = now
        ends = (passed[at] for at, layer in enumerate(self.layers) if layer.name == last and at in passed)
        fewest = min(ends, key=len, default=[])
        return fewest if len(fewest) > 1 else []

    def attends_without_positions(self) -> bool:
        """Whether nothing tells the first attention where a token is.

        Its layers take what one first layer gives: nothing is added to it, and no recurrent layer or second convolution
        is part of the model. Nothing but a scale and a softmax lies between the products of queries, keys and values.
        Whether attention gets a mask, and whether the inputs hold positions, the graph does not show.
        """
        attending = [pair for pair in self.pairs if "attention" in pair.between or pair.between >= _BY_HAND]
        if not self.whole or not attending:
            return False
        out = min(attending, key=lambda pair: (pair.first, pair.second)).second
        allowed = _BETWEEN_TOKENS | ({"add"} if any("attention" in pair.between for pair in attending) else set())
        projections = {pair.first for pair in self.pairs if pair.second == out}
        ways = [pair for pair in self.pairs if pair.second in projections]
        first = {pair.first for pair in ways}
        if len(first) != 1 or {pair.second for pair in ways} != projections or first & {p.second for p in self.pairs}:
            return False
        ordered = any(
            layer.operation == "recurrent" or (layer.operation == "convolution" and at not in first)
            for at, layer in enumerate(self.layers)
        )
        plain = all(pair.between <= allowed for pair in self.pairs if pair.second == out)
        return not ordered and plain and all(pair.between <= _BEFORE_TOKENS for pair in ways)

    def narrowest(self) -> float:
        """Units of the narrowest place that all values pass through to the last layers; infinite for none.

        A convolution has as many units as the linear layer behind it takes, for its channels are at many positions.
        """
        narrow = sorted((self._width(at, takers), at) for at, takers in enumerate(self._after) if takers)
        return next((width for width, at in narrow if not self._around(at)), math.inf)

    def shortest(self) -> int:
        """Layers on the shortest way from a first layer to a last one, steps of one cell once; 0 without layers."""
        here, after = set(self._first), self._after
        for length in range(1, len(self.layers) + 1):
            waiting = list(here)
            while waiting:
                at = waiting.pop()
                again = {taker for taker in after[at] if self.layers[taker].name == self.layers[at].name != ""} - here
                here |= again
                waiting += again
            if any(not after[at] for at in here):
                return length
            here = {taker for at in here for taker in after[at]}
        return 0

    def _width(self, at: int, takers: list[int]) -> float:
        """Units by which the takers of a layer see it; infinite for a convolution that another one takes."""
        seen = [self.layers[taker] for taker in takers]
        if any(each.operation == "convolution" for each in seen):
            return math.inf
        # What takes more than the layer gives takes something else too.
        return float(max(each.inputs or self.layers[at].outputs for each in seen))

    def _around(self, at: int) -> bool:
        """Whether a way leads to a last layer around one."""
        waiting, seen = [each for each in self._first if each != at], {at}
        while waiting:
            now = waiting.pop()
            if now in seen:
                continue
            seen.add(now)
            if not self._after[now]:
                return True
            waiting += self._after[now]
        return False


_NONE = ForwardGraph(facts.ForwardLayers())
_graph_of = once_for_each(ForwardGraph)


def latest(view: StepView) -> ForwardGraph:
    """The last graph so far."""
    fact = view.latest_fact(facts.ForwardLayers)
    return _NONE if fact is None else _graph_of(fact)


def at(view: StepView) -> ForwardGraph:
    """The graph, at a TRAIN step at which it, or the kinds of modules, become known; at others an empty one."""
    new = view.mode is Mode.TRAIN and bool(view.facts(facts.ForwardLayers) or view.facts(facts.ModelDescription))
    return latest(view) if new and view.latest_fact(facts.ModelDescription) is not None else _NONE


def at_end(view: StepView) -> ForwardGraph:
    """The graph, at the end of a run in which the kinds of modules never became known; else an empty one."""
    return latest(view) if view.latest_fact(facts.ModelDescription) is None else _NONE


def hidden(view: StepView) -> str:
    """The reason why rules about layers do not apply: a part of the graph is hidden; "" if nothing is."""
    graph = latest(view)
    if graph.whole or view.latest_fact(facts.ForwardLayers) is None:
        return ""
    opaque = ", ".join(graph.opaque)
    return f"{opaque} hides a part of the graph" if opaque else "the graph is too large to be described"
