"""Hooks that PyTorch calls. It has no public way to list them, so this file reads its private tables."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn.modules import module as every_module


def forward_hooks(module: nn.Module) -> list[Any]:
    """Hooks of one module that run after its forward."""
    return list(module._forward_hooks.values())


def pre_hooks(module: nn.Module) -> list[Any]:
    """Hooks of one module that run before its forward."""
    return list(module._forward_pre_hooks.values())


def tensor_hooks(tensor: Tensor) -> list[Any]:
    """Hooks of one leaf tensor that run with its gradient."""
    return list((tensor._backward_hooks or {}).values())


def hooks_on_all_modules() -> int:
    """Number of hooks that run with the forward of any module."""
    return len(every_module._global_forward_hooks) + len(every_module._global_forward_pre_hooks)


def pre_hooks_on_all_modules() -> int:
    """Those of them that run before it."""
    return len(every_module._global_forward_pre_hooks)
