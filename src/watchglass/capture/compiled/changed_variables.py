"""How functions are called twice that TensorFlow has traced into graphs: they change variables in place."""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from watchglass.capture.arrays import Arrays
from watchglass.capture.compiled.twin import Repetition, equal_arrays

#: Operations that change more than variables, or read what changes by itself.
_EFFECTS = re.compile(
    "Iterator|Dataset|PyFunc|Print|Summary|Queue|Save|Restore|Write(?!Variable)|Table|Barrier|Stage|Collective|Send|Recv"
)
#: Operations with numbers by chance that go on from call to call.
_RANDOM = frozenset((
    "RandomUniform", "RandomUniformInt", "RandomStandardNormal", "TruncatedNormal", "ParameterizedTruncatedNormal",
    "RandomShuffle", "RandomGamma", "RandomPoissonV2", "Multinomial",
))  # fmt: skip


@dataclass(eq=False)
class VariableState:
    """Variables with what they hold, by identity of their handles; and whether it is what the latest trace changes."""

    held: dict[int, tuple[Any, Any]]
    is_complete: bool = True


class ChangedVariables(Repetition):
    """Variables get their values back after the twin. A function with other effects runs once.

    Args:
        arrays: Reads them.
        variables: Returns those that the function may change.
    """

    def __init__(self, arrays: Arrays, variables: Callable[[], Iterable[Any]]) -> None:
        self._arrays, self._variables = arrays, variables
        self.runs_once = False  #: Whether it cannot run twice.
        # A weak reference to the latest state: TensorFlow copies a variable at an update while its values are held.
        self._latest: Callable[[], VariableState | None] = lambda: None

    def traced(self, graph: Any) -> None:
        """A graph of the function or its twin was traced, and has not run yet.

        The trace may have made variables, whose first values are assigned later.
        """
        captured = {id(outer) for outer, _ in graph.captures if outer.dtype.name == "resource"}
        latest = self._latest()
        if latest is not None:
            latest.is_complete = captured <= latest.held.keys()
        nodes = nodes_of(graph)
        self.runs_once |= has_effects(nodes) or not captured <= {id(each.handle) for each in self._variables()}
        self.always |= is_seeded(nodes)  # else calls of the twin alone would leave the function behind

    def initialized(self) -> None:
        """Variables that a trace has made have their first values now, and the call has not run yet."""
        latest = self._latest()
        if latest is not None:
            latest.held, latest.is_complete = self._held(), True

    def is_possible(self) -> bool:
        """Not with effects, or resources that are none of the variables."""
        latest = self._latest()
        return not self.runs_once and (latest is None or latest.is_complete)

    def state(self) -> VariableState:
        """The variables and what they hold."""
        state = VariableState(self._held())
        self._latest = weakref.ref(state)
        return state

    def _held(self) -> dict[int, tuple[Any, Any]]:
        return {id(each.handle): (each, self._arrays.values(each)) for each in self._variables()}

    def restore(self, state: VariableState) -> None:
        """Assign it."""
        for variable, value in state.held.values():
            variable.assign(value)

    def are_equal(self, one: Any, other: Any) -> bool:
        """The arrays in the results, and the variables."""
        one, other = ((result, [value for _, value in state.held.values()]) for result, state in (one, other))
        return equal_arrays(self._arrays, one, other)


def nodes_of(graph: Any) -> list[Any]:
    """The operations of a graph, and those of the functions that it calls."""
    program = graph.as_graph_def()
    return [*program.node, *(node for each in program.library.function for node in each.node_def)]


def has_effects(nodes: Iterable[Any]) -> bool:
    """Whether operations do more than to change variables."""
    return any(_EFFECTS.search(node.op) for node in nodes)


def is_seeded(nodes: Iterable[Any]) -> bool:
    """Whether operations have random numbers that depend on a seed and on the calls before."""
    return any(node.op in _RANDOM and bool(node.attr["seed"].i or node.attr["seed2"].i) for node in nodes)
