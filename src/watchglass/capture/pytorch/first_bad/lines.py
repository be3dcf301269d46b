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
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from watchglass.capture.operation_graph import CONSTANT
from watchglass.capture.pytorch.events import Events, ForwardCall
from watchglass.capture.pytorch.graph.autograd_graph import Graph

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

#: Operations on the way from a loss down to one whose line is known.
_LONGEST_WAY = 256
#: From the start of a backward down to an operation: which operand is followed, and the name of its node.
Way = tuple[tuple[int, str], ...]


class OperationLines:
    """Lines by operation. For the training thread."""

    def __init__(self) -> None:
        self._known: dict[Way, tuple[str, str]] = {}
        self._on = False

    def note(self, on: bool) -> None:
        """Have PyTorch note stacks, or end that; a script that does so itself is left alone."""
        if on == self._on or (on and torch.is_anomaly_enabled()):
            return
        self._on = on
        # With checks the mode is on because the script has set it meanwhile.
        if on or not torch.is_anomaly_check_nan_enabled():
            torch.autograd.set_detect_anomaly(on, check_nan=not on)

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Inside, PyTorch notes stacks."""
        self.note(True)
        try:
            yield
        finally:
            self.note(False)

    def learn(self, graph: Graph, ways: dict[int, Way]) -> None:
        """Keep the lines of the operations of a graph."""
        for at, way in ways.items():
            stack = graph.nodes[at].metadata.get(_STACK)
            if stack and len(self._known) < _MOST_KEPT:
                self._known.setdefault(way, _called(stack))

    def knows(self, way: Way) -> bool:
        """Whether the line of an operation is known."""
        return way in self._known

    def of(self, way: Way) -> tuple[str, str]:
        """Place and text of the line that called an operation; both "" where that is not known, or not certain.

        What was learned may be a part of the graph: a model's, which ends at its output.
        """
        ends = (((0, way[at][1]), *way[at + 1 :]) for at in range(len(way)))
        found = {known for end in ends if (known := self._known.get(end)) is not None}
        return found.pop() if len(found) == 1 else ("", "")


class NotedForwards:
    """Has lines noted in forwards of captured steps. It listens in those steps only: to tell of a forward costs time.

    Args:
        events: The events that it listens to.
        lines: Notes the lines.
        reads: Whether the graph of the step of a forward is read.
        inside: Whether lines inside of the model are wanted, too.
    """

    def __init__(
        self, events: Events, lines: OperationLines, reads: Callable[[ForwardCall], bool], inside: Callable[[], bool]
    ) -> None:
        self._events, self._lines, self._reads, self._inside = events, lines, reads, inside
        self._leave: Callable[[], None] | None = None

    def listen(self) -> None:
        """A captured step has opened."""
        if self._leave is None:
            self._leave = self._events.add(self)

    def each_forward_began(self, call: ForwardCall) -> None:
        """An outermost module is about to be called."""
        if not call.step.due and self._leave is not None:
            self._leave()
            self._leave = None
        self._lines.note(self._reads(call) and self._inside())

    def each_forward_ended(self, call: ForwardCall) -> None:
        """It has returned: what follows, up to the backward, computes the loss."""
        self._lines.note(self._reads(call))

    def each_backward_began(self) -> None:
        """The loss is computed."""
        self._lines.note(False)


def ways_of(graph: Graph) -> dict[int, Way]:
    """A way from the start of a graph to each operation, but for the deepest ones."""
    last = len(graph) - 1
    found: dict[int, Way] = {last: ((0, graph.nodes[last].name()),)} if len(graph) else {}
    for at in range(last, -1, -1):
        way = found.get(at)
        if way is None or len(way) > _LONGEST_WAY:
            continue
        for number, operand in enumerate(graph.below[at]):
            if operand.at != CONSTANT:
                known = found.get(operand.at)
                if known is None or len(known) > len(way) + 1:
                    found[operand.at] = (*way, (number, graph.nodes[operand.at].name()))
    return found


def _called(stack: list[str]) -> tuple[str, str]:
    """Place and text of the innermost line of the script."""
    frames = [found for each in stack if (found := _FRAME.match(each)) is not None]
    own = [each for each in frames if not os.path.realpath(each["file"]).startswith(_INSTALLED)]
    if not own:
        return "", ""
    frame = own[-1]
    code = frame["code"].strip()
    return f"{os.path.basename(frame['file'])}, line {frame['line']}", code if len(code) <= _LONGEST else ""
