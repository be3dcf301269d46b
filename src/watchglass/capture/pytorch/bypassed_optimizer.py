"""An optimizer whose ``step`` a script has replaced by a function that calls no hooks.

An example is a function that the script kept from before the first optimizer was made. No hook point reports these
steps, but the weights have changed since the last backward.
"""

from __future__ import annotations

import logging
import weakref
from dataclasses import replace

from torch.optim import Optimizer

from watchglass.capture.pytorch.noted_parameters import is_readable
from watchglass.capture.pytorch.training_state import TrainingState
from watchglass.records import BypassedUpdates

_log = logging.getLogger("watchglass")


class BypassedOptimizer:
    """Finds that the step of the optimizer was replaced, and counts the updates since then.

    Args:
        current: The state of the run.

    Attributes:
        bypassed: Whether PyTorch's hooks no longer report its steps.
    """

    def __init__(self, current: TrainingState) -> None:
        self._current = current
        self.bypassed = False
        # Class of the optimizer that stepped, if PyTorch's hooks reported that.
        self._kind: type[Optimizer] | None = None
        # The optimizer, and the version of one of its parameters as a backward ended.
        self._optimizer: weakref.ref[Optimizer] | None = None
        self._version: tuple[int, int] | None = None
        self._past: BypassedUpdates | None = None
        current.events.resting.append(self._rest)

    def stepped(self, optimizer: Optimizer) -> None:
        """A hook has reported a step."""
        self.bypassed = False
        self._kind = type(optimizer) if _is_hooked(type(optimizer)) else None
        self._optimizer, self._version = weakref.ref(optimizer), None

    def is_replaced(self) -> bool:
        """Whether PyTorch's hooks reported its steps, and no longer do."""
        self.bypassed = self._kind is not None and not _is_hooked(self._kind)
        return self.bypassed

    def note(self) -> None:
        """A backward has ended: an update may follow."""
        self._version = self._version_now()

    def has_updated(self) -> bool:
        """Whether weights have changed since the end of the last backward."""
        return self._version is not None and self._version != self._version_now()

    def count(self) -> None:
        """There was an update that no hook has reported."""
        past = self._past
        if past is not None:
            self._past = replace(past, steps=(past.steps or 0) + 1)
            return
        step = self._current.hook.clock.next_train_step - 1
        reason = f"{self._name} was replaced by a function that calls no hooks"
        first = BypassedUpdates(step, reason)
        self._current.hook.add_fact(first.to_fact(self._name))
        self._past = replace(first, steps=1)
        _log.warning(
            "watchglass: %s: since step %d its steps are recognised by the weights that they change, and recorded "
            "without learning rates; restore the original step, or replace it before the first optimizer is made",
            reason,
            step,
        )

    def report(self) -> None:
        """Record how many of them there were, if there were any."""
        if self._past is not None:
            self._current.hook.add_fact(self._past.to_fact(self._name))

    @property
    def _name(self) -> str:
        return f"{self._kind.__name__}.step" if self._kind is not None else "step"

    def _rest(self, on: bool) -> None:
        self._version = None

    def _version_now(self) -> tuple[int, int] | None:
        """How often a parameter of the optimizer was changed in place, with the parameter's identity."""
        optimizer = None if self._optimizer is None else self._optimizer()
        for group in () if optimizer is None else optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    return (id(parameter), parameter._version) if is_readable(parameter) else None
        return None


def _is_hooked(kind: type[Optimizer]) -> bool:
    """Whether PyTorch's hooks report steps of this class: it wraps ``step`` in a function that calls them."""
    return getattr(kind.step, "hooked", False) is True
