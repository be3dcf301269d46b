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

        The trace may have made variables, whose first values are assigned later: the call that goes on runs once.
        """
        captured = {id(outer) for outer, _ in graph.captures if outer.dtype.name == "resource"}
        latest = self._latest()
        if latest is not None:
            latest.is_complete = captured <= latest.held.keys()
        self.runs_once |= has_effects(graph) or not captured <= {id(each.handle) for each in self._variables()}

    def is_possible(self) -> bool:
        """Not with effects, or resources that are none of the variables."""
        latest = self._latest()
        return not self.runs_once and (latest is None or latest.is_complete)

    def state(self) -> VariableState:
        """The variables and what they hold."""
        found = {id(each.handle): (each, self._arrays.values(each)) for each in self._variables()}
        state = VariableState(found)
        self._latest = weakref.ref(state)
        return state

    def restore(self, state: VariableState) -> None:
        """Assign it."""
        for variable, value in state.held.values():
            variable.assign(value)

    def are_equal(self, one: Any, other: Any) -> bool:
        """The arrays in the results, and the variables."""
        one, other = ((result, [value for _, value in state.held.values()]) for result, state in (one, other))
        return equal_arrays(self._arrays, one, other)


def has_effects(graph: Any) -> bool:
    """Whether a graph does more than to change variables."""
    program = graph.as_graph_def()
    functions = (node for each in program.library.function for node in each.node_def)
    return any(_EFFECTS.search(node.op) for node in (*program.node, *functions))
