"""Steps while they are open: what has been gathered for them, and the clock that numbers them.

The clock knows nothing of a framework. An adapter tells it that a forward began, that a backward ran through it, that
an optimizer updated; it answers with the step that this belongs to. Its rules:

* A TRAIN step is closed by the first forward with gradients after an update, by an evaluation after an update, or by
  the same optimizer updating again. So micro-batches, several optimizers and nested calls belong to one step.
* A forward without gradients is an EVAL step of its own, unless a step that is begun by hand is open.
* A forward with gradients is TRAIN only if a backward runs through it. Those that none ran through by the time their
  step closes become EVAL steps (evaluation without ``no_grad``), ordered before it, unless there was no backward at all
  and yet an update. Of several models, one that was not updated gets one step more: a generator is called in the step
  of its critic, and trained in the next.
* TRAIN steps count from 0, and those of a process that goes on with a training from the updates made before it.
* A process that never trains would leave its forwards undecided for ever: beyond a number of them they are captured no
  more, and beyond a larger one the oldest become EVAL steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from watchglass.records import Fact, Mode, Reduction, StepEnd, UnitKind
from watchglass.store import RawTensor

#: Forwards with gradients that no backward ran through yet and that are captured, in one step; and how many of them may
#: still turn out to be trained on: an episode of reinforcement learning has hundreds before its one backward.
_MOST_CAPTURED, _MOST_UNDECIDED = 64, 1024
_TRAIN = int(Mode.TRAIN)


class Readback(Protocol):
    """Numbers that are still on their way from a device."""

    def resolve(self) -> Any:
        """The numbers as a NumPy float64 array; waits for the device. Called on the recorder's thread."""


class Captured(NamedTuple):
    """Statistics of some tensors, read together.

    Attributes:
        ids: Tensor ids, n of them.
        values: Rows of statistics, float64[n, statistics], or a :class:`Readback` of them.
        sampled: Whether the rows are of a fixed sample of the tensors' elements.
        histograms: A :class:`~watchglass.stats.Histograms` of n rows, a :class:`Readback` of one, or None.
    """

    ids: list[int]
    values: Any
    sampled: bool = False
    histograms: Any = None


@dataclass(slots=True)
class StepRecords:
    """What was captured for one step or one forward, in the order in which it was captured.

    Attributes:
        scalars: ``(tensor_id, weight, value)``; values of one tensor are averaged by weight. A value may be a
            :class:`Readback` of one number.
        statistics: What was read of tensors; rows of one tensor (micro-batches, calls) are merged in this order.
        reductions: ``(tensor_id, reduction, value)``: exact numbers that were asked for.
        units: ``(tensor_id, kind, flags)`` with one boolean per unit, or a :class:`Readback` of them.
        facts: ``(kind, source, data)``; data may be a :class:`Readback` of them, or of None for no fact after all.
        raw: Tensors to be kept whole.
    """

    scalars: list[tuple[int, float, Any]] = field(default_factory=list)
    statistics: list[Captured] = field(default_factory=list)
    reductions: list[tuple[int, Reduction, float]] = field(default_factory=list)
    units: list[tuple[int, UnitKind, Any]] = field(default_factory=list)
    facts: list[tuple[str, str, Any]] = field(default_factory=list)
    raw: list[RawTensor] = field(default_factory=list)

    def absorb(self, other: StepRecords) -> None:
        """Append everything of another."""
        self.scalars += other.scalars
        self.facts += other.facts
        if other.statistics or other.units or other.raw or other.reductions:
            self.statistics += other.statistics
            self.reductions += other.reductions
            self.units += other.units
            self.raw += other.raw


class Forward:
    """One outermost forward call, until it is known whether a backward ran through it."""

    __slots__ = (
        "backpropagated", "has_loss", "if_evaluated", "marked", "model", "output", "records", "start_ns", "state",
        "training", "weight",
    )  # fmt: skip

    def __init__(self, start_ns: int, training: bool) -> None:
        self.start_ns = start_ns
        self.training = training
        self.backpropagated = False
        self.weight = 1.0
        self.records = StepRecords()
        # Whether its loss as an evaluation is among the records, which it may share with others.
        self.has_loss = False
        # Scalars that are recorded should it turn out to be an evaluation.
        self.if_evaluated: Sequence[tuple[int, float, Any]] = ()
        # Whether the adapter will see it when a backward runs through this forward; else any backward counts.
        self.marked = True
        # What a re-run of this forward needs; the adapter's, dropped at the update.
        self.state: Any = None
        # Which of several models was called, and a weak reference to what it returned.
        self.model = ""
        self.output: Any = None

    def awaits(self, updated: set[str]) -> bool:
        """Whether a later step may train on it: its model was not updated, and what it returned is kept."""
        return self.output is not None and self.model not in updated and self.output() is not None


