"""Facts of a PyTorch training run: what is no tensor and still shows what is wrong. docs/facts.md lists them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from torch.compiler import is_compiling
from torch.optim import Optimizer

from watchglass.capture.hook import Hook
from watchglass.capture.pytorch import public_calls as calls
from watchglass.capture.pytorch.events import Events
from watchglass.capture.pytorch.facts.batches import Batches
from watchglass.capture.pytorch.facts.call_order import CallOrder
from watchglass.capture.pytorch.facts.clips import ClipCalls
from watchglass.capture.pytorch.facts.leftovers import Leftovers
from watchglass.capture.pytorch.facts.loss_calls import LossCalls
from watchglass.capture.pytorch.facts.loss_scales import LossScales
from watchglass.capture.pytorch.facts.structure import Membership, TrainingFlags
from watchglass.capture.pytorch.facts.subjects import Subjects
from watchglass.capture.pytorch.models import Models
from watchglass.config import chosen_facts

__all__ = ["Facts"]

#: Events that reach a part by its method of that name, where it has one.
_EVENTS = ("step_began", "forward_began", "evaluation_began", "loss_computed", "update_began", "update_ended")
#: The same at every step of every optimizer, captured or not; these may not raise.
_STEPS = ("step_begins", "step_ended")
#: So many times the calls that every step makes are heard of after a rest, and then ever more rarely, at powers of two:
#: what wraps them is put onto classes that all modules and optimizers inherit from, and Python forgets all that it has
#: learned of these whenever such a class is changed; after some hundred changes it learns nothing more.
_OFTEN = 8
_OF_BATCHES = frozenset({"batch", "data_loader", "input_sketch"})


class Facts:
    """The parts that record facts, those of them that the configuration asks for.

    Made after the adapter listens to :mod:`~watchglass.capture.pytorch.public_calls`: what wraps the same function last
    is restored first.
    """

    def __init__(self, hook: Hook, models: Models, events: Events) -> None:
        self._hook = hook
        self._models = models
        self._subjects = Subjects()
        self._wanted: Any = self
        self._parts: dict[str | frozenset[str], tuple[Any, ExitStack]] = {}
        self._listeners: dict[str, tuple[Callable[[Any], None], ...]] = {}
        self._resting = False
        self._wakes = 0
        self._heard: dict[str, tuple[Callable[[Any], None], ...]] = {}
        hook.detach_with(self._leave)
        calls.FACTS.rest(self, False)
        self._configure()
        events.resting.append(self._rest)
        for name in _EVENTS:
            getattr(events, name).append(functools.partial(self._tell, name))

    def around_steps(self, before: Callable[..., Any], after: Callable[..., Any]) -> tuple[Any, Any]:
        """Hooks of optimizers: the adapter's, and before them the parts that hear of every step.

        In one hook, because PyTorch goes through its hooks as they are: one of them may remove itself, as after a
        fault, and no other.
        """

        def step_begins(optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
            if not is_compiling():
                for listener in self._heard["step_begins"]:
                    listener(optimizer)
            return before(optimizer, args, kwargs)

        def step_ended(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            if not is_compiling():
                for listener in self._heard["step_ended"]:
                    listener(optimizer)
            after(optimizer, args, kwargs)

        return step_begins, step_ended

    def _rest(self, on: bool) -> None:
        order = self._parts.get("calls")
        if not on:
            self._wakes += 1
            if self._wakes <= _OFTEN or self._wakes & (self._wakes - 1) == 0:
                self._sleep(False)
        elif self._resting:
            return
        elif order is not None:
            order[0].rounds.when_over = functools.partial(self._sleep, True)
        else:
            self._sleep(True)

    def _sleep(self, on: bool) -> None:
        """Hear of optimizers' steps no more, or again, and of the calls that every step makes."""
        order = self._parts.get("calls")
        if order is not None:
            order[0].rounds.when_over = None
        if on != self._resting:
            self._resting = on
            calls.FACTS.rest(self, on)
            self._heard = dict.fromkeys(_STEPS, ()) if on else {name: self._listeners[name] for name in _STEPS}
            if order is not None and not on:
                order[0].rounds.begin_again()

    def _tell(self, name: str, event: Any) -> None:
        # A script that is watched already may have changed the settings since.
        if name == "step_began" and self._wanted != self._hook.config.facts:
            self._configure()
        for listener in self._listeners[name]:
            listener(event)

    def _configure(self) -> None:
        """Make the parts that are wanted and are not there, and let the others go."""
        self._wanted = self._hook.config.facts
        kinds = chosen_facts(self._wanted)
        wanted = {*(kinds - _OF_BATCHES), kinds & _OF_BATCHES}
        for kind in [kind for kind in self._parts if kind not in wanted]:
            self._parts.pop(kind)[1].close()
        for kind in _MAKERS:
            if kind in wanted and kind not in self._parts:
                leave = ExitStack()
                self._parts[kind] = (_MAKERS[kind](self._hook, self._models, self._subjects, leave), leave)
        batches = kinds & _OF_BATCHES
        if batches and batches not in self._parts:
            leave = ExitStack()
            self._parts[batches] = (Batches(self._hook, self._models, batches, leave), leave)
        parts = [part for part, _ in self._parts.values()]
        self._listeners = {
            name: tuple(getattr(part, name) for part in parts if hasattr(part, name)) for name in _EVENTS + _STEPS
        }
        self._heard = {name: self._listeners[name] for name in _STEPS}

    def _leave(self) -> None:
        while self._parts:
            self._parts.popitem()[1][1].close()
        self._listeners = dict.fromkeys(self._listeners, ())
        self._heard = dict.fromkeys(_STEPS, ())
        calls.FACTS.rest(self, True)


_Maker = Callable[[Hook, Models, Subjects, ExitStack], Any]
_MAKERS: dict[str, _Maker] = {
    "calls": lambda hook, models, subjects, leave: CallOrder(hook, subjects, leave),
    "clip": lambda hook, models, subjects, leave: ClipCalls(hook, leave),
    "loss_scale": lambda hook, models, subjects, leave: LossScales(hook, leave),
    "leftover_gradients": lambda hook, models, subjects, leave: Leftovers(hook, subjects, leave),
    "training_flags": lambda hook, models, subjects, leave: TrainingFlags(models),
    "membership": lambda hook, models, subjects, leave: Membership(hook, models, subjects),
    "loss_call": lambda hook, models, subjects, leave: LossCalls(),
}
