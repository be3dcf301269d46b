"""The Python functions that ran in a window of profiled training steps, as a fact of the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from watchglass.records.declared import InColumns
from watchglass.records.fact import DeclaredFact
from watchglass.records.windows import MOST_ROWS, WindowCost, check_steps, with_short_names

#: The profilers of Python that a window may use. The first counts every call, the second looks at an interval.
PYTHON_PROFILERS = ("cprofile", "pyinstrument")


class FunctionTotals(InColumns):
    """All calls of one function in a window.

    Attributes:
        name: Its name; with its class where Python states it.
        file: The file that defines it; "" for a function that is not written in Python.
        line: The line at which it begins; 0 without a file.
        calls: Number of calls; 0 where the profiler does not count them.
        self_s: Seconds in it, without the functions that it calls.
        total_s: The same with them.
    """

    name: str
    file: str
    line: int
    calls: int
    self_s: float
    total_s: float


class CallNode(InColumns):
    """A node of the tree of calls.

    Attributes:
        function: Index of the function among those of the window.
        depth: 0 at the root; the caller is the last node before this one whose depth is less by one.
        total_s: Seconds in this function, called this way, with the functions that it calls.
    """

    function: int
    depth: int
    total_s: float


class PythonWindow(DeclaredFact, kind="python_window"):
    """A window of training steps whose Python functions were profiled."""

    profiler: str
    first_step: int
    end_step: int
    functions: tuple[FunctionTotals, ...]
    tree: tuple[CallNode, ...] = ()
    cost: WindowCost = WindowCost()
    omitted: int = 0
    note: str = ""
    request: int | None = None

    def __post_init__(self) -> None:
        check_steps(self.first_step, self.end_step)
        if self.profiler not in PYTHON_PROFILERS:
            raise ValueError(f"the profiler must be one of {', '.join(PYTHON_PROFILERS)} but got {self.profiler!r}")
        if any(not 0 <= node.function < len(self.functions) or node.depth < 0 for node in self.tree):
            raise ValueError("each node of the tree of calls must have a function of the window and a depth")

    def to_data(self) -> dict[str, Any]:
        """The data of the fact, with the rows of most time."""
        places = {function: place for place, function in enumerate(self._kept_functions())}
        functions = with_short_names(self.functions[function] for function in places)
        omitted = self.omitted + len(self.functions) - len(places)
        kept = replace(self, functions=functions, tree=self._kept_tree(places), omitted=omitted)
        return super(PythonWindow, kept).to_data()

    def _kept_functions(self) -> list[int]:
        """Indices of the functions of most time, with or without the functions that they call, in their order.

        A function that only calls others has hardly any time without them: the root of the tree is one.
        """
        whole = sorted(range(len(self.functions)), key=lambda index: -self.functions[index].total_s)
        best = {function: min(function, place) for place, function in enumerate(whole)}
        return sorted(sorted(best, key=lambda function: (best[function], function))[:MOST_ROWS])

    def _kept_tree(self, places: Mapping[int, int]) -> tuple[CallNode, ...]:
        """The nodes without those of omitted functions and what these call; at most twice the functions."""
        kept: list[CallNode] = []
        cut = None
        for node in self.tree:
            if cut is not None and node.depth > cut:
                continue
            place = places.get(node.function)
            cut = node.depth if place is None else None
            if place is not None:
                kept.append(replace(node, function=place))
        return tuple(kept[: 2 * MOST_ROWS])
