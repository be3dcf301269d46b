"""The Python functions that ran in a window of profiled training steps, as a fact of the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from watchglass.records.fact import DeclaredFact
from watchglass.records.windows import MOST_ROWS, UNKNOWN_COST, WindowCost, WindowFrame, from_columns, to_columns

#: The profilers of Python that a window may use. The first counts every call, the second looks at an interval.
PYTHON_PROFILERS = ("cprofile", "pyinstrument")
_KINDS = {"name": str, "file": str}


@dataclass(frozen=True)
class FunctionTotals:
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


@dataclass(frozen=True)
class CallNode:
    """A node of the tree of calls.

    Attributes:
        function: Index of the function among those of the window.
        depth: 0 at the root; the caller is the last node before this one whose depth is less by one.
        total_s: Seconds in this function, called this way, with the functions that it calls.
    """

    function: int
    depth: int
    total_s: float


class PythonWindow(DeclaredFact):
    """A window of training steps whose Python functions were profiled."""

    KIND = "python_window"

    profiler: str
    first_step: int
    end_step: int
    functions: tuple[FunctionTotals, ...]
    tree: tuple[CallNode, ...] = ()
    cost: WindowCost = UNKNOWN_COST
    omitted: int = 0
    note: str = ""
    request: int | None = None

    def to_data(self) -> dict[str, Any]:
        """The data of the fact, with the rows of most time as columns."""
        places = {function: place for place, function in enumerate(self._kept_functions())}
        omitted = self.omitted + len(self.functions) - len(places)
        frame = WindowFrame(self.first_step, self.end_step, self.cost, omitted, self.note, self.request)
        rows = {
            "functions": to_columns([self.functions[function] for function in places], FunctionTotals),
            "tree": to_columns(self._kept_tree(places), CallNode),
        }
        return {"profiler": self.profiler, **frame.to_data(), **rows}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> PythonWindow | None:
        """What :meth:`to_data` gave; None if it is not valid."""
        frame, profiler = WindowFrame.from_data(data), data.get("profiler")
        functions = from_columns(data.get("functions"), FunctionTotals, _KINDS)
        tree = from_columns(data.get("tree"), CallNode, {})
        if frame is None or functions is None or tree is None or profiler not in PYTHON_PROFILERS:
            return None
        if any(not 0 <= node.function < len(functions) or node.depth < 0 for node in tree):
            return None
        return cls(profiler, frame.first_step, frame.end_step, functions, tree, *frame[2:])

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
