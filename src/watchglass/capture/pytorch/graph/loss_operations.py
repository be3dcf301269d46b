"""Operations on tensors that make a loss of a model's outputs, observed while a script evaluates.

A script may write its loss with tensor operations, ``((model(x) - y) ** 2).mean()``. In training autograd's graph shows
which these are. In an evaluation there is no graph, and no hook point reports an operation. So the functions and
methods of those operations are wrapped during an evaluation, and restored when training continues: as the next forward
with gradients or the next backward begins. While a model runs, while PyTorch compiles, and for tensors of other classes
than PyTorch's they pass through.
"""

from __future__ import annotations

import os
import threading
import types
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from watchglass.capture.guard import harmless
from watchglass.capture.pytorch.compiled.graphs import compiling
from watchglass.capture.pytorch.graph.nodes import operation_of, signed
from watchglass.capture.wrappers_importlib_bootstrap import RAISED, around

#: Called with the operation, positional and keyword arguments, and the result.
Observed = Callable[["Traced", tuple[Any, ...], dict[str, Any], Any], None]

_PLAIN = (Tensor, nn.Parameter)
_BUILTIN = (types.BuiltinFunctionType,)


class Constant(NamedTuple):
    """An argument of an operation that is no tensor.

    Attributes:
        saved: What autograd's node calls it.
        position: Its place among positional arguments.
        name: Its name among keyword arguments.
        default: Its value by default.
    """

    saved: str
    position: int
    name: str
    default: Any = None


class Traced(NamedTuple):
    """An operation whose calls are observed, and all that does it.

    Attributes:
        name: Its word; "" for those that change only arrangement, type or device of the values.
        called: Methods of a tensor and functions of ``torch`` and ``torch.nn.functional``.
        operands: How many tensors it takes.
        constants: Its other arguments.
        numbers: Whether one of the operands may be a number that autograd keeps.
        several: Whether it may return several tensors, as a tuple.
    """

    name: str
    called: tuple[str, ...]
    operands: int = 1
    constants: tuple[Constant, ...] = ()
    numbers: bool = False
    several: bool = False


_DIM = Constant("_saved_dim", 1, "dim")
_KEEPDIM = Constant("_saved_keepdim", 2, "keepdim", False)
REDUCTIONS, _LOGSUMEXP = ("mean", "sum"), "logsumexp"
_ALPHA = (Constant("_saved_alpha", 9, "alpha", 1),)
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
    Traced("pow", ("pow", "__pow__", "square"), 1, (Constant("_saved_exponent", 1, "exponent", 2),)),
    Traced("clamp", ("clamp", "clip"), 1, (Constant("_saved_min", 1, "min"), Constant("_saved_max", 2, "max"))),
    Traced("softplus", ("softplus",), 1,
           (Constant("_saved_beta", 1, "beta", 1), Constant("_saved_threshold", 2, "threshold", 20))),
    Traced("log_softmax", ("log_softmax",), 1, (_DIM,)),
    Traced("softmax", ("softmax",), 1, (_DIM,)),
    Traced(_LOGSUMEXP, ("logsumexp",), 1, (_DIM, _KEEPDIM)),
    Traced("gather", ("gather",), 1, (_DIM,)),
    Traced("index", ("__getitem__",)),
    Traced("mean", ("mean",), 1, (_DIM, _KEEPDIM)),
    Traced("sum", ("sum",), 1, (_DIM, _KEEPDIM)),
)  # fmt: skip
_BY_WORD = {**dict.fromkeys(ORDERLY, ARRANGING), **{each.name: each for each in ALL if each.name}}


def of_node(node: Any) -> Traced | None:
    """The operation whose node of autograd this is; None for one that is not followed."""
    return _BY_WORD.get(operation_of(node).word)


def saved_constants(operation: Traced, node: Any) -> tuple[Any, ...] | None:
    """Arguments of an operation other than tensors, from its node; None for one that is no plain value."""
    try:
        values = [getattr(node, constant.saved, constant.default) for constant in operation.constants]
    except RuntimeError:
        return None  # a tensor, and let go of by a backward before
    axes = len(getattr(node, "_saved_self_sym_sizes", ()))
    return _plain_constants(operation, values, axes)


def given_constants(
    operation: Traced, args: tuple[Any, ...], kwargs: dict[str, Any], operand: Tensor
) -> tuple[Any, ...] | None:
    """The same, from a call."""
    if operation.name == "index" and not _is_advanced(args[1] if len(args) > 1 else None):
        return None
    values = [
        args[constant.position] if len(args) > constant.position else kwargs.get(constant.name, constant.default)
        for constant in operation.constants
    ]
    return _plain_constants(operation, values, operand.dim())


