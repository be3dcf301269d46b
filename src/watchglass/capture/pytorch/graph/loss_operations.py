"""Operations on tensors that make a loss of a model's outputs, observed while a script evaluates.

A script may write its loss with tensor operations, ``((model(x) - y) ** 2).mean()``. In training autograd's graph shows
which these are. In an evaluation there is no graph, and no hook point reports an operation. So the functions and
methods of those operations are wrapped during an evaluation, and restored when training continues: as the next forward
with gradients or the next backward begins. While a model runs, while PyTorch compiles, and for tensors of other classes
than PyTorch's they pass through.
"""

from __future__ import annotations

import functools
import os
import threading
import types
import weakref
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from watchglass.capture.guard import harmless
from watchglass.capture.port import Port
from watchglass.capture.pytorch.compiled.graphs import unless_captured
from watchglass.capture.pytorch.events import Events
from watchglass.capture.pytorch.graph.nodes import axes_of
from watchglass.capture.pytorch.modules.module_tree import is_compiled
from watchglass.capture.pytorch.public_calls import Nest, PublicCall, is_wrapped

#: Called with the operation, positional and keyword arguments, and the result.
Observed = Callable[["Traced", tuple[Any, ...], dict[str, Any], Any], None]

_PLAIN = (Tensor, nn.Parameter)


class Constant(NamedTuple):
    """An argument of an operation that is no tensor."""

    setting: str  #: What the graph calls it.
    position: int  #: Its place among positional arguments.
    name: str  #: Its name among keyword arguments.
    default: float | None = None  #: Its value by default.


class Traced(NamedTuple):
    """An operation whose calls are observed, and all that does it."""

    name: str  #: Its word; "" for those that change only arrangement, type or device of the values.
    called: tuple[str, ...]  #: Methods of a tensor and functions of ``torch`` and ``torch.nn.functional``.
    operands: int = 1  #: How many tensors it takes.
    constants: tuple[Constant, ...] = ()  #: Its other arguments.
    numbers: bool = False  #: Whether one of the operands may be a number that autograd keeps.
    several: bool = False  #: Whether it may return several tensors, as a tuple.


_AXES = Constant("axes", 1, "dim")
_KEEPDIM = Constant("keepdim", 2, "keepdim", 0)
_ALPHA = (Constant("alpha", 9, "alpha", 1),)
REDUCTIONS = ("mean", "sum")
#: Operations that change only arrangement, type or device.
ORDERLY = ("reshape", "copy")
ARRANGING = Traced(
    "",
    (
        "view", "reshape", "flatten", "squeeze", "unsqueeze", "float", "double", "to", "cpu", "cuda", "detach",
        "clone", "contiguous", "type",
    ),
)  # fmt: skip
ALL = (
    ARRANGING,
    *(Traced(name, (name,)) for name in ("exp", "log", "sqrt", "sigmoid", "tanh", "relu", "reciprocal", "log1p")),
    Traced("log_sigmoid", ("logsigmoid",)),
    Traced("neg", ("neg", "negative", "__neg__")),
    Traced("abs", ("abs", "absolute", "__abs__")),
    Traced("add", ("add", "__add__", "__radd__"), 2, _ALPHA),
    Traced("sub", ("sub", "subtract", "__sub__"), 2, _ALPHA),
    Traced("rsub", ("rsub", "__rsub__"), 2, _ALPHA),
    Traced("mul", ("mul", "multiply", "__mul__", "__rmul__"), 2, numbers=True),
    Traced("div", ("div", "divide", "true_divide", "__truediv__"), 2, numbers=True),
    Traced("pow", ("pow", "__pow__", "square"), 1, (Constant("exponent", 1, "exponent", 2),)),
    Traced("clamp", ("clamp", "clip"), 1, (Constant("min", 1, "min"), Constant("max", 2, "max"))),
    Traced("softplus", ("softplus",), 1, (Constant("beta", 1, "beta", 1), Constant("threshold", 2, "threshold", 20))),
    *(Traced(name, (name,), 1, (_AXES,)) for name in ("log_softmax", "softmax", "gather")),
    *(Traced(name, (name,), 1, (_AXES, _KEEPDIM)) for name in ("logsumexp", *REDUCTIONS)),
    Traced("index", ("__getitem__",)),
)  # fmt: skip
BY_WORD = {**dict.fromkeys(ORDERLY, ARRANGING), **{each.name: each for each in ALL if each.name}}


def given_constants(
    operation: Traced, args: tuple[Any, ...], kwargs: dict[str, Any], operand: Tensor
) -> tuple[Any, ...] | None:
    """Arguments of a call other than tensors, as the graph has them; None for one that is no plain value."""
    if operation.name == "index" and not _is_advanced(args[1] if len(args) > 1 else None):
        return None
    found: list[Any] = []
    for constant in operation.constants:
        value = kwargs.get(constant.name, constant.default)
        value = args[constant.position] if len(args) > constant.position else value
        if constant.setting == "axes":
            found.append(axes_of(value, operand.dim()))
        elif value is None or isinstance(value, (int, float)):
            found.append(None if value is None else float(value))
        else:
            return None
    return tuple(found)


