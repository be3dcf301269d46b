"""What adapters report to: it plans captures, numbers steps, collects records and gives them to the recorder.

All callbacks of an adapter run through ``Port.guarded``: they cannot fail the training run, see
:class:`~watchglass.capture.guard.Guard`. No rule runs here.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from time import monotonic_ns
from typing import Any

from watchglass.capture.guard import Guard
from watchglass.capture.limits import CaptureLimits
from watchglass.capture.model_numbers import ModelNumbers
from watchglass.capture.planning.alternating_optimizers import AlternatingOptimizers
from watchglass.capture.planning.cost import Cost
from watchglass.capture.planning.plan import Plan
from watchglass.capture.process.committed_changes import CommittedChanges
from watchglass.capture.process.resumption import Resumption
from watchglass.capture.process.worker_files import WorkerOpening
from watchglass.capture.saving.pending_records import PendingRecords
from watchglass.capture.saving.saved_values import SavedValues
from watchglass.capture.saving.saving import Saving
from watchglass.capture.saving.steady_steps import SteadySteps
from watchglass.capture.saving.tensor_ids import TensorIds
from watchglass.capture.step_phases import StepPhases
from watchglass.config import SessionConfig, environment
from watchglass.control import Mailbox
from watchglass.errors import TrainingStopped
from watchglass.record import CapturedRecords, OpenStep, Recorder, StepClock
from watchglass.records import SCALARS, DeclaredFact, Failure, GivenUp, Mode, Role, TensorInfo, facts, series_name
from watchglass.store import Store

_log = logging.getLogger("watchglass")


@dataclasses.dataclass
class Advice:
    """What a loop around a framework knows about the run and the framework does not."""

    #: Returns the planned number of updates, None if it is not known.
    planned_steps: Callable[[], int | None] = lambda: None
    source: str = ""  #: Where this number comes from.
    batches_per_step: Callable[[], int] = lambda: 1  #: Returns the number of batches of an update.
    #: Whether the loop ends the run itself, as its framework does, once :meth:`Port.ends_before` says so.
    stops: bool = False


class Port:
    """Captures one training process into a run. For one thread, the training's.

    Nothing is written, and no thread is started, before the first training step.

    Args:
        config: The configuration.
        limits: Limits on time, memory and steps.
        open_store: Opens the store of a location.

    Attributes:
        guard: Runs callbacks, and undoes what was put into a framework.
        guarded: See :meth:`Guard.guarded`.
        detach_with: See :meth:`Guard.detach_with`.
        plan: Which tensors are kept at a step.
        clock: Numbers the steps.
        ids: Numbers of tensors and series.
        model_numbers: Numbers of models.
        records: The records to which a value belongs now.
        steady: Records steps of which only loss and learning rate are known.
        save_scalar: Records a number, ``save_scalar(name, value, collection)``. It counts instead of what is recorded
            of the same name in the step.
        save_tensor: Records an array of any framework, ``save_tensor(name, value, collection)``.
        cost: The cost so far.
        resumption: The first step of this process.
        alternating: Models and optimizers that take turns.
        changes: What was committed for this process and is not applied yet.
        windows: Windows of steps that its loops profile at present.
        phases: The phases of steps, of all sources; None until there is one, or where phases are not recorded.
        phase_clock: Monotonic clock of steps whose phases are recorded, and of their pauses and modules, in
            nanoseconds.
        advice: What loops around the framework know.
        early_backwards: Backward passes before the first training step.
        rank: Returns this process's rank in its group, None if it trains alone. Called at the first training step.
        on_start: Called with the attempt, on the recorder's thread, when this process has become a worker of the run.
        on_look: Called a few times a second on the recorder's thread, while the run is open.
        on_configured: Called after the configuration has changed.
        on_settle: Called where deferred work must be finished, see :meth:`settle`.
        on_finished: Called with each finished step, before the recorder gets it; must not raise.
        on_end: Called at the end of the training run, once its last step is settled.
        on_fork: Called in a forked child that may become a worker.
        on_close: Called when everything is written, the last one added first.
    """

    def __init__(self, config: SessionConfig, limits: CaptureLimits, open_store: Callable[[str], Store]) -> None:
        self.config, self.limits = config, limits
        self._pid = os.getpid()
        self.early_backwards = 0
        self.advice = Advice()
        self.rank: Callable[[], int | None] = environment.group_rank
        self.phases: StepPhases | None = None
        self.windows: list[Any] = []
        self.phase_clock: Callable[[], int] = monotonic_ns
        self.on_start: list[Callable[[int], None]] = []
        self.on_look: list[Callable[[], None]] = []
        self.on_configured: list[Callable[[], None]] = []
        self.on_settle: list[Callable[[], None]] = []
        self.on_finished: list[Callable[[OpenStep], None]] = []
        self.on_end: list[Callable[[], None]] = []
        self.on_fork: list[Callable[[], None]] = []
        self.on_close: list[Callable[[], None]] = []

        self.plan = Plan(config, lambda: self.rank() or 0, limits.allowance_ns)
        self._plan_changed = True
        self._stopped = False
        self.clock = StepClock(self._finished, self._due)
        self.alternating = AlternatingOptimizers(functools.partial(self.plan.due, Mode.TRAIN), self.plan.next_due)
        self.changes = CommittedChanges(
            self.add_fact, self._change_profiler, lambda: self.config.profiler.enabled is not False
        )
        self._recorder = Recorder(
            WorkerOpening(config, limits, lambda: self.rank(), self._worker_opened, open_store),
            flush_interval_s=config.flush_interval_s,
            queue_bytes=config.queue_bytes,
            on_commit=self.changes.add,
            on_look=self._look,
            timing=limits.timing,
        )
        self.ids = TensorIds(self._recorder.add_tensor)
        self.model_numbers = ModelNumbers()
        self.resumption = Resumption(self.clock, self._recorder, limits)
        self.records = PendingRecords(self.clock, self._recorder.put)
        self.steady = SteadySteps(self.clock, self.ids, self.records, self.resumption, self.plan, self._recorder)
        self.cost = Cost(self.plan, self._recorder, limits.cost_report_ns)
        saved = SavedValues(self.plan, self.ids, self.records, Saving(self.plan, self.ids, self.cost))
        self.save_scalar, self.save_tensor = saved.save_scalar, saved.save_tensor
        self.guard = Guard(self.cost, self._faulted, strict=config.strict)
        self.guarded, self.detach_with = self.guard.guarded, self.guard.detach_with

    def settle(self) -> None:
        """Let adapters finish deferred work, before a step of the script itself, another configuration or the end."""
        for settle in self.on_settle:
            try:
                settle()
            except Exception as error:
                self.guard.fault(error, settle)

    def reconfigure(self, config: SessionConfig) -> None:
        """Capture by another configuration from the next step on; records are written as before."""
        before = self.plan.budget
        # The fast path knows the next captured step of the old configuration.
        self.settle()
        self.config = config
        self.guard.strict = config.strict
        self.plan.configure(config)
        self._plan_changed = True
        # The cost so far remains spent.
        self.plan.budget.goes_on_from(before)
        for callback in self.on_configured:
            self.guard.call(callback)

    def add_scalar(
        self, records: CapturedRecords, name: str, value: Any, role: Role, weight: float = 1.0, model: int | None = None
    ) -> None:
        """Record one number; several of one name in a step are averaged by weight.

        Args:
            records: The records to add it to.
            name: Its name.
            value: A float, or a readback of one.
            role: Its role.
            weight: Its weight in an average.
            model: Number of its model; then ``name`` has no prefix. None if it belongs to no model.
        """
        if model:
            name = series_name(name, model)
        tensor_id = self.ids.known(name)
        if tensor_id is None:
            tensor_id = self.ids.of(name, lambda: TensorInfo(0, name, role, dtype="float64", model=model))
        records.rows[SCALARS].append((tensor_id, weight, value))

    def add_fact(self, fact: DeclaredFact, source: str) -> None:
        """Record a fact of the process, not of a step. It starts the recorder, even if this process never trains."""
        self.ensure_started()
        self._recorder.add_fact(fact.to_fact(source))

    def add_fact_between(self, fact: DeclaredFact, source: str) -> None:
        """Record a fact of what happened after the last step that is over; the recorder has started."""
        self._recorder.add_fact(fact.to_fact(source, self._last_over()))

    def _last_over(self) -> int:
        """``global_step`` of the last step that is over, -1 before the first."""
        train = self.clock.train
        return self.clock.last_step if train is None else train.global_step - 1

    def ensure_started(self) -> None:
        """A training step has begun: start the recorder."""
        if self._recorder.started or not self.guard.active:
            return
        self._recorder.start()
        self.resumption.release()

    def apply_changes(self) -> None:
        """Begin what was committed, before a TRAIN step.

        Raises:
            TrainingStopped: The next TRAIN step lies beyond a committed stop.
        """
        if not self.changes.pending:
            return
        self.changes.apply_to_profiler()
        stop = self.changes.stop_before(self.clock.next_train_step) if self.clock.at_boundary else None
        if stop is not None and not self.advice.stops:
            self._stopped = True
            self.close()
            raise TrainingStopped(stop.reason)

    def ends_before(self, step: int) -> bool:
        """Whether a committed stop lets no TRAIN step begin from ``step`` on; then the caller ends the loop."""
        stops = self.changes.stop_before(step) is not None
        self._stopped |= stops
        return stops

    def updated(self, step: OpenStep) -> None:
        """An optimizer has changed parameters: from here on the step survives the end of this process."""
        if not self.resumption.waiting:
            self._recorder.flight.updated(step)

    def flush(self) -> None:
        """Write the queue now instead of at the next interval, so that readers see it."""
        self._recorder.urgent()

    @property
    def started(self) -> bool:
        """Whether a training step has begun in this process, so that it is a worker of the run."""
        return self._recorder.started and self.is_owner

    @property
    def is_owner(self) -> bool:
        """Whether this process is the one that captures, and no fork of it."""
        return os.getpid() == self._pid

    def begin(self, mode: Mode, model: int | None = None) -> OpenStep:
        """A step begins, of a loop that drives or of a script.

        Args:
            mode: Its mode.
            model: Number of its model; None where that is known only at its end.

        Raises:
            TrainingStopped: A stop was requested, and a TRAIN step would begin.
        """
        self.settle()
        if mode is Mode.TRAIN:
            self.apply_changes()
            self.alternating.told = model
        step = self.clock.begin(mode)
        if mode is Mode.TRAIN:
            self.ensure_started()
        return step

    def end(self, step: OpenStep) -> None:
        """That step is over."""
        self.settle()
        self.clock.end(step)
        if self.clock.train is not None:
            self.plan.resume()

    def close(self, status: str | None = None, failure: Failure | None = None) -> None:
        """End the recording: write everything and detach. Safe to call twice.

        Args:
            status: ``finished``, ``failed`` or ``stopped``; ``finished`` when not given, unless a stop was raised.
            failure: The reason for a failure, where it is known.
        """
        if not self.is_owner:
            return
        late = None
        if self.guard.active:
            self.settle()
            self.guard.call(self.changes.apply_to_profiler)
            for notify in self.on_end:
                self.guard.call(notify)
            self.clock.close()
            self.records.put_late()
            self.resumption.look(last=True)
            late = self.records.take()
            self.guard.active = False
        self.guard.detach()
        # These callbacks hold the adapter, which holds the model.
        for callbacks in (self.on_settle, self.on_configured, self.changes.on_window, self.on_end, self.on_finished):
            callbacks.clear()
        if self._recorder.started:
            status = status or ("stopped" if self._stopped else "finished")
            self._recorder.close(status, self.cost.report(), failure, late)
        while self.on_close:
            self.on_close.pop()()

    def forked(self) -> None:
        """This is a forked child: the run belongs to the parent, unless that has not trained and forks its ranks."""
        if self._recorder.started:
            self.guard.active = False
        else:
            self._pid = os.getpid()
            for callback in self.on_fork:
                callback()

    def _faulted(self, error: Exception, where: str) -> None:
        """Capture has failed: log it, and record it."""
        with suppress(Exception):
            _log.warning("watchglass: capture is off: %s in %s: %s", type(error).__name__, where, error)
        with suppress(Exception):
            fault = facts.CaptureFault(f"{type(error).__name__}: {error}")
            # Recorded with the next step that ends: a step without an update is dropped with its records.
            before = self._last_over()
            self.records.carried.add_fact(fault, where)
            with suppress(Exception):
                if not self._recorder.started:
                    self._recorder.start()  # the run says why it has no step
            with suppress(Exception):
                self.resumption.give_up()
                self.clock.close()
                self.records.put_late()
            if (fault.KIND, where, fault) in self.records.carried.facts and self._recorder.started:
                self._recorder.add_fact(fault.to_fact(where, before))
            self._recorder.urgent()

    def _change_profiler(self, settings: Mapping[str, Any]) -> None:
        profiler = dataclasses.replace(self.config.profiler, **settings)
        self.config = dataclasses.replace(self.config, profiler=profiler)
        for callback in self.on_configured:
            self.guard.call(callback)
        self.add_fact(facts.ProfilerChanged(self.clock.next_train_step, **settings), "control")

    def _finished(self, step: OpenStep) -> None:
        self.records.put_late()
        for callback in self.on_finished:
            callback(step)
        if step.mode is Mode.EVAL:
            step.records.series += step.records.if_evaluated
        for name, role, weight, value in step.records.series:
            self.add_scalar(step.records, name, value, role, weight, step.model)
        step.records.series, step.records.if_evaluated = [], []
        if self._plan_changed and step.mode is Mode.TRAIN:
            self._plan_changed = False
            # Rules that need other tensors learn from it that these will not come.
            self.records.carried.add_fact(self.plan.describe(), "plan")
        if not self.records.carried.is_empty:
            step.records.absorb(self.records.take())
        if step.mode is Mode.EVAL and step.due and self.plan.has_facts_alone(step.mode):
            # Captured for a training step that the forward was taken for.
            step.records.give_up(GivenUp.STATISTICS)
        if step.mode is Mode.TRAIN:
            own = self.alternating.ended(step.model, step.optimizers, step.mode_step, captured=step.due)
            self.ensure_started()
            self.cost.step_ended(step, own)
            if step.due:
                self._report_unmatched(step)
        if self.records.holds:
            self.records.late = step
        elif not self.resumption.holds(step):
            self._recorder.put(step)

    def _due(self, mode: Mode, mode_step: int) -> bool:
        if mode is Mode.TRAIN:
            self.plan.budget.begins_at = self.clock.first_train_step
            due = self.alternating.opens(mode_step, self.clock.called)
            self.cost.step_opened(due=due)
            return due
        return self.plan.due(mode, mode_step)

    def _report_unmatched(self, step: OpenStep) -> None:
        for collection, near in self.plan.unmatched():
            if near:
                hint = f"did you mean {' or '.join(near)}?"
            elif collection.narrows:
                hint = "change what it selects, or leave it out"
            else:  # also what rules need, which a user has not selected
                hint = "the model has nothing of the kind, or it is hidden in compiled code or another library"
            name = collection.name
            _log.warning("watchglass: collection %s holds nothing at step %d: %s", name, step.mode_step, hint)
            step.records.add_fact(facts.CollectionUnmatched(name, tuple(near)), "plan")

    def _worker_opened(self, mailbox: Mailbox, attempt: int) -> None:
        self._recorder.listen(mailbox)
        self.resumption.joined(attempt)
        for callback in self.on_start:
            try:
                callback(attempt)
            except Exception as error:  # the run does not depend on it
                _log.warning("watchglass: %s: %s; the run is recorded nevertheless", type(error).__name__, error)

    def _look(self) -> None:
        for callback in self.on_look:
            callback()
