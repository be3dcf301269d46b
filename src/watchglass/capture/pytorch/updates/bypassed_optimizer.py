"""An optimizer whose steps PyTorch's hooks no longer report.

A script may have replaced its ``step`` by a function that calls no hooks: one that it kept from before the first
optimizer was made, in the class or in the optimizer itself. Or other code than the optimizer updates the weights from
some step on. No hook point reports such updates, but the weights have changed since the last backward.
"""

from __future__ import annotations

import logging
import weakref
from dataclasses import replace
from typing import Any

from torch.optim import Optimizer

from watchglass.capture.pytorch.training_state import TrainingState
from watchglass.capture.pytorch.updates.noted_parameters import NotedParameter
from watchglass.records import facts

_log = logging.getLogger("watchglass")


class BypassedOptimizer:
    """Finds that the optimizer's steps are no longer reported, and counts the updates since then.

    Args:
        current: The state of the run.
    """

    def __init__(self, current: TrainingState) -> None:
        self._current = current
        self.bypassed = False  #: Whether PyTorch's hooks no longer report its steps.
        # Class of the optimizer that stepped, if PyTorch's hooks reported that.
        self._kind: type[Optimizer] | None = None
        # The optimizer, what a script had put in the place of its method by then, and one of its parameters as a
        # backward ended.
        self._optimizer: weakref.ref[Optimizer] | None = None
        self._own: Any = None
        self._noted: NotedParameter | None = None
        # Updates that were noticed too late to be recorded as steps.
        self._missed = 0
        self._past: facts.BypassedUpdates | None = None
        current.events.resting.append(self._rest)

    def stepped(self, optimizer: Optimizer) -> None:
        """A hook has reported a step."""
        self.bypassed = False
        self._kind = type(optimizer) if _is_hooked(type(optimizer)) else None
        self._optimizer, self._noted = weakref.ref(optimizer), None
        self._own, self._missed = optimizer.__dict__.get("step"), 0

    def is_replaced(self, *, missed: bool = False) -> bool:
        """Whether PyTorch's hooks reported its steps, and no longer do.

        Args:
            missed: Whether a usual step was not reported. Else changed weights decide: a function in the place of the
                method of this optimizer may call the hooked one.
        """
        optimizer = None if self._optimizer is None else self._optimizer()
        own = None if optimizer is None else optimizer.__dict__.get("step")
        # That of a scheduler has the mark of the hooked one.
        replaced = own is not self._own and own is not None and not _has_mark(own)
        passes_hooks = self._kind is not None and not _is_hooked(self._kind)
        self.bypassed = passes_hooks or (self._kind is not None and replaced and (missed or self.has_updated()))
        return self.bypassed

    def note(self) -> None:
        """A backward has ended: an update may follow."""
        optimizer = None if self._optimizer is None else self._optimizer()
        groups = () if optimizer is None else optimizer.param_groups
        first = next((each for group in groups for each in group["params"] if each.grad is not None), None)
        self._noted = None if first is None else NotedParameter(weakref.ref(first))
        if self._noted is not None and not self._noted.note(values=False, again=False):
            self._noted = None

    def has_updated(self) -> bool:
        """Whether weights have changed since the end of the last backward."""
        return self._noted is not None and not self._noted.replaced() and self._noted.moved()

    def passed_by(self, updates: int) -> None:
        """Weights have changed after so many backwards, and none of its steps was reported."""
        self.bypassed, self._missed = True, updates

    def count(self) -> None:
        """There was an update that no hook has reported."""
        past = self._past
        if past is not None:
            self._past = replace(past, steps=(past.steps or 0) + 1)
            return
        step = self._current.port.clock.next_train_step - 1
        reason = f"{self._name} was replaced by a function that calls no hooks"
        if self._missed:
            reason = f"other code than {self._name} updates the weights; {self._missed} earlier updates are no steps"
        first = facts.BypassedUpdates(step, reason)
        self._current.port.add_fact(first, self._name)
        self._past = replace(first, steps=1)
        _log.warning(
            "watchglass: %s: since step %d its steps are recognised by the weights that they change, and recorded "
            "without learning rates%s",
            reason,
            step,
            "" if self._missed else "; restore the original step, or replace it before the first optimizer is made",
        )

    def report(self) -> None:
        """Record how many of them there were, if there were any."""
        if self._past is not None:
            self._current.port.add_fact(self._past, self._name)

    @property
    def _name(self) -> str:
        return f"{self._kind.__name__}.step" if self._kind is not None else "step"

    def _rest(self, on: bool) -> None:
        self._noted = None


def _is_hooked(kind: type[Optimizer]) -> bool:
    """Whether PyTorch's hooks report steps of this class: it wraps ``step`` in a function that calls them."""
    return _has_mark(kind.step)


def _has_mark(step: Any) -> bool:
    return getattr(step, "hooked", False) is True
