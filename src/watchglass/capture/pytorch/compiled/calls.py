"""Calls of modules that were compiled in place.

``module.compile()`` compiles a module's call together with its hooks, so the hooks no longer run. Instead, the compiled
code itself is wrapped.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from torch import nn

from watchglass.capture.pytorch.compiled.graphs import compiling
from watchglass.capture.wrappers_importlib_bootstrap import RAISED, around


class CompiledCall:
    """Takes the place of the compiled call of a module that was compiled in place.

    Args:
        module: The module.
        before: Called with the module, positional and keyword arguments before each call; may raise.
        after: Called with the module, positional arguments and the result.
    """

    def __init__(
        self,
        module: nn.Module,
        before: Callable[..., Any],
        after: Callable[..., Any] = lambda module, arguments, result: None,
    ) -> None:
        self._module = weakref.ref(module)
        code: Any = module._compiled_call_impl
        self._code = code
        self.before = before
        self.after = after
        module._compiled_call_impl = self._call = around(code, self._begins, self._ends, bypass=compiling)

    def _begins(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        module = self._module()
        if module is not None:
            self.before(module, args, kwargs)
        return module is not None

    def _ends(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        module = self._module()
        if module is not None and result is not RAISED:
            self.after(module, args, result)

    def remove(self) -> None:
        """Put the compiled code back."""
        module = self._module()
        if module is not None and module._compiled_call_impl is self._call:
            module._compiled_call_impl = self._code


def is_compiled_in_place(module: nn.Module) -> bool:
    """Whether calls of this module, hooks included, go to compiled code."""
    return module._compiled_call_impl is not None
