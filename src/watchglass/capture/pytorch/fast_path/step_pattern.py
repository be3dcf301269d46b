"""What the steps of a training run have in common, learned from whole steps that the full path has seen."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable

from torch import Tensor, is_grad_enabled, nn
from torch.optim import Optimizer

from watchglass.capture.pytorch.fast_path.calls_ahead import CallsAhead
from watchglass.capture.pytorch.fast_path.step_progress import ONE_EACH, SEVERAL_FOR_ONE
from watchglass.capture.pytorch.losses.objective import Objective
from watchglass.capture.pytorch.modules.module_tree import inside, is_compiled
from watchglass.capture.pytorch.step.forward_state import ForwardState, Settings
from watchglass.capture.pytorch.step.random_state import NONE
from watchglass.capture.pytorch.training_state import TrainingState
from watchglass.record import OpenStep


def gone() -> None:
    """A reference to nothing."""


class StepPattern:
    """The pattern that steps follow: one model is called, a backward runs, one optimizer steps.

    With gradient accumulation the first two come several times; in reinforcement learning the first. Held by weak
    references: it must keep no object of the script alive.

    Args:
        current: The state of the run.
        ahead: Knows which calls came ahead of the last step; told which to expect.

    Attributes:
        root: Returns the outermost module that is called.
        inside: The modules inside its wrappers.
        training: Whether it is in training mode.
        model: Number of its model.
        optimizer: Returns the optimizer.
        by_script: Whether that is the script itself.
        several: Whether one backward runs through several forwards: then each is observed.
        most: Most backwards in a step.
        parameter: Returns a parameter whose gradient is there from the first backward of a step on.
        begins: Which calls of the model may come next as a step ends.
        settings: Settings of PyTorch in the last forward that was observed in full, if that was kept.
        draws: Which random numbers that forward drew.
        random: Whether it drew any.
    """

    def __init__(self, current: TrainingState, ahead: CallsAhead) -> None:
        self._current = current
        self._ahead = ahead
        self._alike, self._habit = 0, current.port.limits.alike_steps
        self.root: Callable[[], nn.Module | None] = gone
        self.inside: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self.training = True
        self.model = 0
        self.optimizer: Callable[[], Optimizer | None] = gone
        self.by_script = self.several = False
        self.most = 1
        self.parameter: Callable[[], Tensor | None] = gone
        self.begins = ONE_EACH
        self.settings: Settings | None = None
        self.draws = NONE
        self.random = False

    def continues(self, root: nn.Module) -> bool:
        """Whether a call of this outermost module may be the pattern's; an evaluation need not be without gradients."""
        return root is self.root() and is_grad_enabled() and root.training is self.training

    def forget(self) -> None:
        """Steps did not follow it: it must be learned again."""
        self._alike = 0

    def learn(
        self, step: OpenStep, optimizer: Optimizer, objective: Objective | None, *, plain: bool, by_script: bool = False
    ) -> bool:
        """The full path has seen a whole step; returns whether it, and enough before it, followed the pattern.

        Args:
            step: The step, updated.
            optimizer: The optimizer that updated it.
            objective: The losses that were minimised.
            plain: Whether the update was a call of ``step()`` with no closure, scaler or call inside it.
            by_script: Whether ``optimizer`` stands for lines of the script.
        """
        if not plain:
            # Of several optimizers, each step: what follows costs more.
            self._alike = 0
            self._ahead.seen.clear()
            return False
        ahead = self._ahead.take(step.helpers)
        forwards, backwards = len(step.forwards), self._current.objectives.backwards
        root = self._current.models.only_root(step.mode_step - self._habit)
        fits = root is not None and ahead is not None and not (ahead and by_script)
        fits = fits and self._is_regular(step, optimizer, objective, by_script=by_script)
        before = self._ahead.expected
        if not fits or optimizer is not self.optimizer() or root is not self.root() or ahead != before:
            # If it fits, it is the first of another pattern.
            self._alike = 0
            self.optimizer, self.root = weakref.ref(optimizer), gone if root is None else weakref.ref(root)
            self.inside = weakref.WeakSet(() if root is None else inside(root))
            self._ahead.expected = ahead or ()
        self.most = max(self.most, backwards) if self._alike else backwards
        self.several = forwards > backwards or (self.several and self._alike > 0)
        self._alike += fits
        if self._alike < self._habit:
            return False
        if ahead and step.due:
            return False  # what is looked at in the step after a captured one ends with the first call ahead of it
        observed = [each() for each, _ in self._ahead.expected]
        if any(each is None or is_compiled(each) for each in (*observed, *((root,) if self.several else ()))):
            self._alike = 0
            return False
        self._ahead.follows = self.begins = SEVERAL_FOR_ONE if self.several else ONE_EACH
        if ahead:
            _, _, again, after_backward = self.begins
            self.begins = (False, False, again, after_backward)
        self._remember(step, optimizer, by_script=by_script)
        self.training = root is not None and root.training
        return True

    def _is_regular(
        self, step: OpenStep, optimizer: Optimizer, objective: Objective | None, *, by_script: bool
    ) -> bool:
        """Whether one optimizer with one learning rate made the update, from a loss for each backward."""
        forwards, groups, backwards = step.forwards, optimizer.param_groups, self._current.objectives.backwards
        return (
            not self._current.recomputed
            and self._current.quiet_steps >= self._habit
            and len(step.optimizers) == 1
            and len(groups) == 1
            and (by_script or type(groups[0].get("lr")) is float)
            and objective is not None
            and type(objective.value) is float
            and math.isfinite(objective.value)
            # One loss for each backward, and forward: nothing was cleared between them.
            and len(objective.losses) == backwards
            and (len(forwards) == backwards or (len(forwards) > backwards == 1 and not by_script))
            and all(loss.plain for loss in objective.losses)
            and all(forward.backpropagated for forward in forwards)
        )

    def _remember(self, step: OpenStep, optimizer: Optimizer, *, by_script: bool) -> None:
        """Keep what the fast path takes from the last step that was observed in full."""
        self.model, self.by_script = step.model, by_script
        state = step.forwards[-1].state
        known = isinstance(state, ForwardState)
        self.settings, self.draws = (state.settings, state.draws) if known else (None, NONE)
        self.random = True in self.draws
        parameter = self._current.objectives.parameter_of(optimizer)
        self.parameter = gone if parameter is None else weakref.ref(parameter)