def _is_advanced(index: Any) -> bool:
    """Whether elements are chosen one by one: ``log_probabilities[range(n), labels]``, ``error[mask]``."""
    each = index if isinstance(index, tuple) else (index,)
    return all(isinstance(part, (list, range)) or (hasattr(part, "dtype") and part.ndim) for part in each)


class OperationObserver:
    """Observes operations for one hook, from a call of a model in an evaluation up to the next call.

    Args:
        port: The port of the hook.
        events: Its events.
        observed: Called with each operation, on any thread.
        left: Called as it stops.
        expected: Whether there is compiled code of functions, which would be compiled once more.
    """

    def __init__(
        self, port: Port, events: Events, observed: Observed, left: Callable[[], None], expected: Callable[[], bool]
    ) -> None:
        self._guard, self._observed = port.guard, port.guarded(unless_captured(observed))
        self._left, self.expected = left, expected
        self._leave: dict[Traced, Callable[[], None]] = {}
        self._operations: frozenset[Traced] = frozenset()
        self._attends = False
        # Models called since operations are observed, by whether any part of them is compiled.
        self._compiled: weakref.WeakKeyDictionary[nn.Module, bool] = weakref.WeakKeyDictionary()
        port.on_settle.append(self.leave)
        port.detach_with(self.leave)
        events.resting.append(lambda on: self.leave())

    def called(self, root: nn.Module, *, evaluating: bool) -> None:
        """A model is about to be called: what it calls passes through."""
        # Compiled code has guards on what it calls.
        if evaluating and self._compiled.get(root) is False:
            self._attend(False)
        else:
            self.leave()

    def is_compiled(self, root: nn.Module) -> bool:
        """Whether a part of a model that has returned is compiled."""
        if root not in self._compiled:  # to look through a large model takes a while
            self._compiled[root] = is_compiled(root)
        return self._compiled[root]

    def listen(self, root: nn.Module, operations: frozenset[Traced]) -> None:
        """Observe these from now on, as this model has returned."""
        self.is_compiled(root)
        if self._operations != operations:
            with _lock:
                for operation in self._leave.keys() - operations:
                    self._leave.pop(operation)()
                for operation in operations - self._leave.keys():
                    after = functools.partial(self._after, operation)
                    self._leave[operation] = _call(operation).listen(self._guard, before=_let_others_by, after=after)
                _all[:] = [*(each for each in _all if each is not self), self]
                self._operations = operations
        self._attend(True)

    def _attend(self, on: bool) -> None:
        """Have calls reported, or have them pass through for a while."""
        self._attends = on and bool(self._leave)
        _NEST.inside = not any(observer._attends for observer in _all)

    def leave(self) -> None:
        """Stop observing: the evaluation is over, or may be."""
        if self._leave:
            with _lock:
                while self._leave:
                    self._leave.popitem()[1]()
                self._operations = frozenset()
                self._attend(False)
                if self in _all:
                    _all.remove(self)
        self._compiled.clear()
        self._left()

    def _after(self, operation: Traced, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        if self._attends and (type(result) is Tensor or (operation.several and isinstance(result, tuple))):
            self._observed(operation, args, kwargs, result)


#: Held while functions are wrapped or restored: any thread may show a tensor of another class.
_lock = threading.RLock()
_all: list[OperationObserver] = []
#: Inside of it, calls pass through.
_NEST = Nest()
_OWNERS: tuple[Any, ...] = (torch.Tensor, torch, nn.functional)


@functools.cache
def _call(operation: Traced) -> PublicCall:
    return PublicCall(functools.partial(_owners, operation), _NEST, inner=True)


def _owners(operation: Traced) -> Iterable[tuple[Any, str]]:
    """Where an operation is found; Python functions call observed methods of tensors."""
    for name in operation.called:
        for owner in _OWNERS:
            found = getattr(owner, name, None)
            if found is not None and (
                owner is Tensor or isinstance(found, types.BuiltinFunctionType) or is_wrapped(found)
            ):
                yield owner, name


def _let_others_by(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    for each in (*args, *kwargs.values()):
        if type(each) not in _PLAIN and hasattr(type(each), "__torch_function__"):
            # Its class is asked by PyTorch, and shown what it finds under this name: let that be the original.
            restore()
            return


def restore() -> None:
    """Restore all functions of PyTorch; observers begin again at the next call of a model."""
    for observer in tuple(_all):
        observer.leave()


def _forked() -> None:
    """A child process observes nothing; another thread may have held the lock at the fork."""
    global _lock
    _lock = threading.RLock()
    restore()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=harmless(_forked))
