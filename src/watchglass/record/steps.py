"""Steps while they are open: what has been gathered for them, and the clock that numbers them.

The clock knows nothing of a framework. An adapter tells it that a forward began, that a backward ran through it, that
an optimizer updated; it answers with the step that this belongs to. Its rules:

* A TRAIN step is closed by the first forward with gradients after an update, by an evaluation after an update, or by
  the same optimizer updating again. So micro-batches, several optimizers and nested calls belong to one step.
* A forward without gradients is an EVAL step of its own.
* A forward with gradients is TRAIN only if a backward runs through it. Those that none ran through by the time their
  step closes become EVAL steps (evaluation without ``no_grad``), ordered before it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from watchglass.records import Fact, Mode, StepEnd, UnitKind


class Readback(Protocol):
    """Numbers that are still on their way from a device."""

    def resolve(self) -> Any:
        """The numbers as a NumPy float64 array; waits for the device. Called on the recorder's thread."""


@dataclass(slots=True)
class StepRecords:
    """What was captured for one step or one forward, in the order in which it was captured.

    Attributes:
        scalars: ``(tensor_id, weight, value)``; values of one tensor are averaged by weight. A value may be a
            :class:`Readback` of one number.
        statistics: ``(tensor_ids, matrix)`` with a matrix or :class:`Readback` of shape [n, statistics].
        units: ``(tensor_id, kind, flags)`` with one boolean per unit, or a :class:`Readback` of them.
        facts: ``(kind, source, data)``.
        raw: ``(tensor_id, array)``: tensors to be kept whole.
    """

    scalars: list[tuple[int, float, Any]] = field(default_factory=list)
    statistics: list[tuple[list[int], Any, bool]] = field(default_factory=list)
    units: list[tuple[int, UnitKind, Any]] = field(default_factory=list)
    facts: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)
    raw: list[tuple[int, Any]] = field(default_factory=list)

    def absorb(self, other: StepRecords) -> None:
        """Append everything of another."""
        self.scalars += other.scalars
        self.facts += other.facts
        if other.statistics or other.units or other.raw:
            self.statistics += other.statistics
            self.units += other.units
            self.raw += other.raw


class Forward:
    """One outermost forward call, until it is known whether a backward ran through it."""

    __slots__ = ("backpropagated", "marked", "records", "start_ns", "state", "training", "weight")

    def __init__(self, start_ns: int, training: bool) -> None:
        self.start_ns = start_ns
        self.training = training
        self.backpropagated = False
        self.weight = 1.0
        self.records = StepRecords()
        # Whether the adapter will see it when a backward runs through this forward; else any backward counts.
        self.marked = True
        # What a re-run of this forward needs; the adapter's, dropped at the update.
        self.state: Any = None


@dataclass(slots=True)
class OpenStep:
    """A step that has begun and not ended.

    ``due`` says whether statistics are to be captured at it, ``queued_bytes`` what it counts in the recorder's queue.
    """

    global_step: int
    mode: Mode
    mode_step: int
    train_step: int
    start_ns: int
    due: bool = False
    updated: bool = False
    queued_bytes: int = 0
    end_ns: int = 0
    optimizers: set[int] = field(default_factory=set)
    forwards: list[Forward] = field(default_factory=list)
    records: StepRecords = field(default_factory=StepRecords)

    def finished(self) -> StepEnd:
        """The row that ends this step; ``captures`` is filled in by the recorder."""
        return StepEnd(
            self.global_step, self.mode, self.mode_step, self.train_step, self.start_ns, max(self.end_ns, self.start_ns)
        )

    def facts(self) -> list[Fact]:
        """The facts of this step as records."""
        return [Fact(kind, self.global_step, source, data) for kind, source, data in self.records.facts]


