"""Times of the modules of a model, in some training steps that are not captured.

Two global hooks note where a module begins and ends in the forward. In the backward, hooks on nodes of autograd's graph
note where the gradient arrives at the output of a module, and where it leaves at its input. A full backward hook would
put nodes of its own into the graph, and forbid modules that work in place.
"""

from __future__ import annotations

import functools
import logging
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from watchglass.capture.pytorch.compiled.graphs import captured, compiling
from watchglass.capture.pytorch.device.readback import Stopwatch, stopwatch_of
from watchglass.capture.pytorch.events import ForwardCall
from watchglass.capture.pytorch.modules.module_hooks import Switch
from watchglass.capture.pytorch.modules.module_tree import is_compiled, unwrap
from watchglass.capture.pytorch.modules.nested_tensors import tensors_in
from watchglass.capture.pytorch.step.module_capture import ModuleCapture
from watchglass.capture.pytorch.training_state import TrainingState
from watchglass.record import DeferredFact, OpenStep
from watchglass.records import ModuleSeconds, StepModules, UntimedModules

#: In no module.
OUTSIDE = -1


class ModuleTimeline:
    """Which module runs from which point of time on, in the forwards and backwards of a step.

    For the training thread, and for those on which it lets a backward run.

    Args:
        stopwatch: Notes the times.
    """

    def __init__(self, stopwatch: Stopwatch) -> None:
        self.open = True
        self._stopwatch = stopwatch
        self._note = stopwatch.note
        self._calls: list[int] = []
        self._inside: list[int] = []
        self._forward: list[tuple[int, Any]] = []
        self._backward: list[tuple[int, Any]] = []

    @property
    def at(self) -> int:
        """Number of the innermost module that is being called."""
        return self._inside[-1] if self._inside else OUTSIDE

    def enter(self, module: int) -> None:
        """A module is called; numbers count from 0 in the order of first calls."""
        if module == len(self._calls):
            self._calls.append(0)
        self._calls[module] += 1
        self._inside.append(module)
        self._forward.append((module, self._note()))

    def leave(self, module: int) -> None:
        """It has returned, and so have those inside it that an exception has left."""
        while self._inside and self._inside.pop() != module:
            pass
        self._forward.append((self.at, self._note()))

    def backward(self, module: int) -> None:
        """The backward of a module begins, or that of what lies outside of all."""
        if self.open:
            self._backward.append((module, self._note()))

    def close(self) -> None:
        """Notes nothing more."""
        self.open = False

    def sum(self, modules: Sequence[tuple[str, str, int]]) -> StepModules:
        """The sums by path, type and model of each module. May wait for a device."""
        spent = [[0.0] * len(modules) for _ in range(2)]
        for sums, course in zip(spent, (self._forward, self._backward), strict=True):
            seconds = self._stopwatch.seconds([note for _, note in course])
            for (module, _), each in zip(course, seconds, strict=False):
                if module != OUTSIDE:
                    sums[module] += each
        found = (
            ModuleSeconds(path, module_type, model, calls, round(forward, 9), round(backward, 9))
            for (path, module_type, model), calls, forward, backward in zip(modules, self._calls, *spent, strict=True)
        )
        return StepModules(tuple(found), self._stopwatch.on_device)


_log = logging.getLogger("watchglass")

#: The first timed step, and the least interval: house. Before it, modules and allocators warm up.
_FIRST, _INTERVAL = 8, 16
#: Beyond all steps.
_NEVER = 1 << 62
#: Later, timed steps are this share of the steps so far apart, so that a long run has some hundred: house.
_SHARE = 1 / 32


