"""Fact ``forward_graph``: operations with weights, what lies between them, and how deep the longest chain is."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from watchglass.capture.operation_graph import CONSTANT, OperationGraph
from watchglass.records import OperationKind, facts

#: Kinds whose operations do nothing but multiply, by weights or by another result.
_PLAIN, _FACTORS = ("matrix", "looks_up"), ("multiplies", "matrix")
#: Operations with weights, and pairs of them, that are recorded at most.
_MOST_LAYERS, _MOST_PAIRS = 256, 512
#: A batch normalisation over at most this many values per channel leaves little of its input.
_FEW = 2


class _Chain(NamedTuple):
    """The longest chain of operations with weights up to a result; one of the same weight counts once."""

    layers: int = 0
    residuals: int = 0
    normalizations: int = 0


class _State(NamedTuple):
    """Of a result: the last operations with weights before it, each with the operations since, as bits."""

    since: dict[int, int]
    depth: _Chain


def described(graph: OperationGraph, name: Callable[[Any], str]) -> facts.ForwardLayers:
    """The fact.

    Args:
        graph: The graph of the loss.
        name: Finds the name of a parameter; "" for one of no model.
    """
    return _LayersRead(graph, name).described()


class _LayersRead:
    """The layers of a forward, found from the operands up."""

    def __init__(self, graph: OperationGraph, name: Callable[[Any], str]) -> None:
        self._graph, self._name = graph, name
        self._bits: dict[str, int] = {}
        self._kinds: dict[str, OperationKind] = {}
        self.layers: list[tuple[str, str, int, int]] = []
        # By layer, as bits: the layers before it.
        self._before: list[int] = []
        # By identity of a parameter, as bits: the layers that it is the weight of.
        self._same: dict[int, int] = {}
        self.pairs: dict[tuple[int, int], int] = {}
        self._few: list[facts.FewNormalized] = []
        self._normalized = 0
        self._states: list[_State] = []
        for at in range(len(graph)):
            self._states.append(self._read(at))

    def described(self) -> facts.ForwardLayers:
        """The fact."""
        pairs = tuple((*pair, self._named(bits)) for pair, bits in sorted(self.pairs.items())[:_MOST_PAIRS])
        return facts.ForwardLayers(
            True, (), 0, 0, len(self._graph), tuple(self.layers[:_MOST_LAYERS]), len(self.layers), pairs,
            len(self.pairs), dict(sorted(self._kinds.items())), *self._states[-1].depth,
            tuple(self._few[:16]), self._normalized,
        )  # fmt: skip

    def _named(self, bits: int) -> str:
        return " ".join(name for name, bit in self._bits.items() if bits & bit)

    def _read(self, at: int) -> _State:
        graph = self._graph
        name, kind = graph.operations[at].name, graph.operations[at].kind
        if not graph.varying[at] or kind == "parameter":
            return _State({}, _Chain())
        below = [each.at for each in graph.below[at] if each.at != CONSTANT and graph.varying[each.at]]
        weights = graph.weights(at)
        if weights:
            return self._read_layer(at, below, weights[0])
        if len(below) == 1 and kind == "arranges":
            return self._states[below[0]]
        joins = len(set(below)) > 1
        since, depth, shortcut = self._joined(below)
        if kind in _FACTORS:
            product = len(below) > 1
            name, kind = ("product", "activates") if product else ("scale", "adds")
        elif joins and shortcut and name in ("add", "sub"):
            depth = depth._replace(residuals=depth.residuals + 1)
            name = "residual"
        elif kind == "normalizes":
            depth = depth._replace(normalizations=depth.normalizations + 1)
            self._note_normalization(at)
        bit = self._bit(name, kind) if kind != "arranges" else 0
        return _State({layer: bits | bit for layer, bits in since.items()} if bit else since, depth)

    def _read_layer(self, at: int, below: list[int], weight: int) -> _State:
        since, depth, _ = self._joined(below)
        number, before = len(self.layers), 0
        for layer, bits in since.items():
            before |= self._before[layer] | 1 << layer
            self.pairs[layer, number] = bits
        parameter = self._graph.parameters[weight]
        operation = self._graph.operations[at]
        name = operation.name
        out = self._units(at, name)
        self.layers.append((self._name(parameter), name, _inputs(self._graph.shape(weight), name, out), out))
        self._before.append(before)
        plain = operation.kind in _PLAIN
        own = 0 if plain else self._bit(name, operation.kind)
        # Steps in time of one cell are not depth.
        same = self._same.get(id(parameter), 0)
        self._same[id(parameter)] = same | 1 << number
        return _State({number: own}, depth if before & same else depth._replace(layers=depth.layers + 1))

    def _units(self, at: int, name: str) -> int:
        shape, units = self._graph.shape(at), self._graph.setting(at, "units")
        if units is not None:  # of a matrix from the left
            return int(units)
        return 0 if not shape else shape[1 if name == "convolution" and len(shape) > 1 else -1]

    def _joined(self, below: list[int]) -> tuple[dict[int, int], _Chain, bool]:
        """What several results together come of, and whether one of them is a shortcut around the layers of another."""
        if len(below) == 1:
            state = self._states[below[0]]
            return state.since, state.depth, False
        states = [self._states[each] for each in below]
        depth = max((state.depth for state in states), default=_Chain())
        since: dict[int, int] = {}
        before = 0
        for state in states:
            for layer, bits in state.since.items():
                since[layer] = since.get(layer, 0) | bits
                before |= self._before[layer]
        direct = {layer: bits for layer, bits in since.items() if not before >> layer & 1}
        # The input of the model has no layer before it, and shows nowhere in the graph.
        return direct, depth, len(direct) < len(since)

    def _bit(self, name: str, kind: OperationKind) -> int:
        if name not in self._bits:
            self._bits[name] = 1 << len(self._bits)
            self._kinds[name] = kind
        return self._bits[name]

    def _note_normalization(self, at: int) -> None:
        graph = self._graph
        if graph.operations[at].name != "batch_norm":
            return
        shape = graph.shape(at)
        # A node without this attribute is in training mode: evaluation has another node.
        if len(shape) < 2 or graph.setting(at, "training") == 0:
            return
        self._normalized += 1
        values = math.prod(shape) // max(1, shape[1])
        if values <= _FEW:
            named = [each.at for each in graph.below[at] if each.at in graph.parameters]
            name = self._name(graph.parameters[named[0]]) if named else ""
            self._few.append(facts.FewNormalized(name, values, shape[0]))


def pattern(fact: facts.ForwardLayers) -> Any:
    """The fact without what follows from the size of the batch."""
    return {**vars(fact), "batch_normalizations": [each.name for each in fact.batch_normalizations]}


def _inputs(shape: tuple[int, ...], name: str, out: int) -> int:
    """Number of units from which one unit of an operation is computed; 0 where that is not known."""
    if name == "convolution":
        return shape[1] if len(shape) > 1 else 0
    if name != "linear" or len(shape) != 2:
        return 0
    return math.prod(shape) // max(1, out)
