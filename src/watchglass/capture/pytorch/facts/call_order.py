"""Fact ``calls``: the order in which a script calls backward, zero_grad, its optimizers, schedulers and scalers.

The calls are cut into rounds. A round begins with the first backward after an update, wherever the loop places its
``zero_grad``; so the rounds of a healthy run are all alike. The record is a table of the different rounds and their
counts. A known round costs a dictionary look-up.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from watchglass.capture.port import Port
from watchglass.capture.pytorch import public_calls as calls
from watchglass.capture.pytorch.facts.object_names import ObjectNames
from watchglass.capture.pytorch.facts.rank_gradients import processes
from watchglass.record import OpenStep
from watchglass.records import facts

#: Calls of a round that are kept, and different rounds that are distinguished.
_LONGEST, _MOST_ORDERS = 96, 32
#: Least rounds between two records that only change the shares of known orders.
_APART = 16
#: Rounds after which the counts are recorded in any case.
_LONG = 1024
_CUT_OFF = "..."

Order = tuple[str, ...]


class CallOrder:
    """Cuts the calls of the training thread into rounds, and counts these.

    The methods that note a call never raise, and take a few look-ups.

    Args:
        is_new: Called after a round that differs from all before it.
    """

    def __init__(self, is_new: Callable[[], None]) -> None:
        self._is_new = is_new
        self._order: list[str] = []
        self._updated = False
        # A round without its beginning is not recorded.
        self._partial = False
        #: Called once when a round is over.
        self.when_over: Callable[[], None] | None = None
        # Optimizers that are stepping, inside one another, and where in the order the outermost began.
        self._stepping: list[int] = []
        self._stepping_from = 0
        self._times: dict[Order, int] = {}
        self._reported: dict[Order, int] = {}
        self._last_reported: frozenset[Order] = frozenset()
        self._last_round = 0
        self._others = 0
        self._rounds = 0

    @property
    def ends(self) -> bool:
        """Whether a round is going to end: never where the script updates by itself, with no call to observe."""
        return self._rounds > 0 or self._updated

    def begin_again(self) -> None:
        """Calls were not observed for a while: the round that is under way does not count."""
        self._order.clear()
        self._stepping.clear()
        self._partial = self._updated = True

    def note(self, name: str) -> None:
        """A call."""
        order = self._order
        if len(order) < _LONGEST:
            order.append(name)
        elif order[-1] is not _CUT_OFF:
            order.append(_CUT_OFF)

    def backward(self) -> None:
        """A backward begins."""
        if self._updated and not self._stepping:
            self._cut()
        self.note("backward")

    def zero_grad(self, name: str) -> None:
        """An optimizer's gradients are cleared."""
        order = self._order
        if not self._updated and not self._stepping and name in order and "backward" in order[order.index(name) :]:
            # Gradients are cleared without an update: a run that never steps has rounds too.
            self._cut()
        self.note(name)

    def scaler_step(self, name: str) -> None:
        """A scaler steps the optimizer or leaves it out; either way the gradients are done with."""
        self._updated = True
        self.note(name)

    def step_begins(self, optimizer: int) -> None:
        """An optimizer, known by its identity, is about to step."""
        stepping, order = self._stepping, self._order
        if stepping and stepping[0] == optimizer and "backward" in order[self._stepping_from :]:
            # Left by an exception (an interrupted notebook cell), and called again in a later round. Or a class that
            # calls its closure and then super().step(), which may as well be taken for two calls.
            stepping.clear()
        if not stepping:
            self._stepping_from = len(order)
        stepping.append(optimizer)

    def step_ended(self, optimizer: int, named: Callable[[], str]) -> None:
        """An optimizer has stepped; ``named`` gives the name of that call."""
        stepping = self._stepping
        if not stepping:
            return
        while stepping and stepping.pop() != optimizer:
            pass
        if stepping:
            return  # super().step(), or an optimizer inside another
        order, start = self._order, self._stepping_from
        inner = dict.fromkeys(order[start:])
        del order[start:]
        if self._updated and "backward" in inner:
            # Its closure runs the backward: nothing but the step itself begins a round.
            self._cut()
        self._updated = True
        name = named()
        self.note(name)
        for call in inner:
            self.note(f"{name}/{call}")

    def has_changed(self) -> bool:
        """Whether other rounds have come since the last record than before it, or many."""
        recent = self._recent()
        rounds = self._rounds - self._last_round
        return rounds >= _LONG or (rounds >= _APART and bool(recent) and frozenset(recent) != self._last_reported)

    def record(self) -> facts.Calls:
        """How often each order came since the last record; without the objects."""
        recent = self._recent()
        self._reported = dict(self._times)
        self._last_reported, self._last_round = frozenset(recent), self._rounds
        orders = tuple(facts.OrderOfCalls(_counted(order), times) for order, times in recent.items())
        return facts.Calls(orders, self._rounds, self._others)

    def _cut(self) -> None:
        order = tuple(self._order)
        self._order.clear()
        self._updated = False
        over, self.when_over = self.when_over, None
        if over is not None:
            over()
        if self._partial:
            self._partial = False
            return
        self._rounds += 1
        times = self._times.get(order)
        if times is not None:
            self._times[order] = times + 1
        elif len(self._times) < _MOST_ORDERS:
            self._times[order] = 1
            self._is_new()
        else:
            self._others += 1

    def _recent(self) -> dict[Order, int]:
        before = self._reported
        return {
            order: times - before.get(order, 0) for order, times in self._times.items() if times != before.get(order)
        }


def _counted(order: Order) -> tuple[tuple[str, int], ...]:
    """Names with how often each came in a row: ``(("backward", 4), ("optimizer.step", 1))``."""
    return tuple((name, len(list(group))) for name, group in itertools.groupby(order))


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
        self.rounds = rounds = CallOrder(functools.partial(port.guard.call, self._write))
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
            if threading.get_ident() == guard.thread:
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
