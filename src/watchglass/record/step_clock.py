"""The clock that numbers steps and decides which step a record belongs to.

The clock knows no framework. An adapter reports that a forward began, that a backward ran through it, that an optimizer
updated; the clock returns the step that this belongs to. Its rules:

* A TRAIN step is closed by the first forward with gradients after an update, by an evaluation after an update, or by
  the same optimizer updating again. So micro-batches, several optimizers and nested calls belong to one step.
* A forward without gradients is an EVAL step, unless a step that is begun manually is open. Where several models are
  called in one step, it may help to train another one, as a teacher or a target network does. Inside a TRAIN step of
  other models it is a part of this step. Before one, the clock holds it back. It becomes an EVAL step if a loss is
  computed from it, if it is one of many in a row, if its own model is trained next, or if it is one of several of
  models that were trained before and another is trained for the first time, as the next fold of a cross-validation is.
  Otherwise it is a part of the next step.
* A forward with gradients is TRAIN only if a backward runs through it. If none has run when its step closes, the
  forward becomes an EVAL step before it (evaluation without ``no_grad``), unless the step had an update and no backward
  at all. Of several models, one that was not updated gets one more step: a generator is called in the step of its
  critic, and trained in the next. If no loss was computed from its forward, this is no evaluation.
* A model may come with a provisional number, below zero. It has its own before it is trained, or else gets it as an
  evaluation of it is recorded.
* TRAIN steps count from 0; those of a resumed run continue from the updates made before this process.
* The forwards of a process that never trains stay undecided. Beyond a number of them capture pauses, and beyond a
  larger one the oldest become EVAL steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from watchglass.record.open_steps import CapturedRecords, Forward, OpenStep
from watchglass.records import GivenUp, Mode

#: Most forwards of a step that are captured before a backward has run through them, and most that may still be trained
#: on. An episode of reinforcement learning has hundreds before its one backward.
_MOST_CAPTURED, _MOST_UNDECIDED = 64, 1024
#: Forwards without gradients in a row from which on they are an evaluation, independent of later events.
_MANY = 16
#: The same where a model is trained for the first time: a teacher that was trained before helps with a call or two.
_SEVERAL = 3
_TRAIN, _EVAL = int(Mode.TRAIN), int(Mode.EVAL)


class StepClock:
    """Numbers steps and decides which step a record belongs to.

    Args:
        emit: Called with every step that has ended, in the order in which they end.
        due: Called as ``due(mode, mode_step)`` when a step opens.
        now_ns: Monotonic clock.

    Not thread-safe: used by the training thread only.
    """

    def __init__(
        self,
        emit: Callable[[OpenStep], None],
        due: Callable[[Mode, int], bool],
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._emit = emit
        self._due = due
        #: The clock.
        self.now_ns = now_ns
        self._next_global = 0
        # By mode, as numbers: at every step, access to members of an enumeration and their hash would be slow.
        self._next = [0] * len(Mode)
        # Forwards of the step before that the next may train on.
        self._awaiting: list[Forward] = []
        self.train: OpenStep | None = None
        self.evaluation: OpenStep | None = None
        # Forwards without gradients that are over, of which it does not show yet what they were for.
        self._held: list[OpenStep] = []
        # Models that were called so often in a row that they are being evaluated, with a loss or without.
        self._phase: set[int] = set()
        # Models that were trained, and whether always in training mode.
        self._trained: dict[int, bool] = {}
        # Models that were called with gradients.
        self._called: set[int] = set()
        #: The model whose call opens a TRAIN step, None where no call does.
        self.called: int | None = None
        #: Of models that are trained together on the same losses, the first, by the number of each.
        self.leaders: dict[int, int] = {}
        #: Ends the phases of a step, puts them into its records and returns the time. None if none are recorded.
        self.end_phases: Callable[[CapturedRecords], int] | None = None
        #: Gives a model that has a provisional number its own, as an evaluation of it is recorded.
        self.number_of: Callable[[int], int] = lambda model: model
        # Number of an evaluation of which nothing is captured, as its model has no number: it may have been due.
        self._owed: int | None = None
        #: The mode of a forward without gradients: EVAL, or PREDICT while a framework predicts.
        self.evaluates_as = Mode.EVAL
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
        """Whether no open TRAIN step still waits for its update: the place to stop a run."""
        return self.train is None or self.train.updated

    @property
    def awaits(self) -> bool:
        """Whether a later step may train on a forward of the open one."""
        step = self.train
        return step is not None and any(not each.backpropagated and each.awaits(step.models) for each in step.forwards)

    def resume(self, updates: int) -> None:
        """Continue TRAIN steps, the open one too, from the number of updates that were made before this process.

        For the first step, while it is open or before it.
        """
        self.first_train_step += updates
        self._next[_TRAIN] += updates
        for step in (self.train, self.evaluation, *self._held):
            if step is not None:
                step.move(updates)

    def renumber(self, provisional: int, number: int) -> None:
        """Replace the provisional number of a model, below zero, by its final one."""
        self.leaders[provisional] = number
        for step in (self.evaluation, *self._held):
            if step is not None and step.model == provisional:
                step.model = number
        if provisional in self._phase:
            self._phase.add(number)

    def forward(
        self, *, grad: bool, training: bool, start_ns: int = 0, model: int = 0, begun: Forward | None = None
    ) -> Forward:
        """An outermost forward of a model begins, or began at ``start_ns``; returns what to collect its records in.

        If the forward began before this call, ``begun`` collects them.
        """
        # Runs at every step, between what is due and what is not: every call in here counts.
        now = start_ns or self.now_ns()
        if self.evaluation is not None:
            if self.evaluation.by_hand:
                forward = Forward(now, training, model, grad=grad)
                forward.records = self.evaluation.records
                return forward
            self._hold_evaluation()
        step = self.train
        if step is not None and step.updated and not step.by_hand:
            self.close_train()
            step = None
        forward = begun or Forward(now, training, model, grad=grad)
        if not grad:
            if step is not None and (step.by_hand or self._helps(model, step)):
                forward.helps, forward.records = True, step.records
            else:
                self._open_evaluation(forward)
            return forward
        helped = self._decide(model) if self._held else ()
        self._phase.clear()
        if step is None:
            step = self._open_train(now, self.leaders.get(model, model))
        elif step.forwards:
            last = step.forwards[-1]
            alone = not (last.backpropagated or last.training) and last.model == model
            if alone and self._trained.get(model) is True:
                # Evaluation without no_grad of a model that is trained in training mode, seen early: keeps the list of
                # undecided forwards short.
                self._evaluated(step.forwards.pop(), before=step.mode_step)
        step.helpers += tuple(other.model if other.is_plain else None for other in helped)
        for other in helped:
            if other.due:
                other.records.give_up(GivenUp.STATISTICS)
            step.records.absorb(other.records)
        step.forwards.append(forward)
        self._called.add(model)
        if len(step.forwards) % _MOST_CAPTURED == 0:
            self._bound(step)
        return forward

    def join(self) -> bool:
        """The open evaluation goes on with another forward: it counts as one step more, and gets the last number.

        Returns False, and does nothing, unless it is known to be an evaluation, and its number is the last one.
        """
        step = self.evaluation
        if step is None or step.global_step != self._next_global - 1:
            return False
        if not (step.records.series or step.model in self._phase):
            return False
        step.mode_step += 1
        step.global_step += 1
        self._next[_EVAL] += 1
        self._next_global += 1
        return True

    def steady_train(
        self, start_ns: int, end_ns: int, loss: Any, learning_rate: float, weight: float, phases: Sequence[int]
    ) -> tuple[Any, ...]:
        """Number a whole TRAIN step of which only these are known; nothing may be open.

        ``phases`` has the nanoseconds of each phase, zeros where they are not recorded.

        Returns:
            The fields of a :class:`SteadyRow`, as a plain tuple: faster to make, and the garbage collector forgets it.
        """
        mode_step = self._next[_TRAIN]
        self._next[_TRAIN] = mode_step + 1
        global_step = self._next_global
        self._next_global = global_step + 1
        return (global_step, mode_step, start_ns, end_ns, loss, learning_rate, weight, *phases)

    def pass_train(self, steps: int) -> None:
        """Number TRAIN steps of which nothing is recorded; nothing may be open."""
        self._next[_TRAIN] += steps
        self._next_global += steps

    def begin_update(self, optimizer: int) -> OpenStep:
        """An optimizer is about to change parameters; returns the TRAIN step this belongs to."""
        self._close_evaluation()
        self._phase.clear()
        if self.train is not None and optimizer in self.train.optimizers and not self.train.by_hand:
            self.close_train()
        step = self.train or self._open_train(self.now_ns())
        step.optimizers.add(optimizer)
        step.unpause()
        return step

    def end_update(self) -> None:
        """An optimizer has changed parameters now, or a scaler skipped it."""
        if self.train is not None:
            self.train.updated = True
            self._end(self.train)

    def begin(self, mode: Mode) -> OpenStep:
        """Open a step manually, for loops that no adapter knows; close it with :meth:`end`."""
        self._close_evaluation()
        if mode is Mode.TRAIN or (self.train is not None and self.train.updated):
            self.close_train()
        if mode is Mode.TRAIN:
            step = self._open_train(self.now_ns())
            step.by_hand = True
            return step
        # A TRAIN step that has not updated yet continues after an evaluation inside it.
        self.evaluation = self._open(mode, self.now_ns(), self.next_train_step - 1)
        self.evaluation.by_hand = True
        return self.evaluation

    def end(self, step: OpenStep) -> None:
        """Close a step that :meth:`begin` opened, unless a later one has closed it."""
        self._end(step)
        if step is self.train:
            step.updated = True
            self.close_train()
        elif step is self.evaluation:
            self._close_evaluation()

    def close(self) -> None:
        """Close all open steps at the end of the run."""
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
        step.unpause()
        forwards = step.forwards
        for forward in forwards:
            if forward.backpropagated:
                self._trained[forward.model] = forward.training and self._trained.get(forward.model, True)
        if len(forwards) == 1 and forwards[0].backpropagated:
            forwards[0].records.absorb(step.records)
            step.records, step.forwards = forwards[0].records, []
            self._emit(step)
            return
        trained = [forward for forward in forwards if forward.backpropagated]
        left = [forward for forward in forwards if not forward.backpropagated]
        if step.by_hand or (step.updated and not trained):
            # Gradients came without a backward, for example from torch.func, and still belong to these forwards.
            trained, left = forwards, []
        own = step.models | {forward.model for forward in trained}
        for forward in left:
            if forward.awaits(step.models):
                forward.output = None  # once
                self._awaiting.append(forward)
            elif trained and forward.model not in own and not forward.if_evaluated:
                if forward.has_records:
                    forward.records.give_up(GivenUp.STATISTICS)
                    step.records.absorb(forward.records)
            else:
                self._evaluated(forward, before=step.mode_step)
        if not trained and not step.updated:
            # Nothing was trained here: give the number back, the step never was.
            self._next[_TRAIN] = step.mode_step
            return
        # Into the first, one after another: an episode of reinforcement learning has hundreds.
        rest = (forward.records for forward in trained[1:] if forward.has_records)
        records = [*(forward.records for forward in trained[:1]), *rest, step.records]
        step.records = records[0]
        for more in records[1:]:
            step.records.absorb(more)
        step.forwards = []
        self._emit(step)

    @staticmethod
    def _helps(model: int, step: OpenStep) -> bool:
        """Whether a call of a model without gradients is a part of a step of other models."""
        return bool(step.forwards) and all(other.model != model for other in step.forwards)

    def _end(self, step: OpenStep) -> None:
        if self.end_phases is None:
            step.end_ns = self.now_ns()
        else:
            # One time for both: the phases of a step add up to its whole time.
            step.end_ns = self.end_phases(step.records)

    def _open_train(self, now: int, called: int | None = None) -> OpenStep:
        self.called = called
        self.train = self._open(Mode.TRAIN, now, self.next_train_step)
        if self._awaiting:
            self.train.forwards, self._awaiting = self._awaiting, []
        return self.train

    def _open(self, mode: Mode, now: int, train_step: int, *, numbered: bool = True) -> OpenStep:
        mode_step = self._next[mode]
        self._next[mode] += 1
        global_step = self._next_global
        self._next_global += 1
        return OpenStep(global_step, mode, mode_step, train_step, now, numbered and self._due(mode, mode_step))

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
        model = self.leaders.get(forward.model, forward.model)
        step = self._open(self.evaluates_as, forward.start_ns, self.next_train_step - 1, numbered=model >= 0)
        step.records, step.model, self.evaluation = forward.records, model, step
        if model < 0:
            self._owed = step.mode_step if self._owed is None else self._owed
        elif self._owed is not None:
            step.due = self._due(Mode.EVAL, self._owed) or step.due
            self._owed = None

    def _hold_evaluation(self) -> None:
        """The forward of the open evaluation is over, and another begins."""
        step, self.evaluation = self.evaluation, None
        if step is None:
            return
        step.end_ns = step.end_ns or self.now_ns()
        self._held.append(step)
        if len(self._held) >= _MANY:
            self._phase.add(step.model)
        if step.model in self._phase or step.records.series:
            self._emit_held()

    def _close_evaluation(self) -> None:
        """End the open evaluation, and all that are held back."""
        self._hold_evaluation()
        self._emit_held()

    def _emit_held(self) -> None:
        held, self._held = self._held, []
        # Of models without numbers those with a loss come first: the others may have helped with that.
        for step in sorted(held, key=lambda step: not step.records.series):
            step.model = self.number_of(step.model)
        for step in held:
            self._emit(step)

    def _decide(self, model: int) -> list[OpenStep]:
        """A model is about to be trained: what is held back was an evaluation up to the last call of that model.

        Returns the calls of others since then, which help to train it.
        """
        leader = self.leaders.get(model, model)
        own = [at for at, step in enumerate(self._held, 1) if step.model == leader or step.by_hand]
        held = self._held[own[-1] if own else 0 :]
        if len(held) >= _SEVERAL and model not in self._called and all(step.model in self._called for step in held):
            self._emit_held()
            return []
        if own:
            del self._held[own[-1] :]
            self._emit_held()
        self._held = []
        # Their numbers were the last ones.
        self._next_global -= len(held)
        for step in held:
            self._next[step.mode] -= 1
        return held

    def _evaluated(self, forward: Forward, before: int) -> None:
        step = self._open(Mode.EVAL, forward.start_ns, before - 1)
        step.records = records = forward.records
        step.model = self.leaders.get(forward.model, forward.model)
        records.series += forward.if_evaluated
        if not step.due:
            # Captured for the training step that it was taken for.
            records.give_up(GivenUp.STATISTICS)
        step.end_ns = forward.start_ns
        self._emit(step)