def _plain_constants(operation: Traced, values: Sequence[Any], axes: int) -> tuple[Any, ...] | None:
    found: list[Any] = []
    for constant, value in zip(operation.constants, values, strict=True):
        if constant is _DIM and operation.name in (*REDUCTIONS, _LOGSUMEXP) and value is not None:
            each = value if isinstance(value, (tuple, list)) else (value,)
            if not each:
                found.append(None)
                continue
            if not all(isinstance(axis, int) for axis in each):
                return None
            # Not every node shows its number of axes.
            count = max(1, axes) if operation.name != _LOGSUMEXP else 0
            found.append(tuple(sorted(signed(axis) % count if count else signed(axis) for axis in each)))
        elif value is None or isinstance(value, (bool, float)):
            found.append(value)
        elif isinstance(value, int):
            found.append(float(signed(value)))
        else:
            return None
    return tuple(found)


def _is_advanced(index: Any) -> bool:
    """Whether elements are chosen one by one: ``log_probabilities[range(n), labels]``, ``error[mask]``."""
    each = index if isinstance(index, tuple) else (index,)
    return all(isinstance(part, (list, range)) or (hasattr(part, "dtype") and part.ndim) for part in each)


class OperationObserver:
    """Observes operations for one hook.

    Args:
        observed: Called with each operation, on any thread, under the hook's guard.
    """

    def __init__(self, observed: Observed) -> None:
        self._observed = observed
        #: The operations that are wrapped for it.
        self.operations: frozenset[Traced] = frozenset()

    def listen(self, operations: frozenset[Traced]) -> None:
        """Observe these from now on."""
        if self.operations != operations:
            with _lock:
                self.operations = operations
                if self not in _all:
                    _all.append(self)
                _settle()
        self.attend(True)

    def attend(self, on: bool) -> None:
        """Have calls reported, or have them pass through for a while."""
        global _attending
        others = tuple(other for other in _attending if other is not self)
        _attending = (*others, self) if on and self.operations else others

    def leave(self) -> None:
        """Stop observing."""
        if self.operations:
            with _lock:
                self.operations = frozenset()
                self.attend(False)
                if self in _all:
                    _all.remove(self)
                _settle()


#: Held while functions are wrapped or restored: any thread may show a tensor of another class.
_lock = threading.RLock()
_all: list[OperationObserver] = []
_attending: tuple[OperationObserver, ...] = ()
#: Functions that restore wrapped operations, by owner and name. Wrappers are kept: making one is slow.
_undo: dict[tuple[str, str], Callable[[], bool]] = {}
_wrappers: dict[tuple[str, str], tuple[Any, Any]] = {}
_OWNERS: dict[str, Any] = {"tensor": torch.Tensor, "torch": torch, "functional": nn.functional}


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


def _settle() -> None:
    wanted = {
        (owner, name): operation
        for observer in _all
        for operation in observer.operations
        for name in operation.called
        for owner in _OWNERS
        if _is_one(owner, name)
    }
    for place in [place for place in _undo if place not in wanted]:
        if _undo[place]():
            del _undo[place]
    for place, operation in wanted.items():
        if place not in _undo:
            _undo[place] = _wrap(*place, operation)


def _is_one(owner: str, name: str) -> bool:
    """Whether an owner has an operation of this name; Python functions call observed methods of tensors."""
    found = getattr(_OWNERS[owner], name, None)
    return found is not None and (owner == "tensor" or (owner, name) in _undo or type(found) in _BUILTIN)


def _wrap(owner: str, name: str, operation: Traced) -> Callable[[], bool]:
    holder = _OWNERS[owner]
    original, inherited = getattr(holder, name), name not in vars(holder)
    known = _wrappers.get((owner, name))
    if known is None or known[0] is not original:
        known = _wrappers[owner, name] = original, _wrapper(original, operation)
    wrapper = known[1]
    setattr(holder, name, wrapper)

    def undo() -> bool:
        if getattr(holder, name) is not wrapper:
            return False  # another library has wrapped it since: ours is in there, and passes through
        if inherited:
            delattr(holder, name)
        else:
            setattr(holder, name, original)
        return True

    return undo


def _wrapper(original: Callable[..., Any], operation: Traced) -> Callable[..., Any]:
    def begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        if not _attending:
            return False
        for each in (*args, *kwargs.values()):
            if type(each) not in _PLAIN and hasattr(type(each), "__torch_function__"):
                # Its class is asked by PyTorch, and shown what it finds under this name: let that be the original.
                restore()
                return False
        return True

    def end(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        if result is RAISED or not (type(result) is Tensor or (operation.several and isinstance(result, tuple))):
            return
        for observer in _attending:
            if operation in observer.operations:
                observer._observed(operation, args, kwargs, result)

    return around(original, begin, end, bypass=compiling)
