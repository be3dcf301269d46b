"""Steps in which one backward runs through several forwards, on the fast path.

In reinforcement learning one backward runs through many calls of the model. A call that it does not run through is an
evaluation, so in such steps each output has a hook, as on the full path.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from threading import get_ident
from typing import Any

from torch import Tensor, nn

from watchglass.capture.pytorch.compiled.graphs import compiling
from watchglass.capture.pytorch.fast_path.step_progress import IN_FORWARD, NO_MORE, StepProgress
from watchglass.capture.pytorch.graph.autograd_graph import differentiates
from watchglass.capture.pytorch.modules.module_hooks import Unsaved, unsaved
from watchglass.capture.pytorch.modules.nested_tensors import tensors_in
from watchglass.capture.pytorch.step.tensor_hooks import hook_gradient
from watchglass.capture.pytorch.training_state import TrainingState
from watchglass.record import Forward

#: Most forwards of a step: the clock takes the oldest of many more for evaluations.
_MOST = 512


class SeveralForwards:
    """The forwards of the open step, and which of them a backward has run through. For the training thread.

    A forward is ``marked`` while only a gradient for its output shows that a backward runs through it; one whose output
    has no graph, or that an exception has left, is not marked, and any backward counts as one through it.

    Args:
        now: How far the step is.
        current: The state of the run.
        shielded: As :meth:`~watchglass.capture.guard.Guard.shielded`.

    Attributes:
        all: The forwards of the open step.
        called: The one that is under way, or was left by an exception; else None.
        differentiated: Those whose gradients may be a part of the loss: only the graph shows whether they are.
    """

    def __init__(self, now: StepProgress, current: TrainingState, shielded: Callable[..., Callable[..., Any]]) -> None:
        self.all: list[Forward] = []
        self.called: Forward | None = None
        self.differentiated: list[Forward] = []
        self._now, self._current = now, current
        self._thread = get_ident()
        self._port = Unsaved(shielded(self.returned, unless=compiling))
        self._arrived: Callable[..., Any] = shielded(self._through)
        self._forget: list[Callable[[], None]] = []

    def observe(self, root: nn.Module) -> None:
        """The fast path begins: observe what this outermost module returns."""
        self._forget.append(unsaved(root.register_forward_hook(self._port)))

    def begin(self, forward: Forward) -> None:
        """A forward of the open step begins."""
        self.called = forward
        self.all.append(forward)
        if len(self.all) >= _MOST:
            self._now.follows = NO_MORE

    def returned(self, root: nn.Module, arguments: Any, output: Any) -> None:
        """Forward hook of the model: hooks on the tensors that it returned show whether a backward runs through it."""
        if get_ident() != self._thread:
            return
        forward, self.called = self.called, None
        if forward is None or self._now.at != IN_FORWARD:
            return
        forward.marked = False
        arrived = partial(self._arrived, forward)
        for _, tensor in (("", output),) if isinstance(output, Tensor) else tensors_in(output):
            if tensor.grad_fn is not None:  # a parameter would keep the hook
                hook_gradient(tensor, arrived)
                forward.marked = True

    def _through(self, forward: Forward, gradient: Tensor | None) -> None:
        # On any of autograd's threads.
        if self._now.running or self._current.in_backward:
            forward.backpropagated = True
        elif differentiates() and forward not in self.differentiated:
            self.differentiated.append(forward)

    @property
    def some_left(self) -> bool:
        """Whether the backward that is over has not run through one of them."""
        return any(each.marked and not each.backpropagated for each in self.all)

    def clear(self) -> None:
        """The step is over, or belongs to the full path now."""
        self.all, self.called, self.differentiated = [], None, []

    def ignore(self) -> None:
        """The fast path ends: observe the model no more."""
        while self._forget:
            self._forget.pop()()
