"""Operations of a finite loss whose gradient may be infinite, looked at before each backward.

A backward lets go of what its graph has saved, so afterwards nothing shows which operation made a gradient that is not
finite. The graphs of a few captured steps show where such operations are: a square root, an exponential, a division
below ``torch.where``. Most training runs have none, and pay nothing. For the others the values of these operations are
looked at before each backward: if one is where its gradient is infinite, the whole graph is read, and the gradients of
the step are examined.
"""

from __future__ import annotations

import math
import time
from typing import Any, NamedTuple

from torch import Tensor

from watchglass.capture.pytorch.first_bad.extremes import look_at
from watchglass.capture.pytorch.first_bad.lines import OperationLines, Way
from watchglass.capture.pytorch.first_bad.operations import INFINITE_GRADIENTS, is_chosen_from, is_root
from watchglass.capture.pytorch.graph.autograd_graph import Graph
from watchglass.capture.pytorch.graph.nodes import node_at, saved_tensor
from watchglass.capture.pytorch.saving.norm_interval import NormInterval

#: The first graphs that are read for each model, and operations that are looked at.
_FIRST_LOOKS, _MOST_SUSPECTS = 3, 8
#: Nodes of a graph in whose forward lines are noted.
_MOST_NODES = 512
#: False alarms after which an operation is no longer looked at.
_MOST_ALARMS = 3


class Suspect(NamedTuple):
    """One operation."""

    way: Way  #: From the node that made the loss down to it.
    saved: str  #: What it has saved that shows its values.
    #: It is where its gradient is not finite if one of these values is NaN, or this or less; NaN for no limit.
    low: float
    high: float  #: The same if one is this or more.
    near: bool = False  #: Whether only values that are ``low`` exactly count.

    @property
    def name(self) -> str:
        """Name of its node."""
        return self.way[-1][1]


_NONE = math.nan
#: By kind of node: what is saved, the limits, whether ``near``, and whether only a choice makes its loss finite.
_LIMITS: dict[str, tuple[str, float, float, bool, bool]] = {
    **{word: (saved, low, high, False, False) for word, (saved, low, high, _) in INFINITE_GRADIENTS.items()},
    "exp": ("result", _NONE, math.inf, False, False),
    "log": ("self", 0.0, _NONE, False, True),
    "rsqrt": ("result", _NONE, math.inf, False, True),
    "reciprocal": ("result", _NONE, math.inf, False, True),
    "div": ("other", 0.0, 0.0, True, True),
}


class Suspects:
    """The operations to look at. For the training thread.

    Args:
        pace: How often looks are affordable on the fast path.
    """

    def __init__(self, pace: NormInterval) -> None:
        #: All of them.
        self.all: list[Suspect] = []
        self._pace, self._calls = pace, 0
        #: By model how many graphs were read, and the step from which on the next one is.
        self._looks: dict[int, tuple[int, int]] = {}
        self._alarms: dict[Suspect, int] = {}
        self._hit: list[Suspect] = []
        #: Whether the lines of some are not known yet: those inside of modules.
        self.wants_lines = False

    def wants(self, model: int, step: int) -> bool:
        """Whether the graph of a captured step of this model is to be read.

        The first ones are, and then one in each doubling of the steps: a term may join the loss later.
        """
        return step >= self._looks.get(model, (0, 0))[1]

    def learn(self, model: int, step: int, graph: Graph, ways: dict[int, Way], lines: OperationLines) -> None:
        """Find the operations in the graph of the loss of a step."""
        looks = self._looks.get(model, (0, 0))[0] + 1
        self._looks[model] = looks, step + 1 if looks < _FIRST_LOOKS else 2 * (step + 1)
        for at in range(len(graph) - 1, -1, -1):
            limits = _LIMITS.get(graph.word(at))
            way = ways.get(at)
            if limits is None or way is None or len(self.all) >= _MOST_SUSPECTS:
                continue
            saved, low, high, near, discarded = limits
            if graph.word(at) == "pow" and not is_root(graph, at):
                continue
            if discarded and not is_chosen_from(graph, at):
                continue
            value = saved_tensor(graph.nodes[at], saved)
            suspect = Suspect(way, saved, low, high, near)
            if value is None or not value.is_cpu or value.is_complex() or (near and value.numel() == 1):
                continue
            if suspect not in self.all and self._alarms.get(suspect, 0) < _MOST_ALARMS:
                self.all.append(suspect)
        start = graph.nodes[-1] if len(graph) else None
        unknown = any(not lines.knows(suspect.way) for suspect in self.all if _at(suspect, start) is not None)
        self.wants_lines = unknown and len(graph) <= _MOST_NODES

    def are_bad_if_affordable(self, start: Any) -> bool:
        """:meth:`are_bad`, in as many steps as the overhead budget allows; False in the others."""
        self._calls += 1
        if not self._pace.due(self._calls):
            return False
        # Of the processor: on a busy machine one look that has to wait must not make the others rare.
        started = time.thread_time_ns()
        bad = self.are_bad(start)
        self._pace.took(time.thread_time_ns() - started)
        return bad

    def are_bad(self, start: Any) -> bool:
        """Whether one of them is where its gradient is infinite.

        Args:
            start: Autograd's node that made the loss, before the backward.
        """
        self._hit = [suspect for suspect in self.all if _is_bad(suspect, start)]
        return bool(self._hit)

    def alarmed(self) -> None:
        """The gradients were finite although one of them was bad: it is dropped if that happens again and again."""
        for suspect in self._hit:
            self._alarms[suspect] = alarms = self._alarms.get(suspect, 0) + 1
            if alarms >= _MOST_ALARMS and suspect in self.all:
                self.all.remove(suspect)
        self._hit = []


def _is_bad(suspect: Suspect, start: Any) -> bool:
    node = _at(suspect, start)
    value = None if node is None else saved_tensor(node, suspect.saved)
    if value is None or not value.is_cpu:
        return False
    if type(value) is Tensor and not suspect.near:
        # This is done in as many steps as the budget allows: one extreme takes half the time of a look.
        try:
            value = value.detach()
            low = value.min().item() if not math.isnan(suspect.low) else math.inf
            high = value.max().item() if not math.isnan(suspect.high) else -math.inf
        except RuntimeError:
            return False  # without elements, inside torch.func, or a type that has no order
        return low <= suspect.low or high >= suspect.high or math.isnan(low) or math.isnan(high)
    look = look_at(value)
    if look is None:
        return False
    if not suspect.near:
        return look.low <= suspect.low or look.high >= suspect.high or math.isnan(look.low)
    # Shards of a tensor are not compared here: ranks would have to exchange the answer.
    return look.low <= suspect.low <= look.high and type(value) is Tensor and bool((value == suspect.low).any())


def _at(suspect: Suspect, start: Any) -> Any:
    """The node of a suspect in the graph of a loss; None where there is another in its place."""
    node = node_at(start, [number for number, _ in suspect.way[1:]])
    return node if node is not None and node.name() == suspect.name else None
