"""Public functions of PyTorch that are heard at every step, because facts are made of when they are called.

Each is wrapped when its first listener comes and restored when its last one leaves; signatures are kept. Wrapped:
``torch.autograd.backward``, ``Optimizer.zero_grad``, ``Module.zero_grad``, constructors and ``step`` of the schedulers
of ``torch.optim.lr_scheduler``, ``unscale_``, ``step`` and ``update`` of ``torch.amp.GradScaler``, ``clip_grad_norm_``,
``clip_grad_value_`` and ``clip_grads_with_norm_`` of ``torch.nn.utils``, and ``DataLoader.__iter__``.

Those that every step calls are wrapped only while somebody is awake: while all watched trainings repeat the same step
and none is captured (``events.resting``), they are the functions themselves.

Only the outermost of nested calls is heard: a scheduler made of others steps once. While PyTorch compiles, a wrapper
passes through.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.compiler import is_compiling
from torch.optim import Optimizer, lr_scheduler
from torch.optim.lr_scheduler import LRScheduler

from watchglass.capture.around_importlib_bootstrap import RAISED, around
from watchglass.capture.guard import Guard

Before = Callable[[tuple[Any, ...]], None]
After = Callable[[tuple[Any, ...], dict[str, Any], Any], None]
Owners = Callable[[], Iterable[tuple[Any, str]]]


class Nest:
    """Calls that are not heard inside one another."""

    __slots__ = ("inside",)

    def __init__(self) -> None:
        self.inside = False


class PublicCall:
    """One public function, or several that are one to a listener.

    Args:
        owners: Finds what is wrapped: (owner, attribute).
        nest: Shared with calls that must not be heard inside this one.
        frequent: Whether every step of a training calls it, so that it is wrapped only while somebody is awake.
    """

    def __init__(self, owners: Owners, nest: Nest | None = None, *, frequent: bool = False) -> None:
        self._frequent = frequent
        self.before: tuple[Before, ...] = ()
        self.after: tuple[After, ...] = ()
        self.nest = nest or Nest()
        self._owners = owners
        self._listeners = 0
        self._undo: list[Callable[[], None]] = []
        # One for each function, wherever it is found: pickle looks it up by its name and compares.
        self._wrappers: dict[Callable[..., Any], Callable[..., Any]] = {}

    def listen(self, guard: Guard, *, before: Before | None = None, after: After | None = None) -> Callable[[], None]:
        """Call ``before(args)`` and ``after(args, kwargs, result)`` from now on; returns what ends that.

        Args:
            guard: Of the hook that listens.
            before: Called before the function.
            after: Called when it has returned.
        """
        before = guard.shielded(before) if before else None
        after = guard.shielded(after) if after else None
        self.before += (before,) if before else ()
        self.after += (after,) if after else ()
        self._listeners += 1
        self.settle()

        def leave() -> None:
            self.before = tuple(listener for listener in self.before if listener is not before)
            self.after = tuple(listener for listener in self.after if listener is not after)
            self._listeners -= 1
            self.settle()

        return leave

    def settle(self) -> None:
        """Wrap the functions or restore them, as it should be now."""
        wanted = self._listeners > 0 and (_awake > 0 or not self._frequent)
        if wanted and not self._undo:
            for owner, name in self._owners():
                self._wrap(owner, name)
        while self._undo and not wanted:
            self._undo.pop()()
        if not self._listeners:
            self._wrappers.clear()

    def _wrap(self, owner: Any, name: str) -> None:
        original = getattr(owner, name, None)
        if original is None:
            return  # an older PyTorch
        wrapper = self._wrappers.get(original) or self._wrappers.setdefault(original, self._wrapper(original))
        setattr(owner, name, wrapper)

        def undo() -> None:
            # Where the script has wrapped it after us, our wrapper stays inside; another around it hears each call for
            # both.
            if getattr(owner, name) is wrapper:
                setattr(owner, name, original)

        self._undo.append(undo)

    def _wrapper(self, original: Callable[..., Any]) -> Callable[..., Any]:
        heard = around(original, self._begins, self._ends, deaf=is_compiling)
        heard.watchglass = True  # type: ignore[attr-defined]
        return heard

    def _begins(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        if self.nest.inside:
            return False
        self.nest.inside = True
        for before in self.before:
            before(args)
        return True

    def _ends(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        try:
            for after in self.after if result is not RAISED else ():
                after(args, kwargs, result)
        finally:
            self.nest.inside = False


def is_heard(function: Any) -> bool:
    """Whether calls of this function, or of what it stands for, go through a wrapper of ours."""
    return hasattr(function, "watchglass")


def _schedulers(name: str) -> Iterable[tuple[Any, str]]:
    """Classes of PyTorch that define a method of schedulers themselves."""
    for value in vars(lr_scheduler).values():
        if inspect.isclass(value) and issubclass(value, LRScheduler) and name in vars(value):
            yield value, name


def _clip(name: str) -> Owners:
    # Scripts import them from either place.
    return lambda: ((torch.nn.utils, name), (torch.nn.utils.clip_grad, name))


def _data_loader() -> Iterable[tuple[Any, str]]:
    from torch.utils.data import DataLoader

    yield DataLoader, "__iter__"


#: Watched trainings that are not repeating the same uncaptured step just now.
_awake = 0


def awake(change: int) -> None:
    """A watched training wakes (1), goes to rest or is no longer watched (-1)."""
    global _awake
    _awake += change
    for call in (BACKWARD, OPTIMIZER_ZERO_GRAD, MODULE_ZERO_GRAD):
        call.settle()


_SCHEDULER, _SCALER = Nest(), Nest()

BACKWARD = PublicCall(lambda: ((torch.autograd, "backward"),), frequent=True)
OPTIMIZER_ZERO_GRAD = PublicCall(lambda: ((Optimizer, "zero_grad"),), frequent=True)
MODULE_ZERO_GRAD = PublicCall(lambda: ((nn.Module, "zero_grad"),), frequent=True)
#: Constructors step their scheduler once; that is no call of the training's.
SCHEDULER_MADE = PublicCall(lambda: _schedulers("__init__"), _SCHEDULER)
SCHEDULER_STEP = PublicCall(lambda: _schedulers("step"), _SCHEDULER)
#: A scaler's step unscales where the training has not.
SCALER_UNSCALE = PublicCall(lambda: ((torch.amp.GradScaler, "unscale_"),), _SCALER)
SCALER_STEP = PublicCall(lambda: ((torch.amp.GradScaler, "step"),), _SCALER)
SCALER_UPDATE = PublicCall(lambda: ((torch.amp.GradScaler, "update"),))
CLIP_NORM = PublicCall(_clip("clip_grad_norm_"))
CLIP_VALUE = PublicCall(_clip("clip_grad_value_"))
#: The second half of clipping where a script takes the norm itself; ``torch.nn.utils`` has it since PyTorch 2.6.
CLIP_WITH_NORM = PublicCall(lambda: ((torch.nn.utils, "clip_grads_with_norm_"),))
DATA_LOADER = PublicCall(_data_loader)
