"""Which optimizers update watched models, and the numbers by which their groups are named."""

from __future__ import annotations

import weakref
from collections.abc import Callable

from torch.optim import Optimizer

from watchglass.capture.pytorch.saving.parameter_reader import ParameterReader
from watchglass.capture.pytorch.training_state import TrainingState

#: Steps of an optimizer after which it is foreign if no model has its parameters.
_MOST_TRIES = 8


class WatchedOptimizers:
    """The optimizers that update watched models. All others become foreign, and their steps are ignored.

    Args:
        current: The state of the run.
        readings: Knows the parameters that an optimizer updates.
        unknown: Called when an optimizer steps parameters of no known model; returns whether models are looked for.
    """

    def __init__(self, current: TrainingState, readings: ParameterReader, unknown: Callable[[Optimizer], bool]) -> None:
        self._current, self._readings, self._unknown = current, readings, unknown
        #: Optimizers that live, with the number of the first group of each.
        self.numbers: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        #: Whether there has been more than one optimizer: numbered names of learning rates stay when an optimizer dies.
        self.several = False
        # Steps of those whose parameters no model has yet.
        self._tries: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()

    def living(self) -> list[Optimizer]:
        """Those that have stepped and live."""
        return list(self.numbers)

    def admit(self, optimizer: Optimizer) -> bool:
        """An optimizer is about to step, or to be skipped; returns whether it is one of these, or becomes one now."""
        if optimizer in self.numbers:
            return True
        if not self._readings.parameters(optimizer):
            self._tries[optimizer] = tries = self._tries.get(optimizer, 0) + 1
            if tries > _MOST_TRIES or not self._unknown(optimizer):
                self._current.foreign.add(optimizer)
                return False
            if not self._readings.parameters(optimizer) and not self._take_loose(optimizer):
                return False
        self.numbers[optimizer] = self._free_number(len(optimizer.param_groups))
        self.several |= len(self.numbers) > 1
        return True

    def _take_loose(self, optimizer: Optimizer) -> bool:
        """Take the parameters of an optimizer for those of no module: an image, a vector of weights.

        Not if a model has an optimizer: the updates of these parameters are then no training steps.
        """
        if self.numbers:
            return False
        for group, parameters in enumerate(group["params"] for group in optimizer.param_groups):
            for index, parameter in enumerate(parameters):
                self._current.models.add_loose(parameter, f"optimizer0/group{group}/{index}")
        return bool(self._readings.parameters(optimizer))

    def _free_number(self, groups: int) -> int:
        """The first number for the groups of an optimizer, free among all living optimizers."""
        first = 0
        for begin, other in sorted((begin, len(other.param_groups)) for other, begin in self.numbers.items()):
            if begin - first >= groups:
                break
            first = max(first, begin + other)
        return first
