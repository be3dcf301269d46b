"""Observes what a training script compiles, and calls of modules that were compiled in place.

``module.compile()`` compiles a module's call together with its hooks, so the hooks no longer run. Instead, the compiled
code itself is wrapped. Also wrapped: ``torch.compile`` and ``torch.nn.Module.compile``, signatures kept, restored
on detach.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from watchglass.capture.port import Port
from watchglass.capture.pytorch.compiled.graphs import compiling
from watchglass.capture.pytorch.modules.models import Models
from watchglass.capture.pytorch.modules.module_tree import unwrap
from watchglass.capture.pytorch.public_calls import Nest, PublicCall
from watchglass.capture.wrappers_importlib_bootstrap import RAISED, around

if TYPE_CHECKING:
    from watchglass.capture.pytorch.compiled.hidden_forwards import HiddenForwards
    from watchglass.capture.pytorch.modules.model_discovery import Discovery
    from watchglass.capture.pytorch.step.module_capture import ModuleCapture
    from watchglass.capture.pytorch.step.root_calls import RootCalls

#: Module.compile calls torch.compile: shared, so that only the outer call is reported.
_COMPILING = Nest()
COMPILE = PublicCall(lambda: ((torch, "compile"),), _COMPILING)
COMPILE_IN_PLACE = PublicCall(lambda: ((nn.Module, "compile"),), _COMPILING)


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


class Compilations:
    """Reports compilations while a training run is watched, before the first call of the compiled code.

    Args:
        port: The port.
        models: The models that are watched.
        calls: Notified of compiled versions of watched root modules, and of root modules compiled in place.
        capture: Notified of compiled modules inside a watched one.
        discovery: Notified of compiled code outside watched models, while models are discovered.
        hidden: Notified of compiled functions, which may call watched modules.
    """

    def __init__(
        self,
        port: Port,
        models: Models,
        calls: RootCalls,
        capture: ModuleCapture,
        discovery: Discovery | None,
        hidden: HiddenForwards,
    ) -> None:
        self._models, self._calls = models, calls
        self._capture, self._discovery, self._hidden = capture, discovery, hidden
        port.detach_with(COMPILE.listen(port.guard, after=port.guarded(self._compiled)))
        port.detach_with(COMPILE_IN_PLACE.listen(port.guard, after=port.guarded(self._compiled_in_place)))

    def _compiled(self, arguments: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        model = arguments[0] if arguments else kwargs.get("model")
        if isinstance(result, nn.Module):
            if self._models.knows(unwrap(result)):
                self._calls.attach(result)
            elif self._models.holds(unwrap(result)):
                self._capture.add_compiled(unwrap(result))
            elif any(map(self._models.holds, result.modules())):
                self._function()
            else:
                self._unknown(result)
        elif model is not None:
            self._function()

    def _compiled_in_place(self, arguments: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        module = arguments[0]
        if self._models.knows(module):
            self._calls.compiled(module)
        if self._models.holds(module):
            self._capture.add_compiled(module)
        else:
            self._unknown(module)

    def _unknown(self, module: nn.Module) -> None:
        if self._discovery is not None:
            self._discovery.compiled(module)

    def _function(self) -> None:
        if self._discovery is not None:
            self._discovery.expect()
        self._hidden.expect()


def is_compiled_in_place(module: nn.Module) -> bool:
    """Whether calls of this module, hooks included, go to compiled code."""
    return module._compiled_call_impl is not None
