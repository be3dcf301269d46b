"""Observes what a training script compiles.

Wrapped: ``torch.compile`` and ``torch.nn.Module.compile``, signatures kept, restored on detach.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from watchglass.capture.port import Port
from watchglass.capture.pytorch.compiled.hidden_forwards import HiddenForwards
from watchglass.capture.pytorch.modules.model_discovery import Discovery
from watchglass.capture.pytorch.modules.models import Models
from watchglass.capture.pytorch.modules.module_tree import unwrap
from watchglass.capture.pytorch.public_calls import COMPILE, COMPILE_IN_PLACE
from watchglass.capture.pytorch.step.module_capture import ModuleCapture
from watchglass.capture.pytorch.step.root_calls import RootCalls


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
