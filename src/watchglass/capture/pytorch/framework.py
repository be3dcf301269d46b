"""PyTorch for the table of frameworks: its loop and its modules."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from watchglass.capture.loops import Loop
from watchglass.capture.module_places import ParameterPlace, Place
from watchglass.capture.modules import Modules
from watchglass.capture.port import Port
from watchglass.capture.pytorch.adapter import PyTorchAdapter
from watchglass.capture.pytorch.compiled.graphs import compiling
from watchglass.capture.pytorch.early_backwards import count_early_backwards
from watchglass.capture.pytorch.first_use import attach_at_first_use
from watchglass.capture.pytorch.modules.crashed_modules import module_and_figures
from watchglass.capture.pytorch.modules.module_hooks import observe_calls
from watchglass.capture.pytorch.modules.module_tree import ModuleTree
from watchglass.config import environment


class PyTorchLoop(Loop):
    """Any loop that calls modules, found by their outermost calls where no module is given."""

    name = "torch"

    def is_loop(self, value: object) -> bool:
        """Whether this is a module."""
        return isinstance(value, nn.Module)

    def attach(self, port: Port, watched: Any = None) -> None:
        """Watch a module, or all modules that are trained."""
        adapter = PyTorchAdapter.of(port)
        if adapter is None:
            count_early_backwards(port)
        if adapter is None and watched is None and threading.current_thread() is not threading.main_thread():
            attach_at_first_use(port)
            return
        adapter = adapter or PyTorchAdapter(port, discover=watched is None)
        if watched is not None:
            adapter.attach(watched)

    def rank(self) -> int | None:
        """Rank in the process group of ``torch.distributed``, else the one that the launcher gave."""
        distributed = torch.distributed
        if distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1:
            return int(distributed.get_rank())
        return environment.group_rank()


class PyTorchModules(Modules):
    """Modules, by the tree in which they are registered; wrappers are stripped."""

    def is_model(self, value: object) -> bool:
        """Whether this is a module."""
        return isinstance(value, nn.Module)

    def modules(self, model: nn.Module) -> Iterable[tuple[nn.Module, Place]]:
        """The modules of a model with their places, in order."""
        return ModuleTree(model).modules()

    def parameters(self, model: nn.Module) -> Iterable[tuple[Tensor, ParameterPlace]]:
        """The parameters of a model with their places, in order."""
        return ModuleTree(model).places()

    def gradient(self, parameter: Tensor) -> Tensor | None:
        """Its ``grad``."""
        return parameter.grad

    def observe(
        self, model: nn.Module, entered: Callable[[Any, Any], None], returned: Callable[[Any, Any, Any], None]
    ) -> Callable[[], None]:
        """Global hooks, so that the modules are not changed; calls inside compiled code are not seen."""
        own = {id(module) for module, _ in self.modules(model)}

        def enter(module: nn.Module, arguments: Any) -> None:
            if id(module) in own and not compiling():
                entered(module, arguments)

        def leave(module: nn.Module, arguments: Any, output: Any) -> None:
            if id(module) in own and not compiling():
                returned(module, arguments, output)

        return observe_calls(enter, leave)

    def crashed(self, trace: TracebackType | None) -> tuple[str, str]:
        """The innermost module in a traceback, and shapes, dtypes or ranges of its tensors."""
        return module_and_figures(trace)
