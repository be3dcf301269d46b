"""Updates that a script makes itself: ``p.data -= lr * p.grad``, ``p.add_(...)``, an optimizer class of the script.

No hook point reports them, but the weights have changed since the last backward. This is checked at the next backward
and at the next call of a model, and only while no optimizer of PyTorch has stepped in this process. After a step of an
optimizer, changed weights mean clipping, an average or a copy, and no step. But a script may replace ``SGD.step`` by
another function, such as one that it kept from before the first optimizer was made. Then no hook observes the optimizer
any more, and its steps are found in the same way.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from watchglass.capture.pytorch.training_state import TrainingState
from watchglass.capture.pytorch.update_counters import optimizer_of
from watchglass.capture.pytorch.update_point import ScriptOptimizer, UpdatePoint
from watchglass.record import CapturedRecords
from watchglass.records import BypassedUpdates, UnsteppedBackwards

_log = logging.getLogger("watchglass")

#: Parameters that are examined, and elements of each in addition to the one with the largest gradient.
_MOST_FOLLOWED, _ELEMENTS = 4, 4
_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
#: Elements up to which the largest gradient of a parameter is looked for.
_LOOKED_THROUGH = 1 << 20
#: Nodes of autograd that are looked through for tensors of no module; and after how many backwards without any of these
#: no more are expected.
_MOST_NODES, _LOOKS = 2048, 3
#: Backwards in a row with an update behind each, after which a device is not read again; and how often it is read
#: before.
_HABIT, _QUESTIONS = 8, 64
#: Backwards after the last update over those for one update before, and over the updates, that show a loop that no
#: longer steps; the last backwards of an accumulation, or of an analysis after the training, are fewer. Of a loop that
#: has not stepped at all, backwards after which an optimizer is looked for.
_MANY_TIMES = 8
#: Backwards without an update, after which records of their forwards are dropped.
_MOST_KEPT = 256


#: Returns the tensor that is there now.
_Place = Callable[[], "Tensor | None"]


class _NotedParameter:
    """A parameter whose state is noted at the end of a backward, for the time up to the next.

    Args:
        now: Returns the present tensor in its place.
    """

    __slots__ = ("_elements", "_now", "_parameter", "_place", "_size", "_values", "_version")

    def __init__(self, now: _Place) -> None:
        self._now = now
        self._parameter: Callable[[], Tensor | None] = lambda: None
        self._version = self._place = self._size = 0
        self._elements: Tensor | None = None
        self._values: Tensor | None = None

    def note(self, *, values: bool, again: bool) -> bool:
        """Note its present state; returns False for one without a gradient.

        Args:
            values: Keep some of its values, for changes that its version does not show.
            again: Choose which by the present gradient, not by an earlier one.
        """
        parameter = self._now()
        if parameter is None or parameter.grad is None:
            return False
        same = parameter is self._parameter()
        if not (same and parameter.data_ptr() == self._place):
            if not _is_readable(parameter):
                return False
            self._parameter = weakref.ref(parameter)
        self._version, self._place = parameter._version, parameter.data_ptr()
        self._values = None
        if values:
            if again or not same or self._elements is None or parameter.numel() != self._size:
                self._size = parameter.numel()
                self._elements = _elements_of(parameter)
            self._values = parameter.detach().take(self._elements) if parameter.is_contiguous() else None
        return True

    def is_reached(self) -> bool:
        """Whether an update shows in the noted values: the gradient is not zero there, or is not read."""
        parameter = self._parameter()
        gradient = None if parameter is None else parameter.grad
        if self._values is None or self._elements is None or gradient is None:
            return True
        if not gradient.is_cpu or gradient.layout is not torch.strided:
            return True
        return bool(gradient.take(self._elements).any())

    def replaced(self) -> bool:
        """Whether another tensor, or none, is in its place now."""
        parameter = self._now()
        return parameter is None or parameter is not self._parameter()

    def moved(self) -> bool:
        """Whether its version or its memory shows a change."""
        parameter = self._parameter()
        return parameter is None or parameter._version != self._version or parameter.data_ptr() != self._place

    def changed(self, look: Callable[[], bool]) -> bool:
        """Whether its values have changed; ``look`` decides whether a device may be read."""
        parameter = self._parameter()
        if parameter is None:
            return True
        # ``p.data`` has a separate version.
        if self._values is None or self._elements is None or not (parameter.is_cpu or look()):
            return False
        if parameter.numel() != self._size or not parameter.is_contiguous():
            return True
        return not torch.equal(parameter.detach().take(self._elements), self._values)


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
        self._script = ScriptOptimizer(self._parameters)
        # Tensors of no module, in the order in which the graph of the last backward has them.
        self._loose: list[weakref.ref[Tensor]] = []
        self._without_loose = 0
        # Those whose state was noted at the end of the last backward.
        self._seen: list[_NotedParameter] = []
        # Parameters of modules that are followed, until one has no gradient or nothing has changed.
        self._followed: list[_NotedParameter] = []
        # The parameters, while no code of the script runs.
        self._present: list[Tensor] | None = None
        self._in_a_row = self._questions = self._changes = 0
        # Updates in a row that versions have shown: after some, no values are kept.
        self._moved = 0
        # Backwards since the last update, the most for one update, and the step that was open at the last of them.
        self._backwards = self._most = 0
        self._open_step = -1
        # Class of an optimizer of the model that has not stepped after some backwards in training mode.
        self._idle = ""
        #: Whether the part searches for such updates.
        self.on = True
        #: Whether there was such an update.
        self.found = False
        # Class of the optimizer that stepped, while PyTorch's hooks report its steps; and whether they no longer do.
        self._kind: type[Optimizer] | None = None
        self._bypassed = False
        # The optimizer that has not stepped, and the version of one of its parameters as a backward ended.
        self._optimizer: weakref.ref[Optimizer] | None = None
        self._version: tuple[int, int] | None = None
        self._past: BypassedUpdates | None = None
        # Tensors outside all modules were replaced; only the next backward shows it.
        self._replacing = False
        current.events.resting.append(self._rest)
        current.hook.on_settle.append(self._settle)
        current.hook.on_end.append(self._report)

    def stop(self, optimizer: Optimizer) -> None:
        """An optimizer of PyTorch steps."""
        self.on = self._bypassed = False
        self._kind = type(optimizer) if _is_hooked(type(optimizer)) else None
        self._optimizer, self._version = weakref.ref(optimizer), None
        self._most = max(self._most, self._backwards)
        self._backwards = 0
        self._seen.clear()
        self._loose.clear()
        self._updates.on_step = lambda optimizer: None

    def look(self, *, replaced: bool = False) -> bool:
        """A model is about to be called, a backward about to run, or the run is over: was there an update?

        Args:
            replaced: Other tensors are in the place of those of no module.

        Returns:
            Whether there was, and the fast path may take the steps to come.
        """
        if self._is_bypassed_now():
            step = self._current.hook.clock.train
            waits = step is not None and not step.updated and self._version is not None
            if waits and self._version != self._version_now():
                # The first such update: after its backward only a version of the weights was kept.
                self._take(replaced=False)
        if not self._seen:
            return False
        seen = self._seen
        replaced = replaced or any(each.replaced() for each in seen)
        changed = self._changed(seen) or replaced or self._is_habit()
        if not (changed or self._loose or torch.is_grad_enabled()):
            return False  # an evaluation between a backward and its update
        self._seen = []
        if not changed or not self._is_handwritten():
            self._in_a_row = 0
            self._followed = []
            return False
        self._in_a_row += self._backwards == 1
        return self._take(replaced=replaced)

    def _settle(self) -> None:
        self.look(replaced=self._replacing)

    def note(self) -> None:
        """A backward has ended on the fast path: an update may follow."""
        self._backwards += 1
        self._seen = self._follow(again=False)
        if self._seen and not any(each.is_reached() for each in self._seen):
            # Other rows of an embedding than before.
            self._seen = self._follow(again=True)

    def updated(self) -> bool:
        """Whether an update has followed the last backward on the fast path."""
        seen = self._seen
        changed = self._changed(seen)
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

    def _changed(self, seen: list[_NotedParameter]) -> bool:
        """Whether any of these has changed in place since it was noted."""
        for each in seen:
            if each.moved():
                self._moved += 1
                return True
        self._moved = 0
        return any(each.changed(self._may_ask) for each in seen)

    def look_back(self) -> None:
        """Steps were alike, and after the last backwards the usual update was not observed."""
        if self._is_bypassed_now():
            self._take(replaced=False)

    def _is_bypassed_now(self) -> bool:
        """Whether PyTorch's hooks no longer report the optimizer's steps, and this shows only now."""
        if self._kind is None or self.on or _is_hooked(self._kind):
            return False
        self.on = self.found = self._bypassed = True
        self._updates.on_step = self.stop
        return True

    def _take(self, *, replaced: bool) -> bool:
        """There was an update; returns whether the fast path may take the steps to come."""
        plain = not (self._bypassed or self._loose) and (not replaced or self._backwards == 1)
        self._backwards = 0
        self.found = True
        self._present = self._parameters()
        try:
            learned = self._updates.handwritten(self._script, plain=plain)
        finally:
            self._present = None
        if replaced:
            self._updates.replaced(self._script)
        if self._bypassed:
            self._count_bypassed()
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
            self._version = self._version_now()
            self._count()
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
                self._seen = self._follow(again=True)
            finally:
                self._present = None
        step = self._current.hook.clock.train
        if step is not None and self._backwards % _MOST_KEPT == 0:
            # The script only computes gradients, perhaps without end.
            step.paused |= step.due
            step.due = False
            del step.forwards[:-1]

    def _count(self) -> None:
        """Count the backwards of the open step; on the fast path all steps are alike."""
        step = self._current.hook.clock.train
        if step is None or step.updated:
            return
        if step.mode_step != self._open_step:
            self._most = max(self._most, self._backwards)
            self._open_step, self._backwards = step.mode_step, 0
        self._backwards += 1

    def _follow(self, *, again: bool) -> list[_NotedParameter]:
        values = self._moved < _HABIT
        noted = [each for each in self._followed if each.note(values=values, again=again)]
        if not noted or len(noted) < len(self._followed):
            self._followed = [_NotedParameter(place) for place in self._choose()]
            noted = [each for each in self._followed if each.note(values=values, again=again)]
        loose = [_NotedParameter(reference) for reference in self._loose[:_MOST_FOLLOWED]]
        return noted + [each for each in loose if each.note(values=values, again=again)]

    def _choose(self) -> list[_Place]:
        """The places of some parameters of modules that have a gradient, evenly spread."""
        places: list[_Place] = []
        for tree in self._current.models:
            owner = tree.owner
            for module in owner.modules() if owner is not None else ():
                for leaf, parameter in module.named_parameters(recurse=False):
                    if _has_gradient(parameter):
                        places.append(_now(weakref.ref(module), leaf))
        count = min(_MOST_FOLLOWED, len(places))
        return [places[index * (len(places) - 1) // max(1, count - 1)] for index in range(count)]

    def _rest(self, on: bool) -> None:
        self._version = None

    def _version_now(self) -> tuple[int, int] | None:
        """How often a parameter of the optimizer was changed in place, with the parameter's identity."""
        optimizer = None if self._optimizer is None else self._optimizer()
        for group in () if optimizer is None else optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    return (id(parameter), parameter._version) if _is_readable(parameter) else None
        return None

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
        found = [leaf for root in tensors for leaf in _leaves(root) if not models.in_a_tree(leaf)]
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
        # To look for optimizers takes a while: at the first change, the second, the fourth and so on.
        if self._changes & (self._changes - 1):
            return False
        return optimizer_of(self._parameters()) is None

    def _may_ask(self) -> bool:
        self._questions += 1
        return self._in_a_row < _HABIT and self._questions <= _QUESTIONS

    def _is_habit(self) -> bool:
        if self._in_a_row < _HABIT:
            return False
        parameters = self._parameters()
        return bool(parameters) and not parameters[0].is_cpu

    def _count_bypassed(self) -> None:
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

    @property
    def _name(self) -> str:
        return f"{self._kind.__name__}.step" if self._kind is not None else "step"

    def _report(self) -> None:
        if self.on and not self.found and self._backwards:
            report = UnsteppedBackwards(self._backwards, changes=self._changes, optimizer=self._idle)
            self._current.hook.add_fact(report.to_fact("backward"))
        if not self.on:
            self._report_stopped()
        if self._past is not None:
            self._current.hook.add_fact(self._past.to_fact(self._name))

    def _report_stopped(self) -> None:
        """Report backwards without an update after the last one, if they are many times what was usual before."""
        clock = self._current.hook.clock
        step = clock.train
        if step is None or step.updated or step.mode_step != self._open_step:
            return
        steps = step.mode_step - clock.first_train_step
        if steps and self._backwards >= _MANY_TIMES * max(steps, self._most):
            reason = "no optimizer stepped after any of them"
            self._current.hook.add_fact(UnsteppedBackwards(self._backwards, reason, steps=steps).to_fact("backward"))


