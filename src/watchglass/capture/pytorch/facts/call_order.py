"""Fact ``calls``: the order in which a script calls backward, zero_grad, its optimizers, schedulers and scalers.

:mod:`watchglass.capture.call_order` counts the calls.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from threading import get_ident
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from watchglass.capture import call_order
from watchglass.capture.port import Port
from watchglass.capture.pytorch import public_calls as calls
from watchglass.capture.pytorch.facts.object_names import ObjectNames
from watchglass.capture.pytorch.facts.rank_gradients import processes
from watchglass.record import OpenStep


class CallOrderFact:
    """Listens to the calls and records changes of their order.

    Args:
        port: The port that records.
        subjects: Names of the called objects.
        leave: Collects the functions that end the listening.
    """

    def __init__(self, port: Port, subjects: ObjectNames, leave: ExitStack) -> None:
        self._port = port
        self._subjects = subjects
        self._last_version: tuple[int, int] = (0, 0)
        #: The rounds that the calls make.
        self.rounds = rounds = call_order.CallOrder(functools.partial(port.guard.call, self._write))
        named, note = subjects.name, rounds.note
        observed: dict[calls.PublicCall, calls.Before] = {
            calls.BACKWARD: lambda args, kwargs: rounds.backward(),
            calls.OPTIMIZER_ZERO_GRAD: lambda args, kwargs: rounds.zero_grad(
                named("optimizer", args[0]) + ".zero_grad"
            ),
            calls.MODULE_ZERO_GRAD: lambda args, kwargs: note(named("module", args[0]) + ".zero_grad"),
            calls.SCHEDULER_STEP: lambda args, kwargs: note(named("scheduler", args[0]) + ".step"),
            calls.SCALER_UNSCALE: lambda args, kwargs: note(named("scaler", args[0]) + ".unscale_"),
            calls.SCALER_STEP: lambda args, kwargs: rounds.scaler_step(named("scaler", args[0]) + ".step"),
            calls.SCALER_UPDATE: lambda args, kwargs: note(named("scaler", args[0]) + ".update"),
        }
        for name, call in calls.CLIPS.items():
            observed[call] = self._noted(name)
        for call, before in observed.items():
            leave.callback(call.listen(port.guard, before=self._in_training(before)))
        made = self._in_training(self._scheduler_made)
        leave.callback(calls.SCHEDULER_MADE.listen(port.guard, after=made))

    def _in_training(self, listener: Callable[..., None]) -> Callable[..., None]:
        """``listener`` in the training thread: other threads may be writing gradients of what would get a name."""
        guard = self._port.guard

        def run(*arguments: Any) -> None:
            if get_ident() == guard.thread:
                listener(*arguments)

        return run

    def _noted(self, name: str) -> calls.Before:
        return lambda args, kwargs: self.rounds.note(name)

    def _scheduler_made(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        scheduler = args[0]
        optimizer = getattr(scheduler, "optimizer", None)
        if isinstance(optimizer, Optimizer):
            self._subjects.name("optimizer", optimizer)
        self._subjects.name("scheduler", scheduler)
        for value in itertools.chain(args[1:], kwargs.values()):
            for part in value if isinstance(value, (list, tuple)) else ():
                if isinstance(part, LRScheduler):
                    self._subjects.is_part(part)

    def optimizer_steps(self, optimizer: Optimizer) -> None:
        """An optimizer is about to step."""
        self.rounds.step_begins(id(optimizer))

    def optimizer_stepped(self, optimizer: Optimizer) -> None:
        """An optimizer has stepped."""
        self.rounds.step_ended(id(optimizer), lambda: self._subjects.name("optimizer", optimizer) + ".step")

    def step_began(self, step: OpenStep) -> None:
        """A captured step has begun: record the rounds if they differ from the last record."""
        if self.rounds.has_changed() or self._version() != self._last_version:
            self._write()

    def _version(self) -> tuple[int, int]:
        return self._subjects.version, self._subjects.stepped_schedulers()

    def _write(self) -> None:
        self._last_version = self._version()
        fact = replace(self.rounds.record(), objects=self._subjects.describe(), processes=processes())
        self._port.records.current().add_fact(fact, "wrapped functions")
