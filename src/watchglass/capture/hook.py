"""The hook: what a training is watched through. It plans, numbers, collects and hands over; it judges nothing.

A framework's adapter holds a :class:`Hook` and tells it what happens. All callbacks of an adapter run through
:meth:`Hook.guarded`, the one place where the hot-path law is kept: return at once when off or re-entered, never raise
into the training, measure the cost.
"""

from __future__ import annotations

import atexit
import functools
import logging
import multiprocessing.util
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from watchglass.capture.plan import Plan
from watchglass.capture.worker import StopControl, open_worker
from watchglass.config import SessionConfig, environment
from watchglass.errors import InvalidValueError, NotARunError, TrainingStopped
from watchglass.record import OpenStep, Recorder, StepClock, StepRecords
from watchglass.records import Mode, Role, TensorInfo
from watchglass.stats import of_array

_log = logging.getLogger("watchglass")
_Callback = TypeVar("_Callback", bound=Callable[..., Any])

#: Evaluation steps that may wait for the first training step; a process that never trains writes nothing.
_MAX_EARLY_STEPS = 4096


class Hook:
    """Captures one training process into a run.

    Most trainings need only ``watchglass run`` or :func:`watchglass.watch`; a hook gives full control, also over a
    loop that no adapter knows::

        hook = watchglass.Hook(run="runs/mine")
        for batch in data:
            with hook.step("train"):
                ...
                hook.save_scalar("loss", loss)
                hook.save_tensor("w", w)
        hook.close()

    Nothing is written, and no thread is started, before the first training step. The methods are for one thread, the
    training's; a call from another is ignored.

    Args:
        run: Run directory to write; a new one, or that of a running job.
        config: The whole configuration at once, instead of the keyword arguments.
        **settings: Fields of :class:`~watchglass.config.SessionConfig`: ``collections``, ``save_interval``,
            ``overhead_budget`` and so on.

    Raises:
        InvalidValueError: A setting outside its limits.
        NotARunError: ``run`` exists and is not a run.
    """

    def __init__(
        self, run: str | os.PathLike[str] = "", *, config: SessionConfig | None = None, **settings: Any
    ) -> None:
        self.config = config or SessionConfig(run=os.fspath(run), **settings)
        _check_destination(self.config.run)
        self.plan = Plan(self.config.collections, self.config.save_interval, self.config.overhead_budget)
        self.clock = StepClock(self._finished, self.plan.due)
        self.active = True
        self.rank: Callable[[], int] = environment.rank
        self.on_start: list[Callable[[int], None]] = []
        self.on_close: list[Callable[[], None]] = []
        self._ids: dict[Any, int] = {}
        self._names: dict[str, int] = {}
        self._busy = False
        self._thread = threading.get_ident()
        self._pid = os.getpid()
        self._early: list[OpenStep] = []
        self._stop: tuple[int, str] | None = None
        self._stopped = False
        # Saved between steps; belongs to the next one.
        self._carried = StepRecords()
        self._cost_ns = 0
        self._last_end_ns = 0
        self._detachers: list[Callable[[], None]] = []
        self._recorder = Recorder(
            functools.partial(open_worker, self.config, lambda: self.rank(), self._worker_opened),
            flush_interval_s=self.config.flush_interval_s,
            queue_bytes=self.config.queue_bytes,
            on_stop=self._stop_at,
        )
        _at_exit(self)

    # -- for adapters ---------------------------------------------------------------------------------------------

    def guarded(self, callback: _Callback) -> _Callback:
        """``callback`` under the hot-path law: silent when off, re-entered or on another thread; never raises."""
        # Bound here: this runs many times in every step of the training.
        now_ns, thread = time.perf_counter_ns, threading.get_ident

        @functools.wraps(callback)
        def run(*args: Any) -> Any:
            if self._busy or not self.active or thread() != self._thread:
                return None
            self._busy = True
            started = now_ns()
            try:
                return callback(*args)
            except TrainingStopped:
                raise
            except Exception as error:
                self.fault(error, getattr(callback, "__qualname__", repr(callback)))
                return None
            finally:
                self._busy = False
                self._cost_ns += now_ns() - started

        return run  # type: ignore[return-value]

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Callbacks do nothing inside: what runs here is ours, not the training's."""
        before, self._busy = self._busy, True
        try:
            yield
        finally:
            self._busy = before

    def detach_with(self, undo: Callable[[], None]) -> None:
        """Call ``undo`` when this hook detaches."""
        self._detachers.append(undo)

    def tensor_id(self, key: Any, make: Callable[[], TensorInfo]) -> int:
        """Id of the tensor known by ``key``; ``make`` builds its catalog row (id 0) the first time."""
        found = self._ids.get(key)
        if found is None:
            info = make()
            found = self._names.get(info.name)
            if found is None:
                found = self._names[info.name] = len(self._names) + 1
                self._recorder.add_tensor(_with_id(info, found))
            self._ids[key] = found
        return found

    def add_scalar(self, records: StepRecords, name: str, value: Any, role: Role, weight: float = 1.0) -> None:
        """Record one number; several of one name in a step are averaged by weight."""
        tensor_id = self._ids.get(name)
        if tensor_id is None:
            tensor_id = self.tensor_id(name, lambda: TensorInfo(0, name, role, dtype="float64"))
        records.scalars.append((tensor_id, weight, value))

    def ensure_started(self) -> None:
        """A training step is under way: from here on there is something to write."""
        if self._recorder.started or not self.active:
            return
        for step in self._early:
            self._recorder.put(step)
        self._early.clear()
        self._recorder.start()

    @property
    def stopping(self) -> bool:
        """Whether a stop has been committed."""
        return self._stop is not None

    def check_stop(self) -> None:
        """Raise :class:`~watchglass.errors.TrainingStopped` if the next TRAIN step lies beyond a committed stop."""
        if self._stop is None or not self.clock.at_boundary or self.clock.next_train_step < self._stop[0]:
            return
        self._stopped = True
        reason = self._stop[1]
        self.close()
        raise TrainingStopped(reason)

    def flush(self) -> None:
        """Write what is queued soon instead of at the next interval: something happened that should be seen."""
        self._recorder.urgent()

    def fault(self, error: Exception, where: str) -> None:
        """Something of ours broke: say so once, record it, and leave the training alone from here on."""
        if self.config.strict:
            raise error
        self.active = False
        _log.warning("watchglass: capture is off: %s in %s: %s", type(error).__name__, where, error)
        with suppress(Exception):
            records = StepRecords()
            records.facts.append(("capture_fault", where, {"error": f"{type(error).__name__}: {error}"}))
            step = self.clock.train
            if step is not None:
                step.records.absorb(records)
            self.clock.close()
            self._recorder.urgent()
        self._detach()

    # -- for scripts ----------------------------------------------------------------------------------------------

    @contextmanager
    def step(self, mode: Mode | str = Mode.TRAIN) -> Iterator[OpenStep]:
        """One step of a loop that no adapter knows.

        Args:
            mode: ``"train"``, ``"eval"`` or ``"predict"``.

        Raises:
            InvalidValueError: Another mode.
            TrainingStopped: A stop was asked for, before a TRAIN step begins.
        """
        mode = _mode(mode)
        self.check_stop()
        step = self.clock.begin(mode)
        if mode is Mode.TRAIN:
            self.ensure_started()
        try:
            yield step
        finally:
            self.clock.end(step)

    def save_scalar(self, name: str, value: float, collection: str | None = None) -> None:
        """Record one number at the current step.

        Args:
            name: Its name in the run, ``"reward"``.
            value: A number, or a tensor of one element.
            collection: Name of a collection to file it under; ``metrics`` when not given.
        """
        if not self.active:
            return
        number = float(value)
        self.tensor_id(name, lambda: TensorInfo(0, name, Role.METRIC, dtype="float64", collections=_named(collection)))
        self.add_scalar(self._current_records(), name, number, Role.METRIC)

    def save_tensor(self, name: str, value: Any, collection: str | None = None) -> None:
        """Record a tensor's statistics at the current step, and the tensor itself where a collection asks for it.

        Args:
            name: Its name in the run.
            value: Anything NumPy can read; a PyTorch tensor may live on any device.
            collection: Name of a collection to file it under.
        """
        if not self.active:
            return
        array = np.asarray(value.detach().cpu().float() if hasattr(value, "detach") else value)
        info = TensorInfo(
            0, name, Role.CUSTOM, shape=array.shape, dtype=str(array.dtype), collections=_named(collection)
        )
        records = self._current_records()
        tensor_id = self.tensor_id(name, lambda: info)
        records.statistics.append(([tensor_id], of_array(array)[None], False))
        if self.plan.keeps_raw(name, Role.CUSTOM):
            records.raw.append((tensor_id, array.copy()))

    def close(self, status: str | None = None) -> None:
        """The training is over: write everything and detach. Safe to call twice.

        Args:
            status: ``finished``, ``failed`` or ``stopped``; ``finished`` when not given, unless a stop was raised.
        """
        if os.getpid() != self._pid:
            return
        if self.active:
            self.clock.close()
            self.active = False
            self._detach()
        if self._recorder.started:
            counters = {
                "callback_ns": self.plan.budget.cost_ns, "train_ns": self.plan.budget.train_ns,
                "recorder_cpu_ns": self._recorder.cpu_ns, "overhead_budget": self.config.overhead_budget,
                "interval": self.plan.budget.interval,
            }  # fmt: skip
            self._recorder.close(status or ("stopped" if self._stopped else "finished"), counters)
        while self.on_close:
            self.on_close.pop()()

    def __enter__(self) -> Hook:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        failed = kind is not None and not issubclass(kind, SystemExit)
        self.close("failed" if failed else None)

    # -- inside ---------------------------------------------------------------------------------------------------

    def disarm(self) -> None:
        """This is a forked child: the run belongs to the parent."""
        self.active = False

    def _detach(self) -> None:
        while self._detachers:
            self._detachers.pop()()

    def _current_records(self) -> StepRecords:
        step = self.clock.evaluation or self.clock.train
        return self._carried if step is None else step.records

    def _finished(self, step: OpenStep) -> None:
        if self._carried.scalars or self._carried.statistics:
            step.records.absorb(self._carried)
            self._carried = StepRecords()
        if step.mode is Mode.TRAIN:
            self._account(step)
        if self._recorder.started:
            self._recorder.put(step)
        elif len(self._early) < _MAX_EARLY_STEPS:
            self._early.append(step)

    def _account(self, step: OpenStep) -> None:
        cost_ns, self._cost_ns = self._cost_ns, 0
        duration_ns = step.end_ns - (self._last_end_ns or step.start_ns)
        self._last_end_ns = step.end_ns
        if self.plan.budget.spent(cost_ns, max(duration_ns, cost_ns), due=step.due):
            step.records.facts.append(("capture_interval", "budget", {"interval": self.plan.budget.interval}))
        if step.due and self._recorder.pressure:
            self.plan.budget.relieve()

    def _worker_opened(self, control: StopControl, attempt: int) -> None:
        self._recorder.watch(control)
        for callback in self.on_start:
            callback(attempt)

    def _stop_at(self, step: int, reason: str) -> None:
        self._stop = (step, reason)


