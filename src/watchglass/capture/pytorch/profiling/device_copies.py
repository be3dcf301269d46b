"""Times copies of tensors from the host to a device: ``to``, ``cuda`` and ``xpu`` of ``torch.Tensor``.

These methods are in the path of everything: of compiled code, and of what a script compares, pickles and overrides. So
only a plain tensor of the host that looks one up finds a timed one. The class shows PyTorch's method as before, also to
the script's own kinds of tensors and modes of torch functions. And while PyTorch compiles, nothing is in place.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from threading import get_ident
from types import MethodType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import has_torch_function_unary

from watchglass.capture.guard import Guard, harmless
from watchglass.capture.step_phases import StepPhases
from watchglass.capture.wrappers_importlib_bootstrap import timing

_is_tracing: Callable[[], bool] = torch.jit.is_tracing  # type: ignore[attr-defined]
_METHODS = tuple(name for name in ("to", "cuda", "xpu") if hasattr(Tensor, name))


#: Who listens in this thread, and the time by its clock.
_Begun = list[tuple[StepPhases, int]]


class CopyMethod:
    """In the place of a method of ``torch.Tensor``: plain tensors of the host find a timed one, all else the original.

    Args:
        name: The method.
        begins: Called before each call.
        ended: Gets what that returned, the tensor and the result.
    """

    __slots__ = ("_bind", "_original", "beneath", "timed")

    def __init__(self, name: str, begins: Callable[[], _Begun], ended: Callable[[_Begun, Any, Any], object]) -> None:
        self.beneath = vars(Tensor).get(name)  #: What was in this place; None where the class inherits the method.
        self._original = getattr(Tensor, name)
        self._bind = self._original.__get__
        #: The timed method as a function, with the tensor as its first argument.
        self.timed = timing(self._original, begins, ended)

    def __get__(self, tensor: Tensor | None, owner: type | None = None) -> Any:
        if tensor is None:
            return self._original
        # The order matters: a mode of the script would see that its tensor is asked for its device.
        if type(tensor) is not Tensor or has_torch_function_unary(tensor) or not tensor.is_cpu or _is_tracing():
            return self._bind(tensor)
        return MethodType(self.timed, tensor)


class _Listener(NamedTuple):
    guard: Guard
    phases: StepPhases
    thread: int


class DeviceCopies:
    """The timed methods of this process, which are in place while anyone listens and PyTorch does not compile."""

    def __init__(self) -> None:
        self._listeners: list[_Listener] = []
        self._methods: dict[str, CopyMethod] = {}
        self._compiles = False
        self._begins = harmless(self._compilation_begins)
        self._ends = harmless(self._compilation_ends)

    def listen(self, guard: Guard, phases: StepPhases) -> bool:
        """Report copies of this thread as ``phases.copied`` from now on; returns whether that is possible now.

        It is not before PyTorch has loaded its compiler, which an optimizer does, nor where a compiler of an older
        version does not say when it compiles, nor while a method is wrapped for a few calls.
        """
        if not self._listens_to_compiler():
            return False
        if not self._methods:
            if any(hasattr(vars(Tensor).get(name), "watchglass") for name in _METHODS):
                return False
            self._methods = {name: CopyMethod(name, self._begun, self._ended) for name in _METHODS}
            # The compiler reads all that is called from code that it has given up, as from code that it compiles.
            for function in (*_READ_BY_COMPILER, *(method.timed for method in self._methods.values())):
                torch.compiler.disable(function, recursive=False)
        self._listeners.append(_Listener(guard, phases, get_ident()))
        self.settle()
        return True

    def leave(self, guard: Guard) -> None:
        """The owner of this guard listens no more."""
        self._listeners = [each for each in self._listeners if each.guard is not guard]
        self.settle()

    def settle(self) -> None:
        """Put the methods in place, or take them away, as is right now; where the script has put another, it stays."""
        wanted = bool(self._listeners) and not self._compiles
        for name, method in self._methods.items():
            present = vars(Tensor).get(name)
            if wanted and present is method.beneath:
                setattr(Tensor, name, method)
            elif not wanted and present is method:
                if method.beneath is None:
                    delattr(Tensor, name)
                else:
                    setattr(Tensor, name, method.beneath)
        if not self._listeners:
            self._methods = {}
            self._leave_compiler()

    def forked(self) -> None:
        """This is a forked process: a worker of a data loader trains nothing."""
        self._listeners = [each for each in self._listeners if each.guard.active]
        self.settle()

    def _begun(self) -> _Begun:
        begun: _Begun = []
        thread = get_ident()
        for each in self._listeners:
            if each.thread == thread and each.guard.active:
                begun.append((each.phases, each.phases.now_ns()))  # a comprehension is a frame more
        return begun

    def _ended(self, begun: _Begun, tensor: Any, result: Any) -> None:
        # A wrapper around the method calls it for all tensors.
        if type(tensor) is not Tensor or type(result) is not Tensor or has_torch_function_unary(tensor):
            return
        if result.is_cpu or not tensor.is_cpu:
            return
        for phases, since_ns in begun:
            phases.copied(since_ns)
        # A script that resets the compiler has removed what listens to it.
        self._listens_to_compiler()

    def _listens_to_compiler(self) -> bool:
        compiler = _compiler()
        if compiler is None:
            return False
        if self._begins not in compiler.start_callbacks:
            compiler.register_start_callback(self._begins)
            compiler.register_end_callback(self._ends)
        return True

    def _leave_compiler(self) -> None:
        compiler = _compiler()
        with suppress(ValueError):
            if compiler is not None:
                compiler.remove_start_callback(self._begins)
                compiler.remove_end_callback(self._ends)

    def _compilation_begins(self, *of: Any) -> None:
        self._compiles = True
        self.settle()

    def _compilation_ends(self, *of: Any) -> None:
        self._compiles = False
        self.settle()


def _compiler() -> Any:
    """What says when PyTorch's compiler compiles; None where it is not loaded, or too old to say it."""
    return getattr(sys.modules.get("torch._dynamo.callback"), "callback_handler", None)


_READ_BY_COMPILER = (
    CopyMethod.__get__, DeviceCopies._begun, DeviceCopies._ended, DeviceCopies._listens_to_compiler, _compiler,
    StepPhases.copied,
)  # fmt: skip
COPIES = DeviceCopies()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=harmless(COPIES.forked))
