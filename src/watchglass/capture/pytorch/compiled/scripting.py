"""Makes TorchScript of a watched model equal to that of an unwatched one; nothing is captured inside it.

``torch.jit.script`` compiles the hooks of modules and the functions that they call, wrapped or not; ``torch.jit.trace``
records every operation while it runs. So while they run, our hooks are removed, PyTorch's own functions are in place,
and nothing is observed.

Wrapped: ``torch.jit.script``, ``torch.jit.trace`` and ``torch.jit.trace_module``, when the first model is watched, and
restored with the last.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FunctionType
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from watchglass.capture.port import Port
from watchglass.capture.pytorch.graph import loss_operations
from watchglass.capture.pytorch.modules.module_hooks import taken_off
from watchglass.capture.wrappers_importlib_bootstrap import around

#: Active hooks, each with its thread.
_watching: list[tuple[Port, int]] = []
_undo: list[Callable[[], None]] = []


def script_unwatched(port: Port) -> None:
    """Script and trace modules as in an unwatched run, until ``hook`` detaches."""
    if not _watching:
        for name in ("script", "trace", "trace_module"):
            _wrap(name)
    entry = port, threading.get_ident()
    _watching.append(entry)

    def leave() -> None:
        _watching.remove(entry)
        while _undo and not _watching:
            _undo.pop()()

    port.detach_with(leave)


def _wrap(name: str) -> None:
    original = getattr(torch.jit, name)
    open_stacks: list[ExitStack] = []

    def begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        given = args[0] if args else kwargs.get("obj")
        loss_operations.restore()
        if name == "script" and not isinstance(given, nn.Module):
            if isinstance(given, type) and len(args) <= 1:
                # PyTorch resolves names of a class in the caller's frame: our wrapper adds one frame.
                kwargs["_frames_up"] = kwargs.get("_frames_up", 0) + 1
            return False
        with ExitStack() as stack:
            for port, thread in _watching:
                # A training run in another thread is still observed.
                if thread == threading.get_ident():
                    port.settle()
                    stack.enter_context(port.guard.suspended())
            for each in (*args, *kwargs.values()):
                owner = getattr(each, "__self__", each)  # a module's ``forward`` stands for the module
                if isinstance(owner, nn.Module):
                    stack.enter_context(taken_off(owner))
            stack.enter_context(_without_wrappers())
            open_stacks.append(stack.pop_all())
        return True

    def end(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        if open_stacks:
            open_stacks.pop().close()

    wrapper = around(original, begin, end)

    def undo() -> None:
        # The script may have wrapped ours: then it stays, and only passes calls on.
        if getattr(torch.jit, name) is wrapper:
            setattr(torch.jit, name, original)

    setattr(torch.jit, name, wrapper)
    _undo.append(undo)


@contextmanager
def _without_wrappers() -> Iterator[None]:
    """With the original functions of ``torch.nn.functional``."""
    wrappers = {
        name: value
        for name, value in vars(functional).items()
        if isinstance(value, FunctionType) and value.__globals__["__name__"].startswith("watchglass.")
    }
    for name, wrapper in wrappers.items():
        setattr(functional, name, wrapper.__wrapped__)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for name, wrapper in wrappers.items():
            setattr(functional, name, wrapper)
