"""Failures of a run, and updates that watchglass could not see."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from watchglass.records.training import Fact

#: Kinds of failures.
KINDS = ("exception", "interrupt", "exit", "signal", "lost")


@dataclass(frozen=True)
class Failure:
    """The reason why a training process ended early or with an exit status that reports a failure.

    Attributes:
        kind: ``"exception"``; ``"interrupt"`` (Ctrl-C); ``"exit"`` (an exit status other than 0); ``"signal"``;
            ``"lost"`` (the process ended and reported nothing).
        type: Class of the exception, with its module unless that is ``builtins``: ``"ValueError"``,
            ``"torch.OutOfMemoryError"``; "" for none.
        message: Message of the exception, in one line of bounded length, without anything that looks like a secret.
        file: Script or module of the user that raised it; "" if unknown.
        line: Line of that file, counted from 1; 0 if unknown.
        source: That line.
        module: The module of the model that was running, ``"layers.0.fc (Linear)"``; "" for none, or if unknown.
        figures: Shapes and ranges of its inputs: ``"indices go from 0 to 120, the table has 100 rows"``; "" if unknown.
        exit_status: As a shell reports it, ``128 + n`` after signal ``n``; None if unknown.
        worker: Worker of the process; "" if unknown.
        wall_ns: Wall time of the failure, nanoseconds since 1970; 0 if unknown.
    """

    kind: str
    type: str = ""
    message: str = ""
    file: str = ""
    line: int = 0
    source: str = ""
    exit_status: int | None = None
    worker: str = ""
    wall_ns: int = 0
    module: str = ""
    figures: str = ""

    def to_json(self) -> dict[str, Any]:
        """This failure as plain JSON types."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: object) -> Failure | None:
        """The failure that :meth:`to_json` gave; None for other data. Unknown keys are ignored."""
        if not isinstance(data, Mapping) or data.get("kind") not in KINDS:
            return None
        texts = {
            name: data[name]
            for name in ("kind", "type", "message", "file", "source", "worker", "module", "figures")
            if isinstance(data.get(name), str)
        }
        numbers = {name: data[name] for name in ("line", "exit_status", "wall_ns") if type(data.get(name)) is int}
        return cls(**texts, **numbers)


def without_reason(exit_status: int) -> Failure:
    """The failure of a process that left only its exit status, other than 0, as a shell reports it."""
    kind = "signal" if exit_status > 128 else "exit"
    return Failure("interrupt" if exit_status == 128 + signal.SIGINT else kind)


@dataclass(frozen=True)
class UnsteppedBackwards:
    """Backward passes after which no update was seen, as a fact of the run.

    Written at the end of a process in which backwards ran and few steps, or none, were recorded. A later fact of a
    worker replaces an earlier one. The headline of the verdict reports it: "backward ran 360 times and no optimizer
    stepped".

    Attributes:
        backwards: How many backward passes there were.
        reason: Why none of them belongs to a step, as a clause that continues "backward ran 360 times and":
            ``"no optimizer stepped"``; no full stop.
        changes: Number of backward passes after which weights had changed nevertheless. As an optimizer exists, these
            changes do not count as updates.
        steps: Number of updates before them; 0 if there was none.
        optimizer: Class of an optimizer that holds weights of a model in training mode and has not stepped; "" where
            none is known.
    """

    KIND: ClassVar = "unstepped_backwards"

    backwards: int
    reason: str = "no optimizer stepped"
    changes: int = 0
    steps: int = 0
    optimizer: str = ""

    def to_fact(self, source: str) -> Fact:
        """This as a fact of the run; ``source`` is the observer."""
        more = {"changes": self.changes, "steps": self.steps, "optimizer": self.optimizer}
        known = {name: value for name, value in more.items() if value}
        return Fact(self.KIND, -1, source, {"backwards": self.backwards, "reason": self.reason, **known})

    @classmethod
    def from_fact(cls, fact: Fact) -> UnsteppedBackwards | None:
        """The record that :meth:`to_fact` wrote; None if there were no such backwards, or the fact is not valid."""
        backwards, reason = fact.data.get("backwards"), fact.data.get("reason")
        if type(backwards) is not int or backwards <= 0:
            return None
        changes, steps = fact.data.get("changes"), fact.data.get("steps")
        reason = reason[:200] if isinstance(reason, str) and reason else cls.reason
        optimizer = fact.data.get("optimizer")
        return cls(
            backwards,
            reason,
            changes if type(changes) is int else 0,
            steps if type(steps) is int else 0,
            optimizer[:200] if isinstance(optimizer, str) else "",
        )


@dataclass(frozen=True)
class BypassedUpdates:
    """Optimizer steps that bypassed PyTorch's hooks, as a fact of the run.

    watchglass finds them by the weights that they change. They are recorded as steps, but without the optimizer's
    learning rate. The fact is written when the first one is found, and at the end of the process with their number.
    The later fact of a worker replaces the earlier one.

    Attributes:
        since: The TRAIN step at which the first one was found.
        reason: Why the hooks missed them, as a clause: ``"SGD.step was replaced by a function that calls no
            hooks"``; no full stop.
        steps: How many there were; None if the process did not reach its end.
        worker: Worker of the process.
    """

    KIND: ClassVar = "updates_bypassed"

    since: int
    reason: str
    steps: int | None = None
    worker: str = ""

    def to_fact(self, source: str) -> Fact:
        """This as a fact of the run; ``source`` is the optimizer's method."""
        counted = {} if self.steps is None else {"steps": self.steps}
        return Fact(self.KIND, -1, source, {"since": self.since, "reason": self.reason, **counted})

    @classmethod
    def from_fact(cls, fact: Fact, worker: str) -> BypassedUpdates | None:
        """The record that :meth:`to_fact` wrote; None if the fact is not valid."""
        since, reason, steps = (fact.data.get(name) for name in ("since", "reason", "steps"))
        if type(since) is not int or not isinstance(reason, str) or not reason:
            return None
        return cls(since, reason[:200], steps if type(steps) is int and steps > 0 else None, worker)