def _with_id(info: TensorInfo, tensor_id: int) -> TensorInfo:
    return TensorInfo.from_json({**info.to_json(), "tensor_id": tensor_id})


def _named(collection: str | None) -> tuple[str, ...]:
    return (collection,) if collection else ()


def _mode(mode: Mode | str) -> Mode:
    if isinstance(mode, Mode) and mode is not Mode.GLOBAL:
        return mode
    try:
        found = Mode[str(mode).upper()]
    except KeyError:
        found = Mode.GLOBAL
    if found is Mode.GLOBAL:
        raise InvalidValueError(f'mode must be "train", "eval" or "predict" but got {mode!r}')
    return found


def _check_destination(run: str) -> None:
    if not run:
        raise InvalidValueError('run must name a folder to write to but got ""; for instance run="runs/mine"')
    path = Path(run)
    if path.is_file() or (path.is_dir() and not (path / "run.json").exists() and any(path.iterdir())):
        raise NotARunError(f"{run} exists and is not a run: choose another run directory, nothing was written")


_hooks: list[Hook] = []


def _at_exit(hook: Hook) -> None:
    """Write what is queued when the process ends, also in a child of multiprocessing, which runs no atexit."""
    if not _hooks:
        os.register_at_fork(after_in_child=_disarm_child)
    _hooks.append(hook)
    atexit.register(hook.close)
    hook.on_close.append(functools.partial(_forget, hook))
    if multiprocessing.parent_process() is not None:
        multiprocessing.util.Finalize(hook, hook.close, exitpriority=100)


def _forget(hook: Hook) -> None:
    atexit.unregister(hook.close)
    if hook in _hooks:
        _hooks.remove(hook)


def _disarm_child() -> None:
    for hook in _hooks:
        # A process that has not trained yet may fork its ranks: those may still become workers.
        if hook._recorder.started:
            hook.disarm()
        else:
            hook._pid = os.getpid()
