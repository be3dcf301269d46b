"""TorchScript made of a watched model: it holds what that of an unwatched one would.

``torch.jit.script`` compiles the hooks of modules too, and the functions that they call, wrapped or not;
``torch.jit.trace`` records whatever is done while it runs. So while they run, modules are without our hooks, functions
are what PyTorch has made them, and nobody listens.

Wrapped: ``torch.jit.script``, ``torch.jit.trace`` and ``torch.jit.trace_module``, when the first model is watched, and
restored with the last.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import FunctionType
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from watchglass.capture.around_importlib_bootstrap import around
from watchglass.capture.hook import Hook
from watchglass.capture.pytorch.module_hooks import Unsaved

Without = Callable[[], AbstractContextManager[None]]

_NAMES = ("script", "trace", "trace_module")

_withouts: tuple[Without, ...] = ()
_undo: list[Callable[[], None]] = []


def script_unwatched(hook: Hook) -> None:
    """Script and trace modules as if nobody watched, until ``hook`` detaches."""
    thread = threading.get_ident()

    @contextmanager
    def unheard() -> Iterator[None]:
        if threading.get_ident() != thread:
            # The training goes on meanwhile, and is heard; what another thread calls is not, in any case.
            yield
            return
        hook.settle()
        with hook.guard.suspended():
            yield

    hook.detach_with(_inside(unheard))


def _inside(without: Without) -> Callable[[], None]:
    """Script and trace inside a context of ``without()`` from now on; returns what ends that."""
    global _withouts
    _withouts = (*_withouts, without)
    if not _undo:
        for name in _NAMES:
            _wrap(name)

    def leave() -> None:
        global _withouts
        _withouts = tuple(other for other in _withouts if other is not without)
        while _undo and not _withouts:
            _undo.pop()()

    return leave


def _wrap(name: str) -> None:
    original = getattr(torch.jit, name)

    open_stacks: list[ExitStack] = []

    def begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        given = args[0] if args else kwargs.get("obj")
        if name == "script" and isinstance(given, type) and len(args) <= 1:
            # Names in a class are looked up where it was scripted: one call further out than it seems.
            kwargs["_frames_up"] = kwargs.get("_frames_up", 0) + 1
        if name == "script" and not isinstance(given, nn.Module):
            return False
        with ExitStack() as stack:
            for without in _withouts:
                stack.enter_context(without())
            for each in (*args, *kwargs.values()):
                owner = getattr(each, "__self__", each)  # a module's ``forward`` stands for the module
                if isinstance(owner, nn.Module):
                    stack.enter_context(_without_hooks(owner))
            stack.enter_context(_without_wrappers())
            open_stacks.append(stack.pop_all())
        return True

    def end(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        if open_stacks:
            open_stacks.pop().close()

    wrapper = around(original, begin, end)

    def undo() -> None:
        # Someone may have wrapped it after us: then ours stays, and passes through.
        if getattr(torch.jit, name) is wrapper:
            setattr(torch.jit, name, original)

    setattr(torch.jit, name, wrapper)
    _undo.append(undo)


@contextmanager
def _without_hooks(root: nn.Module) -> Iterator[None]:
    """Without hooks of ours on a module and all below it; they come back in their places and under their numbers."""
    taken: list[tuple[MutableMapping[int, Any], dict[int, Any]]] = []
    for module in root.modules():
        if isinstance(module, torch.jit.ScriptModule):
            continue  # these take no hooks
        for register in (module.register_forward_hook, module.register_forward_pre_hook):
            # A hook of its own leads to where a module's hooks are.
            handle = register(_nothing)
            hooks: Any = handle.hooks_dict_ref()
            handle.remove()
            ours = [number for number, hook in hooks.items() if isinstance(hook, Unsaved)]
            if ours:
                taken.append((hooks, dict(hooks)))
            for number in ours:
                del hooks[number]
    try:
        yield
    finally:
        for hooks, before in taken:
            added = {number: hook for number, hook in hooks.items() if number not in before}
            hooks.clear()
            hooks.update(before | added)


@contextmanager
def _without_wrappers() -> Iterator[None]:
    """With the functions of ``torch.nn.functional`` as PyTorch has made them."""
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


def _nothing(*arguments: Any) -> None:
    """A hook."""
