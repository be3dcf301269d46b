"""The hook watches a training run: it plans captures, numbers steps, collects records and gives them to the recorder.

A framework's adapter holds a :class:`Hook` and reports events to it. All callbacks of an adapter run through
``Hook.guarded``: they cannot fail the training run, see :class:`~watchglass.capture.guard.Guard`. No rule runs here.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from time import monotonic_ns
from typing import Any

from watchglass.capture.alternating_optimizers import AlternatingOptimizers
from watchglass.capture.committed_changes import CommittedChanges
from watchglass.capture.cost import Cost
from watchglass.capture.destination import check_destination
from watchglass.capture.exit_and_fork import close_at_exit
from watchglass.capture.guard import Guard
from watchglass.capture.hang_stacks import HangStacks
from watchglass.capture.limits import DEFAULT_LIMITS, CaptureLimits
from watchglass.capture.plan import Plan
from watchglass.capture.process_failure import failure_from
from watchglass.capture.resumption import Resumption
from watchglass.capture.saved_values import SavedValues
from watchglass.capture.step_phases import PhaseSource, StepPhases
from watchglass.capture.worker_files import WorkerOpening
from watchglass.config import SessionConfig, environment
from watchglass.control import Mailbox
from watchglass.errors import InvalidValueError, TrainingStopped
from watchglass.record import CapturedRecords, OpenStep, Recorder, SteadyRow, StepClock
from watchglass.records import Fact, Failure, Mode, Role, TensorInfo, count, series_name
from watchglass.store import Store, open_store

_log = logging.getLogger("watchglass")


class Hook:
    """Captures one training process into a run.

    Most scripts need only ``watchglass run`` or :func:`watchglass.watch`; a hook gives full control, also over a
    loop that no adapter knows::

        hook = watchglass.Hook(run="runs/mine")
        for batch in data:
            with hook.step("train"):
                ...
                hook.save_scalar("loss", loss)
                hook.save_tensor("w", w)
        hook.close()

    Nothing is written, and no thread is started, before the first training step. The methods are for one thread, the
    training's; except for ``close``, a call from another thread is ignored.

    Args:
        run: Where the run is written, a folder or ``s3://bucket/path``: a new one, or that of a running job.
        config: The whole configuration at once, instead of the keyword arguments.
        limits: Limits on time, memory and steps.
        open_store: Opens the store of a location.
        **settings: Fields of :class:`~watchglass.config.SessionConfig`: ``collections``, ``save_interval``,
            ``overhead_budget`` and so on.

    Raises:
        InvalidValueError: A setting outside its limits.
        NotARunError: ``run`` exists and is not a run.
        RunExistsError: A training process of another launch writes this run now.
    """

    def __init__(
        self,
        run: str | os.PathLike[str] = "",
        *,
        config: SessionConfig | None = None,
        limits: CaptureLimits = DEFAULT_LIMITS,
        open_store: Callable[[str], Store] = open_store,
        **settings: Any,
    ) -> None:
        self.limits = limits
        self.config = config or SessionConfig(run=os.fspath(run)).with_settings(settings)
        check_destination(self.config)
        self._pid = os.getpid()
        self.active = True
        #: Whether a fault has ended the capture.
        self.broken = False
        #: Backward passes before the first training step.
        self.early_backwards = 0
        #: Returns this process's rank in its group, None if it trains alone. Called at the first training step.
        self.rank: Callable[[], int | None] = environment.group_rank

        #: Called with the attempt, on the recorder's thread, when this process has become a worker of the run.
        self.on_start: list[Callable[[int], None]] = []
        #: Called a few times a second on the recorder's thread, while the run is open.
        self.on_look: list[Callable[[], None]] = []
        #: Called after the configuration has changed.
        self.on_configured: list[Callable[[], None]] = []
        #: Called where deferred work must be finished, see :meth:`settle`.
        self.on_settle: list[Callable[[], None]] = []
        #: Called with each finished step, before the recorder gets it; must not raise.
        self.on_finished: list[Callable[[OpenStep], None]] = []
        #: Called at the end of the training run, once its last step is settled.
        self.on_end: list[Callable[[], None]] = []
        #: Called when everything is written, the last one added first.
        self.on_close: list[Callable[[], None]] = []
        self._detachers: list[Callable[[], object]] = []

        self.plan = Plan(self.config, lambda: self.rank() or 0, limits.allowance_ns)
        self._plan_changed = True
        self.clock = StepClock(self._finished, self._due)
        self.alternating = AlternatingOptimizers(functools.partial(self.plan.due, Mode.TRAIN), self.plan.next_due)
        #: Monotonic clock of steps whose phases are recorded, and of their pauses and modules, in nanoseconds.
        self.phase_clock: Callable[[], int] = monotonic_ns
        self._restart_phases: Callable[[], None] = lambda: None
        #: What was committed for this process and is not applied yet.
        self.changes = CommittedChanges(self)
        self._stopped = False

        # Several keys of a tensor (the adapter's, its name) lead to one id.
        self._ids: dict[Any, int] = {}
        self._names: dict[str, int] = {}
        # Records saved between steps: they belong to the next step.
        self._carried = CapturedRecords()
        # A script may save values after an update: then the last step waits for them here, until the next step.
        self._saves_late = False
        self._late: OpenStep | None = None
        # Whether the step that is being closed becomes the one that waits.
        self._holds = False
        #: Whether a step of :meth:`steady_step` has begun and is not over.
        self.in_steady_step: Callable[[], bool] = lambda: False
        # Of such steps: the ids of loss and learning rate, and the number of the model.
        self._steady_ids, self._steady_model = (0, 0), 0

        self._recorder = Recorder(
            WorkerOpening(self.config, limits, lambda: self.rank(), self._worker_opened, open_store),
            flush_interval_s=self.config.flush_interval_s,
            queue_bytes=self.config.queue_bytes,
            on_commit=self.changes.add,
            on_look=self._look,
            timing=limits.timing,
        )
        self.resumption = Resumption(self.clock, self._recorder, limits)
        self._saved = SavedValues(self)
        self.cost = Cost(self.plan, self._recorder, limits.cost_report_ns)
        self.guard = Guard(self)
        #: See :meth:`Guard.guarded`.
        self.guarded = self.guard.guarded
        if self.config.records_phases:
            HangStacks(self, after_s=limits.stacks_after_s)
        close_at_exit(self)

    # -- for adapters ---------------------------------------------------------------------------------------------

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
        self.plan.configure(config)
        self._plan_changed = True
        # The cost so far remains spent.
        self.plan.budget.goes_on_from(before)
        for callback in self.on_configured:
            self.guard.call(callback)

    def detach_with(self, undo: Callable[[], object]) -> None:
        """Call ``undo`` when this hook detaches."""
        self._detachers.append(undo)

    def record_phases(self, source: PhaseSource) -> None:
        """Record the phases of steps that ``source`` marks, if the configuration says so; for one source."""
        if self.config.records_phases:
            phases = StepPhases(self.phase_clock)
            self.clock.now_ns, self.clock.end_phases = phases.now_ns, phases.end_in
            self._restart_phases = phases.restart
            source.attach(self, phases)

    def tensor_id(self, key: Any, make: Callable[[], TensorInfo]) -> int:
        """Id of the tensor known by ``key``; ``make`` builds its catalog row (id 0) the first time."""
        found = self._ids.get(key)
        if found is None:
            info = make()
            found = self._names.get(info.name)
            if found is None:
                found = self._names[info.name] = len(self._names) + 1
                self._recorder.add_tensor(dataclasses.replace(info, tensor_id=found))
            self._ids[key] = found
        return found

    def id_of(self, name: str) -> int | None:
        """Id of the tensor or series of this name, None where there is none."""
        return self._ids.get(name)

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
        tensor_id = self._ids.get(name)
        if tensor_id is None:
            tensor_id = self.tensor_id(name, lambda: TensorInfo(0, name, role, dtype="float64", model=model))
        records.scalars.append((tensor_id, weight, value))

    def add_fact(self, fact: Fact) -> None:
        """Record a fact of the process, not of a step. It starts the recorder, even if this process never trains."""
        self.ensure_started()
        self._recorder.add_fact(fact)

    def ensure_started(self) -> None:
        """A training step has begun: start the recorder."""
        if self._recorder.started or not self.active:
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
        if stop is not None:
            self._stopped = True
            self.close()
            raise TrainingStopped(stop.reason)

    def current_records(self) -> CapturedRecords:
        """Records of the step that is open; between steps those of the next one."""
        step = self.clock.evaluation or self.clock.train
        return self._carried if step is None else step.records

    def saved_records(self) -> CapturedRecords:
        """Records of values that a script saves: of the open step or, until the next one opens, of the last."""
        step = self.clock.evaluation or self.clock.train
        if step is not None:
            self._saves_late |= step.updated
            return step.records
        if self.in_steady_step():
            return self._carried
        self._saves_late = True
        return self._carried if self._late is None else self._late.records

    def updated(self, step: OpenStep) -> None:
        """An optimizer has changed parameters: from here on the step survives the end of this process."""
        if not self.resumption.waiting:
            self._recorder.flight.updated(step)

    def begin_steady_steps(self, model: int = 0, *, rated: bool = True) -> bool:
        """Whether TRAIN steps of a model may come through :meth:`steady_step` now; if so, closes the open step.

        Args:
            model: Number of the model.
            rated: Whether these steps have a learning rate.
        """
        if not self._recorder.started or self.clock.evaluation is not None or not self.clock.at_boundary:
            return False
        if self.resumption.waiting:
            return False
        if not self.plan.budget.knows_idle:
            return False  # steady steps are not measured: their cost is estimated from the others
        name = series_name("loss", model)
        loss = self.tensor_id(name, lambda: TensorInfo(0, name, Role.LOSS, dtype="float64", model=model))
        rate = self.id_of("learning_rate") or 0
        if rated and not rate:
            rate = self.tensor_id("learning_rate", lambda: TensorInfo(0, "learning_rate", Role.METRIC, dtype="float64"))
        self._steady_ids, self._steady_model = (loss, rate), model
        if not model:
            self._recorder.row_ids = self._steady_ids
        self._holds = self._saves_late
        self.clock.close_train()
        self._holds = False
        return True

    @property
    def saves_between(self) -> bool:
        """Whether the script saves values between steps, or after an update."""
        return self._saves_late or not self._carried.is_empty

    def steady_step(
        self, start_ns: int, end_ns: int, loss: Any, learning_rate: float, weight: float, phases: tuple[int, ...]
    ) -> None:
        """Record a whole TRAIN step of which only these values are known; see :class:`SteadyRow`."""
        row = self.clock.steady_train(start_ns, end_ns, loss, learning_rate, weight, phases)
        carried = self._carried
        # A bare row has no model: it counts as the first model's.
        whole = self._steady_model or self._saves_late
        if whole or not carried.is_empty:
            steady = SteadyRow._make(row)
            carried.scalars += steady.scalars(*self._steady_ids)
            self._carried = CapturedRecords()
            step = steady.opened(carried)
            step.model = self._steady_model
            self._put_late()
            if self._saves_late:
                self.updated(step)
                self._late = step
            else:
                self._recorder.put(step)
        else:
            self._recorder.put_row(row)

    def flush(self) -> None:
        """Write the queue now instead of at the next interval, so that readers see it."""
        self._recorder.urgent()

    def fault(self, error: Exception, where: str) -> None:
        """Capture has failed: log it once, record it, and capture nothing from here on."""
        if self.config.strict:
            raise error
        if self.broken:
            return
        self.active = False
        self.broken = True
        with suppress(Exception):
            _log.warning("watchglass: capture is off: %s in %s: %s", type(error).__name__, where, error)
        with suppress(Exception):
            fact = ("capture_fault", where, {"error": f"{type(error).__name__}: {error}"})
            # Recorded with the next step that ends: a step without an update is dropped with its records.
            train = self.clock.train
            before = self.clock.last_step if train is None else train.global_step - 1
            self._carried.facts.append(fact)
            with suppress(Exception):
                self.resumption.give_up()
                self.clock.close()
                self._put_late()
            if fact in self._carried.facts and self._recorder.started:
                self._recorder.add_fact(Fact(fact[0], before, *fact[1:]))
            self._recorder.urgent()

    def detach_if_broken(self) -> bool:
        """Detach after a fault, from where that is safe; returns whether there was one.

        Not called during a fault: PyTorch may be iterating over the hooks that this removes.
        """
        if self.broken:
            self._detach()
        return self.broken

    # -- for scripts ----------------------------------------------------------------------------------------------

    def step(self, mode: Mode | str = Mode.TRAIN) -> AbstractContextManager[OpenStep]:
        """One step of a loop that no adapter knows.

        Args:
            mode: ``"train"``, ``"eval"`` or ``"predict"``.

        Raises:
            InvalidValueError: Another mode.
            TrainingStopped: A stop was requested, and a TRAIN step would begin.
        """
        return self._step(Mode.of_step(mode))

    def resume(self, step: int) -> None:
        """This training run continues from a checkpoint: its TRAIN steps count from ``step``.

        Not needed where the optimizer counts (Adam and its like), nor for XGBoost. Call it before the first update.

        Args:
            step: How many updates were made before the checkpoint was written: the number of the step to come.

        Raises:
            InvalidValueError: It is not a number of updates, or the first step of this process is over.
        """
        if type(step) is not int or not 0 <= step < 1 << 53:
            raise InvalidValueError(f"step must be a number of updates, 0 or more, but got {step!r}")
        if not self.active or os.getpid() != self._pid:
            return
        if not self.resumption.open:
            raise InvalidValueError(
                f"resume must be called before the first update but was called at step {self.clock.next_train_step}"
            )
        self.guard.call(self.resumption.settle, step, "given")

    def save_scalar(self, name: str, value: float, collection: str | None = None) -> None:
        """Record one number at the current step.

        Args:
            name: Its name in the run, ``"reward"``.
            value: A number, or a tensor of one element.
            collection: Name of a collection to file it under; ``metrics`` when not given.
        """
        self.guard.call(self._saved.save_scalar, name, value, collection)

    def save_tensor(self, name: str, value: Any, collection: str | None = None) -> None:
        """Record a tensor's statistics at the current step, and the tensor itself where a collection asks for it.

        Args:
            name: Its name in the run.
            value: Anything NumPy can read; a PyTorch tensor may live on any device.
            collection: Name of a collection to file it under. Under a built-in one, such as ``"gradients"``,
                the tensor gets its role, and rules evaluate it.
        """
        self.guard.call(self._saved.save_tensor, name, value, collection)

    @property
    def started(self) -> bool:
        """Whether a training step has begun in this process, so that it is a worker of the run."""
        return self._recorder.started and os.getpid() == self._pid

    def close(self, status: str | None = None, failure: Failure | None = None) -> None:
        """End the recording: write everything and detach. Safe to call twice.

        Args:
            status: ``finished``, ``failed`` or ``stopped``; ``finished`` when not given, unless a stop was raised.
            failure: The reason for a failure, where it is known.
        """
        if os.getpid() != self._pid:
            return
        if self.active:
            self.settle()
            self.guard.call(self.changes.apply_to_profiler)
            for notify in self.on_end:
                self.guard.call(notify)
            self.clock.close()
            self._put_late()
            self.resumption.look(last=True)
            self.active = False
        self._detach()
        # These callbacks hold the adapter, which holds the model.
        for callbacks in (self.on_settle, self.on_configured, self.changes.on_window, self.on_end, self.on_finished):
            callbacks.clear()
        if self._recorder.started:
            status = status or ("stopped" if self._stopped else "finished")
            self._recorder.close(status, self.cost.report(), failure)
        while self.on_close:
            self.on_close.pop()()

    def __repr__(self) -> str:
        state = "watching" if self.active else "off after a fault" if self.broken else "closed"
        return f"Hook(run={self.config.run!r}, {state}, {count(self.clock.next_train_step, 'training step')})"

    def __enter__(self) -> Hook:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        failure = failure_from(error, trace)
        self.close("failed" if failure is not None else None, failure)

    # -- inside ---------------------------------------------------------------------------------------------------

    def forked(self) -> None:
        """This is a forked child: the run belongs to the parent, unless that has not trained and forks its ranks."""
        if self._recorder.started:
            self.active = False
        else:
            self._pid = os.getpid()
            self._restart_phases()

    @contextmanager
    def _step(self, mode: Mode) -> Iterator[OpenStep]:
        # The loop gets a step even if nothing is recorded, so that its code is the same.
        step = self.guard.call(self._begin, mode)
        try:
            yield step or OpenStep(-1, mode, -1, -1, 0)
        finally:
            if step is not None:
                self.guard.call(self._end, step)

    def _begin(self, mode: Mode) -> OpenStep:
        self.settle()
        if mode is Mode.TRAIN:
            self.apply_changes()
        step = self.clock.begin(mode)
        if mode is Mode.TRAIN:
            self.ensure_started()
        return step

    def _end(self, step: OpenStep) -> None:
        self.clock.end(step)
        if self.clock.train is not None:
            self.plan.resume()

    def _detach(self) -> None:
        while self._detachers:
            try:
                self._detachers.pop()()
            except Exception as error:  # the others must be undone too
                self.fault(error, "detaching")

    def _put_late(self) -> None:
        step, self._late = self._late, None
        if step is not None:
            self._recorder.put(step)

    def _finished(self, step: OpenStep) -> None:
        self._put_late()
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
            self._carried.facts.append(("capture_plan", "plan", self.plan.describe()))
        if not self._carried.is_empty:
            step.records.absorb(self._carried)
            self._carried = CapturedRecords()
        if step.mode is Mode.EVAL and step.due and self.plan.has_facts_alone(step.mode):
            # Captured for a training step that the forward was taken for.
            step.records.forget_tensors()
        if step.mode is Mode.TRAIN:
            own = self.alternating.ended(step.model, step.optimizers, step.mode_step, captured=step.due)
            self.ensure_started()
            self.cost.step_ended(step, own)
            if step.due:
                self._report_unmatched(step)
        if self._holds:
            self._late = step
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
            step.records.facts.append(("collection_unmatched", "plan", {"collection": name, "near": list(near)}))

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