class SteadyRow(NamedTuple):
    """A TRAIN step of which only these are known: what most steps of a training come to.

    Attributes:
        global_step: As in :class:`~watchglass.records.StepEnd`.
        mode_step: Also its ``train_step``.
        start_ns: Worker's monotonic clock when it began.
        end_ns: The same when it ended.
        loss: The loss, a float or a :class:`Readback` of one.
        learning_rate: The one optimizer's learning rate.
        weight: What the loss counts when it is averaged: samples.
    """

    global_step: int
    mode_step: int
    start_ns: int
    end_ns: int
    loss: Any
    learning_rate: float
    weight: float

    def opened(self, records: StepRecords) -> OpenStep:
        """The same as a step with records."""
        return OpenStep(
            self.global_step, Mode.TRAIN, self.mode_step, self.mode_step, self.start_ns,
            updated=True, end_ns=self.end_ns, records=records,
        )  # fmt: skip


@dataclass(slots=True)
class OpenStep:
    """A step that has begun and not ended.

    ``due`` says whether statistics are to be captured at it, ``queued_bytes`` what it counts in the recorder's queue,
    ``models`` which of several models it has updated, ``by_hand`` whether it lasts until it is ended, ``paused`` that
    it was due, and is not until its update, because no backward runs through its many forwards.
    """

    global_step: int
    mode: Mode
    mode_step: int
    train_step: int
    start_ns: int
    due: bool = False
    updated: bool = False
    by_hand: bool = False
    paused: bool = False
    queued_bytes: int = 0
    end_ns: int = 0
    optimizers: set[int] = field(default_factory=set)
    models: set[str] = field(default_factory=set)
    forwards: list[Forward] = field(default_factory=list)
    records: StepRecords = field(default_factory=StepRecords)

    def resume(self) -> None:
        """Capture it again, if that was paused."""
        if self.paused:
            self.due, self.paused = True, False

    def move(self, updates: int) -> None:
        """So many more updates were made before it than was known when it opened."""
        self.train_step += updates
        if self.mode is Mode.TRAIN:
            self.mode_step += updates

    def finished(self) -> StepEnd:
        """The row that ends this step; ``captures`` is filled in by the recorder."""
        return StepEnd(
            self.global_step, self.mode, self.mode_step, self.train_step, self.start_ns, max(self.end_ns, self.start_ns)
        )

    def facts(self) -> list[Fact]:
        """The facts of this step as records."""
        found = self.records.facts
        rows = [(kind, source, data.resolve() if hasattr(data, "resolve") else data) for kind, source, data in found]
        return [Fact(kind, self.global_step, source, data) for kind, source, data in rows if data is not None]


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
        # By mode, as numbers: members of an enumeration are slow to come by and to hash, at every step.
        self._next = [0] * len(Mode)
        # Forwards of the step before that the next may train on.
        self._awaiting: list[Forward] = []
        self.train: OpenStep | None = None
        self.evaluation: OpenStep | None = None
        #: Number of the first TRAIN step: how many updates were made before this process.
        self.first_train_step = 0

    @property
    def next_train_step(self) -> int:
        """Number that the next TRAIN step to open will get."""
        return self._next[_TRAIN]

    @property
    def last_step(self) -> int:
        """``global_step`` of the step that opened last, -1 before the first."""
        return self._next_global - 1

    @property
    def at_boundary(self) -> bool:
        """Whether no TRAIN step is open that still waits for its update: the place to stop a training."""
        return self.train is None or self.train.updated

    def resume(self, updates: int) -> None:
        """So many updates were made before this process: TRAIN steps continue from there, the open one too.

        For the first step, while it is open or before it.
        """
        self.first_train_step += updates
        self._next[_TRAIN] += updates
        for step in (self.train, self.evaluation):
            if step is not None:
                step.move(updates)

    def forward(self, *, grad: bool, training: bool, start_ns: int = 0) -> Forward:
        """An outermost forward begins, or began at ``start_ns``; returns what to collect its records in."""
        # Runs at every step, between what is due and what is not: every call in here counts.
        now = start_ns or self._now_ns()
        if self.evaluation is not None:
            if self.evaluation.by_hand:
                forward = Forward(now, training)
                forward.records = self.evaluation.records
                return forward
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
        if len(step.forwards) % _MOST_CAPTURED == 0:
            self._bound(step)
        return forward

    def quick_train(
        self, start_ns: int, end_ns: int, loss: Any, learning_rate: float, weight: float
    ) -> tuple[int, int, int, int, Any, float, float]:
        """Number a whole TRAIN step of which only these are known; nothing may be open.

        Returns:
            The fields of a :class:`SteadyRow`, as a plain tuple: faster to make, and the garbage collector forgets it.
        """
        mode_step = self._next[_TRAIN]
        self._next[_TRAIN] = mode_step + 1
        global_step = self._next_global
        self._next_global = global_step + 1
        return (global_step, mode_step, start_ns, end_ns, loss, learning_rate, weight)

    def begin_update(self, optimizer: int) -> OpenStep:
        """An optimizer is about to change parameters; returns the TRAIN step this belongs to."""
        self._close_evaluation()
        if self.train is not None and optimizer in self.train.optimizers:
            self.close_train()
        step = self.train or self._open_train(self._now_ns())
        step.optimizers.add(optimizer)
        step.resume()
        return step

    def end_update(self) -> None:
        """An optimizer has changed parameters, or a scaler skipped it."""
        if self.train is not None:
            self.train.updated = True
            self.train.end_ns = self._now_ns()

    def begin(self, mode: Mode) -> OpenStep:
        """Open a step by hand, for loops that no adapter knows; close it with :meth:`end`."""
        self._close_evaluation()
        if mode is Mode.TRAIN or (self.train is not None and self.train.updated):
            self.close_train()
        if mode is Mode.TRAIN:
            return self._open_train(self._now_ns())
        # A TRAIN step that has not updated yet goes on after an evaluation inside it.
        self.evaluation = self._open(mode, self._now_ns(), self.next_train_step - 1)
        self.evaluation.by_hand = True
        return self.evaluation

    def end(self, step: OpenStep) -> None:
        """Close a step that :meth:`begin` opened, unless a later one has closed it."""
        step.end_ns = self._now_ns()
        if step is self.train:
            step.updated = True
            self.close_train()
        elif step is self.evaluation:
            self._close_evaluation()

    def close(self) -> None:
        """The training is over: close what is open."""
        self._close_evaluation()
        self.close_train()
        for forward in self._awaiting:
            self._evaluated(forward, before=self.next_train_step)
        self._awaiting = []

    def close_train(self) -> None:
        """End the open TRAIN step, if any; forwards that no backward ran through become EVAL steps."""
        step, self.train = self.train, None
        if step is None:
            return
        step.resume()
        forwards = step.forwards
        if len(forwards) == 1 and forwards[0].backpropagated:
            forwards[0].records.absorb(step.records)
            step.records, step.forwards = forwards[0].records, []
            self._emit(step)
            return
        trained = [forward for forward in forwards if forward.backpropagated]
        if step.updated and not trained:
            # Gradients came by another way than a backward, torch.func for one: from these forwards all the same.
            trained = forwards
        for forward in forwards:
            if forward in trained:
                continue
            if forward.awaits(step.models):
                forward.output = None  # once
                self._awaiting.append(forward)
            else:
                self._evaluated(forward, before=step.mode_step)
        if not trained and not step.updated:
            # Nothing was trained here: give the number back, the step never was.
            self._next[_TRAIN] = step.mode_step
            return
        for forward in reversed(trained):
            forward.records.absorb(step.records)
            step.records = forward.records
        step.forwards = []
        self._emit(step)

    def _open_train(self, now: int) -> OpenStep:
        self.train = self._open(Mode.TRAIN, now, self.next_train_step)
        if self._awaiting:
            self.train.forwards, self._awaiting = self._awaiting, []
        return self.train

    def _open(self, mode: Mode, now: int, train_step: int) -> OpenStep:
        mode_step = self._next[mode]
        self._next[mode] += 1
        global_step = self._next_global
        self._next_global += 1
        return OpenStep(global_step, mode, mode_step, train_step, now, self._due(mode, mode_step))

    def _bound(self, step: OpenStep) -> None:
        undecided = [forward for forward in step.forwards if not forward.backpropagated]
        if len(undecided) < _MOST_CAPTURED:
            return
        step.paused |= step.due
        step.due = False
        oldest = undecided[:-_MOST_UNDECIDED]
        if oldest:
            old = set(oldest)
            step.forwards = [forward for forward in step.forwards if forward not in old]
        for forward in oldest:
            self._evaluated(forward, before=step.mode_step)

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
        step.records = records = forward.records
        records.scalars += forward.if_evaluated
        if not step.due:
            # Captured for the training step that it was taken for.
            records.statistics, records.reductions, records.units, records.raw = [], [], [], []
        step.end_ns = forward.start_ns
        self._emit(step)
