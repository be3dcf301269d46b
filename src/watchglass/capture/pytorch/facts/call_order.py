"""Fact ``calls``: in which order a training script calls backward, zero_grad, its optimizers, schedulers and scalers.

The calls are cut into rounds. A round begins with the first backward after an update, wherever the loop places its
``zero_grad``; so the rounds of a healthy training are all alike, and what is recorded is a table of different rounds
with how often each came. A round costs a dictionary look-up once it is known.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from watchglass.capture.hook import Hook
from watchglass.capture.pytorch import public_calls as calls
from watchglass.capture.pytorch.facts.subjects import Subjects
from watchglass.record import OpenStep

#: Calls of a round that are kept, and different rounds that are told apart.
_LONGEST, _MOST_ORDERS = 96, 32
#: Rounds between two records that tell nothing but that known orders come in other shares.
_APART = 16
#: Rounds after which the counts are recorded in any case.
_LONG = 1024
_CUT_OFF = "..."

Order = tuple[str, ...]


class CallOrder:
    """Listens to the calls and records what is new about their order.

    Args:
        hook: Where to.
        subjects: Names of what is called.
        leave: What ends the listening.
    """

    def __init__(self, hook: Hook, subjects: Subjects, leave: ExitStack) -> None:
        self._hook = hook
        self._subjects = subjects
        self._thread = threading.get_ident()
        self._order: list[str] = []
        self._updated = False
        # Whether the beginning of the round was missed, and what to call once when a round is over.
        self._partial = False
        self.when_over: Callable[[], None] | None = None
        # Optimizers that are stepping, inside one another, and where in the order the outermost began.
        self._stepping: list[int] = []
        self._stepping_from = 0
        self._times: dict[Order, int] = {}
        self._told: dict[Order, int] = {}
        self._last_told: frozenset[Order] = frozenset()
        self._last_version = 0
        self._last_round = 0
        self._others = 0
        self._rounds = 0
        self._report = hook.guarded(self._write)
        self._listen(leave)

    def _listen(self, leave: ExitStack) -> None:
        guard = self._hook.guard
        leave.callback(calls.BACKWARD.listen(guard, before=self._backward))
        leave.callback(calls.OPTIMIZER_ZERO_GRAD.listen(guard, before=self._zero_grad))
        leave.callback(calls.MODULE_ZERO_GRAD.listen(guard, before=self._module_zero_grad))
        leave.callback(calls.SCHEDULER_MADE.listen(guard, after=self._scheduler_made))
        leave.callback(calls.SCHEDULER_STEP.listen(guard, before=self._scheduler_step))
        leave.callback(calls.SCALER_UNSCALE.listen(guard, before=self._unscale))
        leave.callback(calls.SCALER_STEP.listen(guard, before=self._scaler_step))
        leave.callback(calls.SCALER_UPDATE.listen(guard, before=self._scaler_update))
        for name, call in (
            ("clip_grad_norm_", calls.CLIP_NORM),
            ("clip_grad_value_", calls.CLIP_VALUE),
            ("clip_grads_with_norm_", calls.CLIP_WITH_NORM),
        ):
            leave.callback(call.listen(guard, before=self._plain(name)))

    def begin_again(self) -> None:
        """Nothing was heard for a while: the round that is under way does not count."""
        self._order.clear()
        self._stepping.clear()
        self._partial = self._updated = True

    # -- what is heard: none of it may raise, and each is a few look-ups -----------------------------------------------

    def _note(self, name: str) -> None:
        if threading.get_ident() == self._thread:
            order = self._order
            if len(order) < _LONGEST:
                order.append(name)
            elif order[-1] is not _CUT_OFF:
                order.append(_CUT_OFF)

    def _backward(self, args: tuple[Any, ...]) -> None:
        if self._updated and not self._stepping and threading.get_ident() == self._thread:
            self._cut()
        self._note("backward")

    def _zero_grad(self, args: tuple[Any, ...]) -> None:
        name = self._subjects.name("optimizer", args[0]) + ".zero_grad"
        order = self._order
        if not self._updated and not self._stepping and name in order and "backward" in order[order.index(name) :]:
            # Gradients thrown away again without an update: a training that never steps has rounds too.
            self._cut()
        self._note(name)

    def _module_zero_grad(self, args: tuple[Any, ...]) -> None:
        self._note(self._subjects.name("module", args[0]) + ".zero_grad")

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

    def _scheduler_step(self, args: tuple[Any, ...]) -> None:
        self._note(self._subjects.name("scheduler", args[0]) + ".step")

    def _unscale(self, args: tuple[Any, ...]) -> None:
        self._note(self._subjects.name("scaler", args[0]) + ".unscale_")

    def _scaler_step(self, args: tuple[Any, ...]) -> None:
        # It steps the optimizer or leaves it out; either way the gradients are done with.
        self._updated = True
        self._note(self._subjects.name("scaler", args[0]) + ".step")

    def _scaler_update(self, args: tuple[Any, ...]) -> None:
        self._note(self._subjects.name("scaler", args[0]) + ".update")

    def _plain(self, name: str) -> calls.Before:
        return lambda args: self._note(name)

    def step_begins(self, optimizer: Optimizer) -> None:
        """An optimizer is about to step."""
        if threading.get_ident() != self._thread:
            return
        stepping, order = self._stepping, self._order
        if stepping and stepping[0] == id(optimizer) and "backward" in order[self._stepping_from :]:
            # Left by an exception (an interrupted notebook cell), and called again in a later round. Or a class that
            # calls its closure and then super().step(), which may as well be taken for two calls.
            stepping.clear()
        if not stepping:
            self._stepping_from = len(order)
        stepping.append(id(optimizer))

    def step_ended(self, optimizer: Optimizer) -> None:
        """An optimizer has stepped."""
        stepping = self._stepping
        if threading.get_ident() != self._thread or not stepping:
            return
        while stepping and stepping.pop() != id(optimizer):
            pass
        if stepping:
            return  # super().step(), or an optimizer inside another
        order, start = self._order, self._stepping_from
        name = self._subjects.name("optimizer", optimizer) + ".step"
        if len(order) == start:
            self._updated = True
            self._note(name)
            return
        inner = dict.fromkeys(order[start:])
        del order[start:]
        if self._updated and "backward" in inner:
            # Its closure runs the backward: nothing but the step itself begins a round.
            self._cut()
        self._updated = True
        self._note(name)
        for call in inner:
            self._note(f"{name}/{call}")

    # -- rounds ---------------------------------------------------------------------------------------------------

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
            self._report()
        else:
            self._others += 1

    def step_began(self, step: OpenStep) -> None:
        """A captured step has begun: say so if other rounds have come than last time."""
        recent = self._recent()
        rounds = self._rounds - self._last_round
        other = rounds >= _APART and bool(recent) and frozenset(recent) != self._last_told
        if other or rounds >= _LONG or self._subjects.version != self._last_version:
            self._write()

    def _recent(self) -> dict[Order, int]:
        """How often each order came since the last record."""
        told = self._told
        return {order: times - told.get(order, 0) for order, times in self._times.items() if times != told.get(order)}

    def _write(self) -> None:
        recent = self._recent()
        objects = self._subjects.describe()
        self._told = dict(self._times)
        self._last_told, self._last_version, self._last_round = frozenset(recent), self._subjects.version, self._rounds
        data = {
            "orders": [{"calls": _counted(order), "times": times} for order, times in recent.items()],
            "rounds": self._rounds,
            "others": self._others,
            "objects": objects,
        }
        self._hook.current_records().facts.append(("calls", "wrapped functions", data))


def _counted(order: Order) -> list[list[Any]]:
    """Names with how often each came in a row: ``[["backward", 4], ["optimizer.step", 1]]``."""
    return [[name, len(list(group))] for name, group in itertools.groupby(order)]
