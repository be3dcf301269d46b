"""Updates that a script makes itself: ``p.data -= lr * p.grad``, ``p.add_(...)``, an optimizer class of the script.

No hook point reports them, but the weights have changed since the last backward. This is checked at the next backward
and at the next call of a model, and only while no optimizer of PyTorch has stepped in this process. After a step of an
optimizer, changed weights mean clipping, an average or a copy, and no step. But a script may replace the ``step`` of
its optimizer, or go on without it, see ``bypassed_optimizer.py``; then its steps are found
in the same way.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from watchglass.capture.planning.sketch_pace import is_power_of_two
from watchglass.capture.pytorch.graph.autograd_graph import Graph
from watchglass.capture.pytorch.step.update_point import ScriptOptimizer, UpdatePoint
from watchglass.capture.pytorch.training_state import TrainingState
from watchglass.capture.pytorch.updates.bypassed_optimizer import BypassedOptimizer
from watchglass.capture.pytorch.updates.noted_parameters import FollowedParameters, NotedParameter
from watchglass.capture.pytorch.updates.update_counters import optimizer_of
from watchglass.record import CapturedRecords
from watchglass.records import facts

#: Nodes of autograd that are looked through for tensors of no module; and after how many backwards without any of these
#: no more are expected.
_MOST_NODES, _LOOKS = 2048, 3
#: Backwards after the last update over those for one update before, and over the updates, that show a loop that no
#: longer steps; the last backwards of an accumulation, or of an analysis after the training, are fewer. Of a loop that
#: has not stepped at all, backwards after which an optimizer is looked for.
_MANY_TIMES = 8
#: Where many times as many backwards follow each other as before an update so far: how many are followed by a look for
#: changed weights, and how many changes are updates. An analysis of the trained model changes its weights now and then.
_LOOKED_AFTER, _PASSED_BY = 64, 8
#: Backwards without an update, after which records of their forwards are dropped.
_MOST_KEPT = 256


class HandwrittenUpdates:
    """Finds updates that a script makes itself.

    Args:
        current: The state of the run.
        updates: Notified of backwards that an update may follow, and of updates.
        expected: Whether the script has made no optimizer: then gradients and weights are read in advance, and tensors
            of no module may be what is trained.
        find: Looks for models that hold any of these tensors.
    """

    def __init__(
        self,
        current: TrainingState,
        updates: UpdatePoint,
        expected: Callable[[], bool],
        find: Callable[[list[Tensor]], None],
    ) -> None:
        self._current = current
        self._updates = updates
        self._expected = expected
        self._find = find
        updates.on_step = self.stop
        # The one that stepped last, if any.
        self._optimizer = BypassedOptimizer(current)
        self._script = ScriptOptimizer(self._parameters)
        # Tensors of no module, in the order in which the graph of the last backward has them.
        self._loose: list[weakref.ref[Tensor]] = []
        self._without_loose = 0
        self._followed = FollowedParameters(current.models)
        # Those whose state was noted at the end of the last backward.
        self._seen: list[NotedParameter] = []
        # The parameters, while no code of the script runs.
        self._present: list[Tensor] | None = None
        # Backwards behind which weights had changed.
        self._changes = 0
        # Backwards since the last update, the most for one update, and the step that was open at the last of them.
        self._backwards = self._most = 0
        self._open_step = -1
        # Since the last step of an optimizer: backwards after which changed weights are looked for, those with changes.
        self._looked_after = self._unreported = 0
        # Class of an optimizer of the model that has not stepped after some backwards in training mode.
        self._idle = ""
        #: Whether the part searches for such updates.
        self.on = True
        #: Whether there was such an update.
        self.found = False
        # Tensors outside all modules were replaced; only the next backward shows it.
        self._replacing = False
        current.port.on_settle.append(self._settle)
        current.port.on_end.append(self._report)

    def stop(self, optimizer: Optimizer) -> None:
        """An optimizer of PyTorch steps."""
        self.on = False
        self._optimizer.stepped(optimizer)
        self._most = max(self._most, self._backwards)
        self._backwards = self._looked_after = self._unreported = 0
        self._seen.clear()
        self._loose.clear()

    def look(self, *, replaced: bool = False) -> bool:
        """A model is about to be called, a backward about to run, or the run is over: was there an update?

        Args:
            replaced: Other tensors are in the place of those of no module.

        Returns:
            Whether there was, and the fast path may take the steps to come.
        """
        if not self.on and self._optimizer.is_replaced():
            self._search_again()
            step = self._current.port.clock.train
            if step is not None and not step.updated and self._optimizer.has_updated():
                # The first such update: after its backward only a version of the weights was kept.
                self._take(replaced=False)
        if not self._seen:
            return False
        if not self.on:
            return self._look_past_optimizer()
        seen = self._seen
        replaced = replaced or any(each.replaced() for each in seen)
        changed = self._followed.changed(seen) or replaced or (self._followed.is_habit and self._is_on_device())
        if not (changed or self._loose or torch.is_grad_enabled()):
            return False  # an evaluation between a backward and its update
        self._seen = []
        if not changed or not self._is_handwritten():
            self._followed.forget()
            return False
        self._followed.in_a_row += self._backwards == 1
        return self._take(replaced=replaced)

    def _look_past_optimizer(self) -> bool:
        """Whether weights change after backwards although no optimizer steps, so that these changes are updates."""
        seen, self._seen = self._seen, []
        self._unreported += any(each.replaced() for each in seen) or self._followed.changed(seen)
        if self._unreported < _PASSED_BY:
            return False
        self._optimizer.passed_by(self._unreported - 1)
        self._search_again()
        return self._take(replaced=False)

    def _settle(self) -> None:
        self.look(replaced=self._replacing)

    def note(self) -> None:
        """A backward has ended on the fast path: an update may follow."""
        self._backwards += 1
        self._seen = self._followed.note(self._loose, again=False)
        if self._seen and not any(each.is_reached() for each in self._seen):
            # Other rows of an embedding than before.
            self._seen = self._followed.note(self._loose, again=True)

    @property
    def visible(self) -> bool:
        """Whether versions have shown the last updates."""
        return self._followed.is_moving

    def updated(self) -> bool:
        """Whether an update has followed the last backward on the fast path."""
        seen = self._seen
        changed = self._followed.changed(seen)
        if any(each.replaced() for each in seen):
            self._updates.replaced(self._script)
            changed = True
        if changed:
            self._backwards = 0
        if changed or torch.is_grad_enabled():
            self._seen = []
        return changed

    def read(self, records: CapturedRecords) -> None:
        """The fast path ends after a backward: what was read of its gradients."""
        self._updates.gradients_read(records)

    def look_back(self) -> None:
        """Steps were alike, and after the last backwards the usual update was not observed."""
        if not self.on and self._optimizer.is_replaced(missed=True):
            self._search_again()
            self._take(replaced=False)

    def _search_again(self) -> None:
        """PyTorch's hooks no longer report the optimizer's steps."""
        self.on = self.found = True

    def _take(self, *, replaced: bool) -> bool:
        """There was an update; returns whether the fast path may take the steps to come."""
        plain = not (self._optimizer.bypassed or self._loose) and (not replaced or self._backwards == 1)
        self._backwards = 0
        self.found = True
        self._present = self._parameters()
        try:
            learned = self._updates.handwritten(self._script, plain=plain)
        finally:
            self._present = None
        if replaced:
            self._updates.replaced(self._script)
        if self._optimizer.bypassed:
            self._optimizer.count()
        return learned

    def before_backward(self, roots: Sequence[Any]) -> None:
        """A backward is about to run from these tensors."""
        if not self.on or not self._expected():
            self.look()
            return
        alone = not self._current.models.roots()
        if not (alone or self._without_loose < _LOOKS):
            self.look()
            return
        before = [reference() for reference in self._loose]
        found = self._loose_of(roots)
        # In a script with models, other tensors at each backward are their inputs.
        same = len(before) == len(found) and all(one is other for one, other in zip(before, found, strict=True))
        self._replacing = alone and bool(before) and not same
        self.look(replaced=self._replacing)
        self._without_loose = 0 if found else self._without_loose + 1
        self._loose = [weakref.ref(leaf) for leaf in found]
        for index, leaf in enumerate(found):
            self._current.models.add_loose(leaf, f"parameters/{index}")

    def after_backward(self) -> None:
        """A backward has ended."""
        if not self.on:
            self._optimizer.note()
            self._count()
            many = self._backwards >= _MANY_TIMES * max(1, self._most)
            if many and self._looked_after < _LOOKED_AFTER and not self._current.in_forward:
                self._looked_after += 1
                with torch.no_grad():
                    self._seen = self._followed.note((), again=True)
            return
        self._backwards += 1
        if self._backwards == _MANY_TIMES and not self._idle and not self.found:
            # Now, as an optimizer of a function is gone when the process ends.
            forward = self._current.forward
            trains = forward is None or forward.training
            idle = optimizer_of(self._parameters()) if trains else None
            self._idle = type(idle).__name__ if idle is not None else ""
        if not self._current.in_forward:
            self._present = self._parameters()
            try:
                with torch.no_grad():
                    self._updates.may_be_handwritten(self._script, read=self.found or self._expected())
                self._seen = self._followed.note(self._loose, again=True)
            finally:
                self._present = None
        step = self._current.port.clock.train
        if step is not None and self._backwards % _MOST_KEPT == 0:
            # The script only computes gradients, perhaps without end.
            step.paused |= step.due
            step.due = False
            del step.forwards[:-1]

    def _count(self) -> None:
        """Count the backwards of the open step; on the fast path all steps are alike."""
        step = self._current.port.clock.train
        if step is None or step.updated:
            return
        if step.mode_step != self._open_step:
            self._most = max(self._most, self._backwards)
            self._open_step, self._backwards = step.mode_step, 0
            self._looked_after = self._unreported = 0
        self._backwards += 1

    def _parameters(self) -> list[Tensor]:
        if self._present is not None:
            return self._present
        # Not as the trees have them: parameters may be replaced at each update.
        owners = [owner for tree in self._current.models if (owner := tree.owner) is not None]
        found = [parameter for owner in owners for parameter in owner.parameters() if parameter.requires_grad]
        return found + [parameter for reference in self._loose if (parameter := reference()) is not None]

    def _loose_of(self, roots: Sequence[Any]) -> list[Tensor]:
        """Tensors of no module that a backward from these tensors gives gradients to."""
        models = self._current.models
        tensors = [root for root in roots if isinstance(root, Tensor) and root.requires_grad]
        leaves = (leaf for root in tensors for leaf in reversed(Graph(root.grad_fn, _MOST_NODES).parameters.values()))
        found = [leaf for leaf in leaves if not models.in_a_tree(leaf)]
        if found:
            models.refresh()
            self._find(found)  # modules may be called by their forward, past every hook
            found = [leaf for leaf in found if not models.in_a_tree(leaf)]
        return found

    def _is_handwritten(self) -> bool:
        """Whether changed weights are an update, and no change by a script before its optimizer's first step."""
        self._changes += 1
        if self.found:
            return True
        # To look for optimizers takes a while.
        return is_power_of_two(self._changes) and optimizer_of(self._parameters()) is None

    def _is_on_device(self) -> bool:
        parameters = self._parameters()
        return bool(parameters) and not parameters[0].is_cpu

    def _report(self) -> None:
        if self.on and not self.found and self._backwards:
            report = facts.UnsteppedBackwards(self._backwards, changes=self._changes, optimizer=self._idle)
            self._current.port.add_fact(report, "backward")
        if not self.on:
            self._report_stopped()
        self._optimizer.report()

    def _report_stopped(self) -> None:
        """Report backwards without an update after the last one, if they are many times what was usual before."""
        clock = self._current.port.clock
        step = clock.train
        if step is None or step.updated or step.mode_step != self._open_step:
            return
        steps = step.mode_step - clock.first_train_step
        if steps and self._backwards >= _MANY_TIMES * max(steps, self._most):
            reason = "no optimizer stepped after any of them"
            self._current.port.add_fact(facts.UnsteppedBackwards(self._backwards, reason, steps=steps), "backward")
