"""Facts ``loss_graph`` and ``forward_graph`` of compiled steps, from the program that a trace has made."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace

from watchglass.capture.compiled.program import ProgramGraph, TracedProgram
from watchglass.capture.facts import forward_layers, loss_terms
from watchglass.record import CapturedRecords, DeferredFact
from watchglass.records import facts

#: Graphs of one model that are read: each trace makes one, and traces for other shapes are alike.
_MOST_GRAPHS = 4
#: Parameters that are named.
_MOST_NAMED = 32


class GraphFacts:
    """Makes the facts of the graph of each program, in the recorder's thread. For the training thread."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._graphs: dict[int, int] = {}

    def add(
        self, records: CapturedRecords, program: TracedProgram, kinds: frozenset[str], model: int = 0, batch: int = 0
    ) -> None:
        """Add the facts of a program.

        Args:
            records: Records of the first step that it runs in.
            program: The program.
            kinds: The kinds of facts that are wanted.
            model: Number of the model.
            batch: Samples in the step; 0 where that is not known.
        """
        number = self._graphs[model] = self._graphs.get(model, 0) + 1
        if number > _MOST_GRAPHS:
            return
        read = functools.cache(program.graph)
        if "loss_graph" in kinds:
            terms = functools.partial(_terms, read, program.parameters, number, batch)
            records.add_fact(DeferredFact(facts.TermsOfLoss, terms), self._source)
        if "forward_graph" in kinds:
            records.add_fact(DeferredFact(facts.ForwardLayers, functools.partial(_layers, read, number)), self._source)


def _terms(
    read: Callable[[], ProgramGraph], parameters: Sequence[str], number: int, batch: int
) -> facts.TermsOfLoss | None:
    graph = read()
    if not len(graph) or not graph.complete:
        return None if graph.complete else facts.TermsOfLoss()
    reached, opaque = set(graph.parameters.values()), _opaque(graph)
    missed = [name for name in parameters if name not in reached]
    unreached = None
    if missed and not opaque:
        unreached = facts.OutOfReach(len(missed), tuple(missed[:_MOST_NAMED]), *graph.used_before_cuts(missed))
    terms = loss_terms.described(graph, str)
    return replace(terms, opaque=opaque, backward=1, capture=number, batch=batch, unreached=unreached)


def _layers(read: Callable[[], ProgramGraph], number: int) -> facts.ForwardLayers | None:
    graph = read()
    if not len(graph) or not graph.complete:
        return None if graph.complete else facts.ForwardLayers()
    return replace(forward_layers.described(graph, str), opaque=_opaque(graph), backward=1, capture=number)


def _opaque(graph: ProgramGraph) -> tuple[str, ...]:
    """Operations that are not known."""
    return tuple(sorted({each.name for each in graph.operations if each.kind == "unknown"}))[:16]