def _is_hooked(kind: type[Optimizer]) -> bool:
    """Whether PyTorch's hooks report steps of this class: it wraps ``step`` in a function that calls them."""
    return getattr(kind.step, "hooked", False) is True


def _has_gradient(tensor: Tensor) -> bool:
    return tensor.grad is not None and _is_readable(tensor)


def _now(module: weakref.ref[nn.Module], leaf: str) -> Callable[[], Tensor | None]:
    def parameter() -> Tensor | None:
        living = module()
        if living is None:
            return None
        parameters = living._parameters
        # Those of a TorchScript module have no get().
        return parameters[leaf] if leaf in parameters else None  # noqa: SIM401

    return parameter


def _leaves(root: Tensor) -> list[Tensor]:
    """Tensors that a backward from ``root`` accumulates gradients in, in the order of the graph."""
    waiting: list[Any] = [root.grad_fn]
    seen: set[Any] = set()
    found = []
    while waiting and len(seen) < _MOST_NODES:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if isinstance(variable, Tensor):
            found.append(variable)
        waiting += [child for child, _ in reversed(node.next_functions)]
    return found


def _is_readable(parameter: Tensor) -> bool:
    """Whether versions, addresses and values of a tensor can be read."""
    return (
        type(parameter) in (Tensor, nn.Parameter)
        and parameter.dtype in _DTYPES
        and parameter.layout is torch.strided
        and not parameter.is_inference()
        and not parameter.is_meta
        and parameter.numel() > 0
    )


def _largest(parameter: Tensor) -> int:
    gradient = parameter.grad
    if (
        gradient is None
        or gradient.layout is not torch.strided
        or gradient.numel() > _LOOKED_THROUGH
        or not gradient.is_cpu
    ):
        return 0
    return int(gradient.detach().abs().argmax())


def _elements_of(parameter: Tensor) -> Tensor:
    """Which elements of a parameter are looked at: the one with the largest gradient, and others evenly spread."""
    size = parameter.numel()
    # Made on a device, without a copy from the host.
    evenly = torch.arange(0, size, max(1, size // _ELEMENTS), device=parameter.device)[:_ELEMENTS]
    largest = _largest(parameter)
    return torch.cat([evenly.new_full((1,), largest), evenly])