class ModuleTiming:
    """Times the modules of a TRAIN step now and then, if the configuration says so.

    Args:
        current: The state of the run.
        capture: Knows which models are compiled: these are not timed.
    """

    def __init__(self, current: TrainingState, capture: ModuleCapture) -> None:
        self._current = current
        self._capture = capture
        self._next = _FIRST
        self._step: OpenStep | None = None
        self._timeline: ModuleTimeline | None = None
        self._numbers: dict[nn.Module, int] = {}
        # Nodes that have a hook, alive until the backward is over, so that their identities stay unique.
        self._marked: dict[int, Any] = {}
        self._on = self._known = False
        # Models that were reported as not timed.
        self._untimed: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        port = current.port
        entered, left = (port.guarded(each, unless=compiling) for each in (self._entered, self._returned))
        self._observing = (
            Switch(lambda: register_module_forward_pre_hook(entered)),
            Switch(lambda: register_module_forward_hook(left)),
        )
        port.on_configured.append(self._configure)
        port.detach_with(self._drop)
        self._configure()

    def _configure(self) -> None:
        on = self._current.port.config.profiler.module_times
        if on and not self._known:
            self._known = True
            self._current.events.add(self)
            self._current.next_observed = lambda step: max(self._next, step)
        elif on and not self._on:
            self._next = max(_FIRST, self._current.port.clock.next_train_step)
        elif not on and self._known:
            self._next = _NEVER
        self._on = on

    # -- events ------------------------------------------------------------------------------------------------------

    def each_forward_began(self, call: ForwardCall) -> None:
        """An outermost module is called: time it if its step is one to time."""
        if self._step is not call.step:
            self._drop()
            number = call.step.mode_step
            if call.step.due or number < self._next:
                return
            self._wait(number)
            if not self._can_time(call.root):
                self._report_compiled(call.step, call.root)
                return
            self._step = call.step
            self._timeline = ModuleTimeline(stopwatch_of(_device_of(call), self._current.port.phase_clock))
        assert self._timeline is not None
        self._timeline.enter(self._number(call.root))
        self._observe(True)

    def each_forward_ended(self, call: ForwardCall) -> None:
        """It has returned."""
        self._observe(False)

    def each_backward_began(self) -> None:
        """A backward begins: outside of all modules, with the loss."""
        if self._timeline is not None:
            self._timeline.backward(OUTSIDE)

    def each_backward_ended(self) -> None:
        """It has ended."""
        if self._timeline is not None:
            self._timeline.backward(OUTSIDE)
            self._marked.clear()

    def each_step_updated(self, step: OpenStep) -> None:
        """A step is over: its times are summed up on the recorder's thread."""
        timeline = self._timeline
        if timeline is None or step is not self._step:
            # A compiled function called the model: no forward was seen.
            if self._on and step.mode_step >= self._next and self._capture.compiled.expected:
                self._wait(step.mode_step)
                for root in self._current.models.roots():
                    self._report_compiled(step, root)
            return
        places = [self._current.models.module(module) for module in self._numbers]
        modules = [
            (place.path, place.module_type, place.model or 0) if place is not None else ("", type(module).__name__, 0)
            for place, module in zip(places, self._numbers, strict=True)
        ]
        self._drop()
        step.records.add_fact(DeferredFact(StepModules, functools.partial(timeline.sum, modules)), "modules")

    # -- modules -----------------------------------------------------------------------------------------------------

    def _entered(self, module: nn.Module, arguments: Any) -> None:
        timeline = self._timeline
        if timeline is None or not self._is_known(module):
            return
        self._mark(arguments, timeline.at)
        timeline.enter(self._number(module))

    def _returned(self, module: nn.Module, arguments: Any, output: Any) -> None:
        timeline = self._timeline
        number = self._numbers.get(module)
        if timeline is None or number is None:
            return
        timeline.leave(number)
        self._mark(output, number)

    def _mark(self, value: Any, module: int) -> None:
        """Note in the backward that the gradient arrives at these tensors, from where on it is inside ``module``."""
        timeline = self._timeline
        assert timeline is not None
        if type(value) is tuple and len(value) == 1:
            value = value[0]
        for tensor in (value,) if isinstance(value, Tensor) else (each for _, each in tensors_in(value)):
            node = tensor.grad_fn
            # Several modules may give and take one tensor: the innermost one that gave it counts.
            if node is not None and id(node) not in self._marked:
                self._marked[id(node)] = node
                node.register_prehook(functools.partial(_arrived, timeline, module))

    def _number(self, module: nn.Module) -> int:
        return self._numbers.setdefault(module, len(self._numbers))

    def _is_known(self, module: nn.Module) -> bool:
        return module in self._numbers or self._current.models.module(module) is not None

    def _can_time(self, root: nn.Module) -> bool:
        return not captured() and root not in self._capture.compiled and not self._capture.compiled.expected

    def _wait(self, number: int) -> None:
        """The step with this number has had its turn."""
        self._next = number + max(_INTERVAL, int(number * _SHARE))

    def _report_compiled(self, step: OpenStep, root: nn.Module) -> None:
        """State once that the modules of a model are not timed, if compiled code calls them."""
        model, expected = unwrap(root), self._capture.compiled.expected
        if captured() or model in self._untimed or not (expected or is_compiled(root)):
            return
        self._untimed.add(model)
        what = "it is compiled" if is_compiled(root) else "a function was compiled that may call it"
        untimed = UntimedModules(type(model).__name__, f"{what}, and hooks would make PyTorch compile it again")
        step.records.add_fact(untimed, untimed.model)
        _log.warning(
            "watchglass: the modules of %s are not timed: %s; --profile-steps shows its operators",
            untimed.model,
            untimed.reason,
        )

    def _observe(self, on: bool) -> None:
        for switch in self._observing:
            switch(on)

    def _drop(self) -> None:
        self._observe(False)
        if self._timeline is not None:
            self._timeline.close()
        self._step = self._timeline = None
        self._numbers = {}
        self._marked.clear()


def _arrived(timeline: ModuleTimeline, module: int, gradients: Any) -> None:
    """A hook of autograd, on any of its threads: holds no hook and no model."""
    timeline.backward(module)


def _device_of(call: ForwardCall) -> torch.device | None:
    """The device of the first parameter of a model; None if it has none."""
    return next((parameter.device for parameter in call.root.parameters()), None)
