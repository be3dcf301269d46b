"""The lines of the script that called the operations of a loss, read in a few captured steps.

PyTorch notes the Python stack of each operation in ``node.metadata`` while its anomaly mode is on. That costs about 100
microseconds for an operation, so it is on from the end of the model's forward to the beginning of the backward only,
in the first captured steps of each model. It is on in the forward, too, in one step of a model that has an operation
whose gradient may be infinite. Nothing is checked, and no number changes.
"""

from __future__ import annotations

import contextlib
import os
import re
import site
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from watchglass.capture.pytorch.autograd_graph import Graph

#: Under which PyTorch keeps the stack.
_STACK = "traceback_"
_FRAME = re.compile(r'\s*File "(?P<file>[^"]+)", line (?P<line>\d+), in [^\n]*\n?\s*(?P<code>[^\n]*)')
#: Longest line that is shown, in characters, and operations whose lines are kept.
_LONGEST, _MOST_KEPT = 100, 4096
#: Folders whose files are not the script's.
_INSTALLED = tuple(
    os.path.join(os.path.realpath(str(folder)), "")
    for folder in (*site.getsitepackages(), sysconfig.get_path("stdlib"), Path(__file__).parents[3])
)

#: From the start of a backward down to an operation: which operand is followed, and the name of its node.
Way = tuple[tuple[int, str], ...]


class Lines:
    """Lines by operation. For the training thread."""

    def __init__(self) -> None:
        self._known: dict[Way, tuple[str, str]] = {}
        self._on = False

    def note(self, on: bool) -> None:
        """Have PyTorch note stacks, or end that; a script that does so itself is left alone."""
        if on == self._on or (on and torch.is_anomaly_enabled()):
            return
        self._on = on
        torch.autograd.set_detect_anomaly(on, check_nan=not on)

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Inside, PyTorch notes stacks."""
        self.note(True)
        try:
            yield
        finally:
            self.note(False)

    def learn(self, graph: Graph, paths: dict[int, tuple[int, ...]]) -> None:
        """Keep the lines of the operations of a graph."""
        start = graph.nodes[-1] if len(graph) else None
        for at, path in paths.items():
            stack = graph.nodes[at].metadata.get(_STACK)
            if stack and len(self._known) < _MOST_KEPT:
                self._known.setdefault(way_of(start, path), _called(stack))

    def knows(self, start: Any, path: tuple[int, ...]) -> bool:
        """Whether the line of an operation is known."""
        return way_of(start, path) in self._known

    def of(self, start: Any, path: tuple[int, ...]) -> tuple[str, str]:
        """Place and text of the line that called an operation; both "" where that is not known, or not certain.

        What was learned may be a part of the graph: a model's, which ends at its output.

        Args:
            start: The node that made the loss.
            path: The way down to the operation.
        """
        way = way_of(start, path)
        ends = (((0, way[at][1]), *way[at + 1 :]) for at in range(len(way)))
        found = {known for end in ends if (known := self._known.get(end)) is not None}
        return found.pop() if len(found) == 1 else ("", "")


def way_of(start: Any, path: tuple[int, ...]) -> Way:
    """The nodes on the way down to an operation."""
    found, node = [(0, start.name() if start is not None else "")], start
    for number in path:
        node = node.next_functions[number][0]
        found.append((number, node.name()))
    return tuple(found)


def _called(stack: list[str]) -> tuple[str, str]:
    """Place and text of the innermost line of the script."""
    frames = [found for each in stack if (found := _FRAME.match(each)) is not None]
    own = [each for each in frames if not os.path.realpath(each["file"]).startswith(_INSTALLED)]
    if not own:
        return "", ""
    frame = own[-1]
    code = frame["code"].strip()
    return f"{os.path.basename(frame['file'])}, line {frame['line']}", code if len(code) <= _LONGEST else ""
