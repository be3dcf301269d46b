"""Public PyTorch functions that have no hook point, wrapped once and listened to by any number of hooks.

Wrapped: ``torch.autograd.backward`` (which ``Tensor.backward`` calls), the loss functions of ``torch.nn.functional``,
and ``scale`` and ``step`` of ``torch.amp.GradScaler``. Wrapped when the first listener comes, restored when the last
one leaves, signatures kept. While PyTorch compiles or nobody listens, a wrapper passes through.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling

from watchglass.capture.around_importlib_bootstrap import RAISED, around

#: Loss functions of torch.nn.functional that are observed.
LOSS_FUNCTIONS = (
    "cross_entropy", "nll_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits", "mse_loss", "l1_loss",
    "smooth_l1_loss", "huber_loss", "kl_div", "poisson_nll_loss", "gaussian_nll_loss", "hinge_embedding_loss",
    "margin_ranking_loss", "multi_margin_loss", "multilabel_margin_loss", "multilabel_soft_margin_loss",
    "soft_margin_loss", "cosine_embedding_loss", "triplet_margin_loss", "ctc_loss",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Listener:
    """What a hook wants to hear. None of it may raise, except to stop the training: all are shielded by its guard.

    Attributes:
        before_backward: ``(tensors, gradients, chosen)``: a backward is about to run; ``gradients`` are those that it
            was given or None, ``chosen`` whether it is only for some tensors.
        after_backward: ``()``: it has ended, by itself or by an exception (one that was raised before it, as well).
        loss_computed: ``(function, arguments, kwargs, result)``: a loss function returned ``result``.
        loss_scaled: ``(losses, scaled)``: a scaler turned one into the other.
        before_scaler_step: ``(scaler, optimizer)``: a scaler is about to step an optimizer, or to skip it.
        after_scaler_step: ``(scaler, optimizer)``: that has ended.
    """

    before_backward: Callable[[Any, Any, bool], None]
    after_backward: Callable[[], None]
    loss_computed: Callable[[str, tuple[Any, ...], dict[str, Any], Any], None]
    loss_scaled: Callable[[Any, Any], None]
    before_scaler_step: Callable[[Any, Any], None]
    after_scaler_step: Callable[[Any, Any], None]


#: Arguments of torch.autograd.backward before the tensors that it is for.
_INPUTS = 5

_listeners: tuple[Listener, ...] = ()
#: Those that are not resting, and those that are.
_hearing: tuple[Listener, ...] = ()
_resting: set[Listener] = set()
_parameters: dict[str, list[str]] = {}
_undo: list[Callable[[], None]] = []
#: The loss function that is being called, by thread.
_computing = threading.local()


def listen(listener: Listener) -> None:
    """Tell ``listener`` of everything from now on; the first one wraps the functions."""
    global _listeners
    _listeners = (*_listeners, listener)
    rest(listener, False)
    if not _undo:
        _install()


def leave(listener: Listener) -> None:
    """Tell ``listener`` nothing more; the last one restores the functions."""
    global _listeners
    _listeners = tuple(other for other in _listeners if other is not listener)
    rest(listener, False)
    if not _listeners:
        while _undo:
            _undo.pop()()


def rest(listener: Listener, on: bool) -> None:
    """``listener`` does without losses for now, or no longer.

    The loss functions stay wrapped: ``F.cross_entropy(model(x), y)`` looks the function up before the model is called,
    and that call may be what ends the rest.
    """
    global _hearing
    (_resting.add if on else _resting.discard)(listener)
    _hearing = tuple(other for other in _listeners if other not in _resting)


def _install() -> None:
    _wrap(torch.autograd, "backward", _backward)
    for name in LOSS_FUNCTIONS:
        if hasattr(torch.nn.functional, name):
            _wrap(torch.nn.functional, name, _loss)
    scaler = torch.amp.GradScaler
    _wrap(scaler, "scale", _scale)
    _wrap(scaler, "step", _scaler_step)


#: Whether a wrapper is silent.
_Silent = Callable[[], bool]


def _wrap(owner: Any, name: str, make: Callable[[Callable[..., Any], _Silent], Callable[..., Any]]) -> None:
    original, left_inside = getattr(owner, name), False

    def silent() -> bool:
        # Where the script has wrapped the function after us, our wrapper stays inside, and the next one tells.
        return left_inside and bool(_undo) and getattr(owner, name) is not wrapper

    wrapper = make(original, silent)
    setattr(owner, name, wrapper)

    def undo() -> None:
        nonlocal left_inside
        left_inside = getattr(owner, name) is not wrapper
        if not left_inside:
            setattr(owner, name, original)

    _undo.append(undo)


def _backward(original: Callable[..., Any], silent: _Silent) -> Callable[..., Any]:
    def begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        if silent():
            return False
        tensors = args[0] if args else kwargs.get("tensors")
        gradients = args[1] if len(args) > 1 else kwargs.get("grad_tensors")
        chosen = kwargs.get("inputs") is not None or len(args) > _INPUTS
        for listener in _listeners:
            listener.before_backward(tensors, gradients, chosen)
        return True

    def end(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        for listener in _listeners:
            listener.after_backward()

    # The compiler must not come to guard on who listens.
    return around(original, begin, end, deaf=is_compiling)


def _loss(original: Callable[..., Any], silent: _Silent) -> Callable[..., Any]:
    name = original.__name__
    _parameters[name] = list(inspect.signature(original).parameters)

    def begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        # A mode of torch functions, as a default device is one, calls the public name once more from within.
        if not _hearing or getattr(_computing, "name", "") == name or silent():
            return False
        _computing.name = name
        return True

    def end(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        _computing.name = ""
        if isinstance(result, Tensor):
            for listener in _hearing:
                listener.loss_computed(name, args, kwargs, result)

    return around(original, begin, end, deaf=is_compiling)


def argument_of(function: str, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], default: Any) -> Any:
    """What a call of a loss function was given as its parameter ``name``."""
    if name in kwargs:
        return kwargs[name]
    return dict(zip(_parameters.get(function, ()), args, strict=False)).get(name, default)


def _scale(original: Callable[..., Any], silent: _Silent) -> Callable[..., Any]:
    def end(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        if result is not RAISED:
            outputs = args[1] if len(args) > 1 else kwargs.get("outputs")
            for listener in _listeners:
                listener.loss_scaled(outputs, result)

    return around(original, lambda args, kwargs: not silent(), end)


def _scaler_step(original: Callable[..., Any], silent: _Silent) -> Callable[..., Any]:
    def begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        if silent():
            return False
        for listener in _listeners:
            listener.before_scaler_step(args[0], _optimizer(args, kwargs))
        return True

    def end(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        for listener in _listeners:
            listener.after_scaler_step(args[0], _optimizer(args, kwargs))

    return around(original, begin, end)


def _optimizer(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args[1] if len(args) > 1 else kwargs.get("optimizer")
