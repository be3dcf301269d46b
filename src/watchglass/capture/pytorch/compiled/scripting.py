"""Scripting a watched model: ``torch.jit.script`` compiles the hooks of modules too, so ours are off while it runs.

Wrapped: ``torch.jit.script``, when the first model is watched, and restored with the last.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import torch
from torch import nn

Without = Callable[[], AbstractContextManager[None]]

_withouts: tuple[Without, ...] = ()
_undo: list[Callable[[], None]] = []


def without_hooks(without: Without) -> Callable[[], None]:
    """Script modules inside a context of ``without()`` from now on; returns what ends that."""
    global _withouts
    _withouts = (*_withouts, without)
    if not _undo:
        _wrap()

    def leave() -> None:
        global _withouts
        _withouts = tuple(other for other in _withouts if other is not without)
        while _undo and not _withouts:
            _undo.pop()()

    return leave


def _wrap() -> None:
    original = torch.jit.script

    @functools.wraps(original)
    def script(obj: Any, *args: Any, **kwargs: Any) -> Any:
        with ExitStack() as stack:
            if isinstance(obj, nn.Module):
                for without in _withouts:
                    stack.enter_context(without())
            elif not args:
                # Names in a class are looked up where it was scripted: one call further out than it seems.
                kwargs["_frames_up"] = kwargs.get("_frames_up", 0) + 1
            return original(obj, *args, **kwargs)

    def undo() -> None:
        # Someone may have wrapped it after us: then ours stays, and passes through.
        if torch.jit.script is script:
            torch.jit.script = original

    torch.jit.script = script
    _undo.append(undo)