class StepClock:
    """Numbers steps and decides what belongs to which.

    Args:
        emit: Called with every step that has ended, in the order in which they end.
        due: Called as ``due(mode, mode_step)`` when a step opens.
        now_ns: Monotonic clock.

    Not thread-safe: used by the training's thread only.
    """

    def __init__(
        self,
        emit: Callable[[OpenStep], None],
        due: Callable[[Mode, int], bool],
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._emit = emit
        self._due = due
        self._now_ns = now_ns
        self._next_global = 0
        self._next = {Mode.TRAIN: 0, Mode.EVAL: 0, Mode.PREDICT: 0}
        self.train: OpenStep | None = None
        self.evaluation: OpenStep | None = None

    @property
    def next_train_step(self) -> int:
        """Number that the next TRAIN step to open will get."""
        return self._next[Mode.TRAIN]

    @property
    def at_boundary(self) -> bool:
        """Whether no TRAIN step is open that still waits for its update: the place to stop a training."""
        return self.train is None or self.train.updated

    def forward(self, *, grad: bool, training: bool) -> Forward:
        """An outermost forward begins, with gradients or without; returns what to collect its records in."""
        # Runs at every step, between what is due and what is not: every call in here counts.
        now = self._now_ns()
        if self.evaluation is not None:
            self._close_evaluation()
        step = self.train
        if step is not None and step.updated:
            self.close_train()
            step = None
        forward = Forward(now, training)
        if not grad:
            self._open_evaluation(forward)
            return forward
        if step is None:
            step = self._open_train(now)
        elif step.forwards and not step.forwards[-1].backpropagated and not step.forwards[-1].training:
            # Evaluation without no_grad, seen early: keeps the list of undecided forwards short.
            self._evaluated(step.forwards.pop(), before=step.mode_step)
        step.forwards.append(forward)
        return forward

    def begin_update(self, optimizer: int) -> OpenStep:
        """An optimizer is about to change parameters; returns the TRAIN step this belongs to."""
        self._close_evaluation()
        if self.train is not None and optimizer in self.train.optimizers:
            self.close_train()
        step = self.train or self._open_train(self._now_ns())
        step.optimizers.add(optimizer)
        return step

    def end_update(self) -> None:
        """An optimizer has changed parameters, or a scaler skipped it."""
        if self.train is not None:
            self.train.updated = True
            self.train.end_ns = self._now_ns()

    def begin(self, mode: Mode) -> OpenStep:
        """Open a step by hand, for loops that no adapter knows; close it with :meth:`end`."""
        self._close_evaluation()
        self.close_train()
        if mode is Mode.TRAIN:
            return self._open_train(self._now_ns())
        return self._open(mode, self._now_ns(), self.next_train_step - 1)

    def end(self, step: OpenStep) -> None:
        """Close a step that :meth:`begin` opened."""
        step.end_ns = self._now_ns()
        if step is self.train:
            step.updated = True
            self.close_train()
        else:
            self._emit(step)

    def close(self) -> None:
        """The training is over: close what is open."""
        self._close_evaluation()
        self.close_train()

    def close_train(self) -> None:
        """End the open TRAIN step, if any; forwards that no backward ran through become EVAL steps."""
        step, self.train = self.train, None
        if step is None:
            return
        forwards = step.forwards
        if len(forwards) == 1 and forwards[0].backpropagated:
            forwards[0].records.absorb(step.records)
            step.records, step.forwards = forwards[0].records, []
            self._emit(step)
            return
        trained = [forward for forward in forwards if forward.backpropagated]
        for forward in step.forwards:
            if not forward.backpropagated:
                self._evaluated(forward, before=step.mode_step)
        if not trained and not step.updated:
            # Nothing was trained here: give the number back, the step never was.
            self._next[Mode.TRAIN] = step.mode_step
            return
        for forward in reversed(trained):
            forward.records.absorb(step.records)
            step.records = forward.records
        step.forwards = []
        self._emit(step)

    def _open_train(self, now: int) -> OpenStep:
        self.train = self._open(Mode.TRAIN, now, self.next_train_step)
        return self.train

    def _open(self, mode: Mode, now: int, train_step: int) -> OpenStep:
        mode_step = self._next[mode]
        self._next[mode] += 1
        global_step = self._next_global
        self._next_global += 1
        return OpenStep(global_step, mode, mode_step, train_step, now, self._due(mode, mode_step))

    def _open_evaluation(self, forward: Forward) -> None:
        self.evaluation = self._open(Mode.EVAL, forward.start_ns, self.next_train_step - 1)
        self.evaluation.records = forward.records

    def _close_evaluation(self) -> None:
        step, self.evaluation = self.evaluation, None
        if step is not None:
            step.end_ns = step.end_ns or self._now_ns()
            self._emit(step)

    def _evaluated(self, forward: Forward, before: int) -> None:
        step = self._open(Mode.EVAL, forward.start_ns, before - 1)
        step.records = forward.records
        step.end_ns = forward.start_ns
        self._emit(step)
