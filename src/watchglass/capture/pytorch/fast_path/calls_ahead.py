"""Calls of other models without gradients ahead of a step, held back until it shows what they were for.

A teacher that is called without gradients ahead of each step helps to train the model, or is evaluated: what follows
shows it. So on the fast path these calls are held back until the model is called. Anything else that comes first (a
loss function, the call of another model) gives them to the full path.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from threading import get_ident
from typing import Any, Protocol

from torch import Tensor, is_grad_enabled, nn

from watchglass.capture.pytorch.compiled.graphs import compiling
from watchglass.capture.pytorch.fast_path.step_progress import ONE_EACH, StepProgress
from watchglass.capture.pytorch.modules.module_hooks import Unsaved, unsaved
from watchglass.capture.pytorch.modules.nested_tensors import tensors_in

#: Most calls ahead of a step that are a pattern.
_MOST = 4

#: An outermost module that is called ahead of steps, and whether it is in training mode.
Expected = tuple[weakref.ref[nn.Module], bool]


class CallAhead:
    """A call without gradients ahead of a step, until it shows whether it helps the step or is an evaluation.

    Attributes:
        root: The outermost module.
        arguments: Its positional arguments.
        kwargs: Its keyword arguments.
        start_ns: Monotonic clock when it began.
        outputs: What it returned; None while it is under way, or after an exception.
    """

    __slots__ = ("arguments", "kwargs", "outputs", "root", "start_ns")

    def __init__(self, root: nn.Module, arguments: Any, kwargs: Any, start_ns: int) -> None:
        self.root, self.arguments, self.kwargs, self.start_ns = root, arguments, kwargs, start_ns
        self.outputs: tuple[weakref.ref[Tensor], ...] | None = None


class FullPathOfCalls(Protocol):
    """The full path of such calls."""

    between: Callable[[bool], bool]

    def give_back(self, call: CallAhead) -> None:
        """A call that was held back is no part of a step on the fast path."""


class CallsAhead:
    """Learns which calls come ahead of each step, and holds them back on the fast path. For the training thread.

    Args:
        now: How far the step is.
        number_of: Number of the model of an outermost module, below zero where it is provisional: only a model that
            was neither trained nor evaluated on its own has such a number.
        shielded: As :meth:`~watchglass.capture.guard.Guard.shielded`.

    Attributes:
        full: Gets what is no part of a step; set before the first callback.
        expected: The calls that the pattern has ahead of each step, in their order.
        follows: Which calls of the model may come once all of these have returned.
        held: Those of the coming step so far.
        seen: On the full path, those since the last step, with the numbers of their models.
    """

    def __init__(
        self,
        now: StepProgress,
        number_of: Callable[[nn.Module], int],
        shielded: Callable[..., Callable[..., Any]],
    ) -> None:
        self.full: FullPathOfCalls
        self.expected: tuple[Expected, ...] = ()
        self.follows = ONE_EACH
        self.held: list[CallAhead] = []
        self._now, self._number_of = now, number_of
        self._thread = get_ident()
        self._port = Unsaved(shielded(self.returned, unless=compiling))
        self._forget: list[Callable[[], None]] = []
        self.seen: list[tuple[Expected, int]] = []

    @property
    def observed(self) -> bool:
        """Whether the returns of these calls are observed, so that calls are held back."""
        return bool(self._forget)

    # -- on the full path --------------------------------------------------------------------------------------------

    def called(self, root: nn.Module, model: int) -> None:
        """An outermost module is called without gradients between steps, of the model of this number."""
        if len(self.seen) <= _MOST:
            self.seen.append(((weakref.ref(root), root.training), model))

    def take(self, helpers: tuple[int | None, ...]) -> tuple[Expected, ...] | None:
        """The calls since the last step; None where they are no pattern.

        If another model than that of the pattern was evaluated, only the full path can tell what for.

        Args:
            helpers: Numbers of the models that have helped to train the step that is over.
        """
        seen, self.seen = self.seen, []
        numbers = tuple(model for _, model in seen)
        if numbers != helpers or len(seen) > _MOST or any(model >= 0 for model in numbers):
            return None
        return tuple(call for call, _ in seen)

    # -- on the fast path --------------------------------------------------------------------------------------------

    def observe(self) -> None:
        """The fast path begins: observe the returns of the calls that are expected."""
        for root in {each() for each, _ in self.expected}:
            if root is not None:
                self._forget.append(unsaved(root.register_forward_hook(self._port)))

    def expects(self, root: nn.Module) -> bool:
        """Whether a call of this outermost module, which begins between steps, is the next that is expected."""
        number = len(self.held)
        if number >= len(self.expected) or is_grad_enabled():
            return False
        expected, training = self.expected[number]
        called = not self.held or self.held[-1].outputs is not None
        return called and root is expected() and root.training is training and self._number_of(root) < 0

    def hold_back(self, root: nn.Module, arguments: Any, kwargs: Any, start_ns: int) -> None:
        """This call is expected: keep it until it shows what it was for."""
        if self.held:
            self.full.between(False)
        self.held.append(CallAhead(root, arguments, kwargs, start_ns))

    def returned(self, root: nn.Module, arguments: Any, output: Any) -> None:
        """Forward hook of the modules that are expected; keeps weak references to the output."""
        if get_ident() != self._thread or not self.held:
            return
        call = self.held[-1]
        if root is not call.root or call.outputs is not None:
            return
        call.outputs = tuple(weakref.ref(tensor) for _, tensor in tensors_in(output))
        self.full.between(True)
        if len(self.held) == len(self.expected):
            self._now.follows = self.follows

    def helped(self) -> None:
        """The model is called: the calls that were held back help to train it."""
        self.held = []
        self.full.between(False)

    def ignore(self) -> None:
        """The fast path ends: observe returns no more."""
        while self._forget:
            self._forget.pop()()

    def give_back(self) -> None:
        """The fast path has ended: the full path gets what is held back."""
        held, self.held = self.held, []
        for call in held:
            self.full.give_back(call)
