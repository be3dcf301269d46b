"""Losses of models that are not watched: an average of the weights, a teacher, evaluated right after one that is.

With ``watch(model)`` only the named model is watched, and a loss belongs to the model that was called last. A global
module hook observes, between the calls of an evaluation, calls of other modules. A loss that is computed after such a
call does not belong to the watched model, unless the called module takes part in its training. Examples are a head that
is trained with it, and a network that takes its output.

Compiled code is guarded on global hooks: one that comes and goes would have it compiled each time, up to PyTorch's
limit. So there is none once anything was compiled in this process.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim import Optimizer

from watchglass.capture.pytorch.compiled.graphs import compiled_so_far, compiling
from watchglass.capture.pytorch.modules.module_hooks import Switch
from watchglass.capture.pytorch.modules.module_tree import parameters_of
from watchglass.capture.pytorch.modules.nested_tensors import tensors_in
from watchglass.capture.pytorch.public_calls import COMPILE
from watchglass.capture.pytorch.training_state import TrainingState

#: Most observed calls of other modules after a forward of a watched model: later ones belong to no evaluation.
_MOST_CALLS = 1 << 14


class UnwatchedModels:
    """Observes calls of modules that are not watched, between those of an evaluation.

    Args:
        current: The state of the run; notes whether the last call was of another model.
        optimizers: Those that have stepped parameters of watched models.
    """

    def __init__(self, current: TrainingState, optimizers: Callable[[], list[Optimizer]]) -> None:
        self._current = current
        self._optimizers = optimizers
        self._calls = 0
        # Modules that are a part of the training of a watched model.
        self._ours: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        # Parameters of the optimizers, by identity, with the numbers of groups and parameters at the look-up.
        self._held: set[int] = set()
        self._looked_up: list[tuple[int, int]] = []
        port = current.port
        guarded = port.guarded(self._called, unless=compiling)
        self._observing = Switch(lambda: register_module_forward_pre_hook(guarded))
        port.detach_with(COMPILE.listen(port.guard, after=port.guarded(self._compiled)))
        port.detach_with(self._stop)

    def between(self, evaluating: bool) -> bool:
        """A call of an evaluation has ended, or the next call or a backward begins: listen between those only."""
        if not evaluating:
            self._stop()
        elif not self._observing and not compiled_so_far():
            self._calls = 0
            self._observing(True)
        return bool(self._observing)

    def _stop(self) -> None:
        self._observing(False)

    def _compiled(self, arguments: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        self._stop()

    def _called(self, module: nn.Module, arguments: Any) -> None:
        current = self._current
        self._calls += 1
        if self._calls > _MOST_CALLS:
            self._stop()
            return
        if current.models.holds(module) or next(module.parameters(), None) is None:
            return  # a loss or an activation alone is no model
        if current.returned_any_of(tensor for _, tensor in tensors_in(arguments)):
            current.called_another = False
        elif module in self._ours or current.called_another:
            return
        elif not self._is_trained_with_ours(module):
            current.called_another = True
            return
        self._ours.update(module.modules())

    def _is_trained_with_ours(self, module: nn.Module) -> bool:
        """Whether an optimizer of a watched model holds a parameter of this module, or may do so at its first step."""
        parameters = list(module.parameters())
        if self._current.models.in_a_tree(parameters[0]):
            return True  # a wrapper around it
        optimizers = self._optimizers()
        if not optimizers:
            return any(parameter.requires_grad for parameter in parameters)
        counts = [(id(each), sum(len(group["params"]) for group in each.param_groups)) for each in optimizers]
        if counts != self._looked_up:
            self._looked_up = counts
            self._held = {id(parameter) for each in optimizers for parameter in parameters_of(each)}
            self._ours.clear()
        return any(id(parameter) in self._held for parameter in parameters)
