"""Steps of which each is one call of a compiled function."""

from __future__ import annotations

import statistics
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Any

from watchglass.capture.arrays import number_of
from watchglass.capture.compiled.first_bad import FirstBadValue
from watchglass.capture.phase_source import PhaseSource, record_phases
from watchglass.capture.port import Port
from watchglass.capture.profiling.step_windows import StepBoundaries, profile_windows
from watchglass.capture.profiling.windows import WindowProfiler
from watchglass.capture.step_phases import COMPUTE, DATA, NO_PHASES, OTHER, StepPhases
from watchglass.record import OpenStep
from watchglass.records import Mode, Role, StepPhase
from watchglass.store import ABSENT

#: Steps without a capture whose durations give the usual one, and how many of them are needed.
_USUAL, _LEAST_USUAL = 15, 3

#: Series that are named by their model where there are several.
_OF_MODEL = ("loss", "accuracy")


class EndsOfSteps(StepBoundaries):
    """The ends of TRAIN steps, for windows that are profiled.

    Args:
        port: Its guard runs the callbacks.
    """

    missing = "no training step has ended in the training thread, which a window needs"

    def __init__(self, port: Port) -> None:
        self._port = port
        self.passed: tuple[Callable[[], None], ...] = ()

    def listen(self, passed: Callable[[], None]) -> Callable[[], None]:  # noqa: D102
        told = self._port.guard.shielded(passed)
        self.passed = (*self.passed, told)

        def leave() -> None:
            self.passed = tuple(each for each in self.passed if each is not told)

        return leave


class CompiledSteps(PhaseSource):
    """Opens and closes the steps of a loop whose steps are calls of compiled functions. For the training thread.

    TRAIN steps on which nothing is due are recorded as rows, after their calls, so that they cost little.

    Args:
        port: Gets the steps.
        profiler: Profiles the operators of windows; None for nothing.
    """

    phases = frozenset((StepPhase.DATA, StepPhase.COMPUTE))

    def __init__(self, port: Port, profiler: WindowProfiler | None = None) -> None:
        self._port = port
        # Windows begin with the first step: a process may import frameworks that it does not train with.
        self._ends, self._profiler = EndsOfSteps(port), profiler
        self.first_bad = FirstBadValue(port)  #: Looks for the first value that is not finite.
        self._phases: StepPhases | None = None
        self._open: OpenStep | None = None
        # Whether steps are recorded as rows now, and when the first row began. By model: how many of its steps are not
        # due, from the last captured one on, and how many of its steps are rows; the model whose step began last.
        self._steady, self._since_ns = False, 0
        self._ahead: dict[int, int] = {}
        self._rows: Counter[int] = Counter()
        self._model = 0
        self._began_ns = self._ended_ns = 0
        # From beginning to beginning: durations of steps without a capture, and whether the latest has one.
        self._usual: deque[int] = deque(maxlen=_USUAL)
        self._captured = False
        port.on_settle.append(self.leave)
        port.on_configured.append(self._replan)
        port.records.in_steady_step = lambda: self._steady and self._began_ns > self._ended_ns
        record_phases(port, self)

    def attach(self, port: Port, phases: StepPhases) -> None:
        """Mark phases from now on."""
        self._phases = phases

    def waits(self) -> None:
        """The loop waits for data from now on."""
        if self._phases is not None:
            self._phases.begin(DATA)

    def goes_on(self) -> None:
        """The data are there, or the loop does something else."""
        if self._phases is not None:
            self._phases.begin(OTHER)

    def computes(self) -> None:
        """The data that a call of a step has taken itself are there."""
        if self._phases is not None:
            self._phases.begin(COMPUTE)

    def returned(self, result: Any) -> None:
        """The call has returned an array that may still be computed, with ``is_ready``; None for none."""
        if self._phases is not None:
            self._phases.returned = result

    def begin(self, mode: Mode = Mode.TRAIN, *, collects: bool = True, model: int | None = None) -> OpenStep | None:
        """A call begins; returns its step if values of it are to be collected, else None.

        Args:
            mode: Its mode.
            collects: False if there are no values of it: a call may make several steps, of which it has those of one.
            model: Number of its model; None where that is known only at its end.

        Raises:
            TrainingStopped: A stop was requested, and a TRAIN step would begin.
        """
        port, before_ns = self._port, self._began_ns
        if mode is Mode.TRAIN and self.begin_row(self._model if model is None else model, collects=collects):
            return None
        now_ns = self._began_ns = port.clock.now_ns() if self._phases is None else self._phases.begin(COMPUTE)
        self.leave()
        if before_ns and mode is Mode.TRAIN:
            self._lasted(now_ns - before_ns)
        step = self._open = port.begin(mode, model)
        step.due = step.due and collects
        self._captured = self.first_bad.collects(step) or step.due
        return step if self._captured else None

    def begin_row(self, model: int, *, collects: bool = True) -> bool:
        """Whether a TRAIN step of a model begins of which only its loss is recorded; :meth:`end_row` ends it.

        Most steps are such: one that knows the model may ask this, and call :meth:`begin` where it is False.
        """
        ahead = self._ahead.get(model, -1) if self._steady else -1
        if ahead < 0 or self._port.changes.pending or (collects and (not ahead or self.first_bad.alarmed)):
            return False
        self._began_ns = self._port.clock.now_ns() if self._phases is None else self._phases.begin(COMPUTE)
        return True

    def end(
        self, numbers: Mapping[str, Any], rate: float | None = None, weight: float = 1.0, model: int = 0,
        others: Mapping[int, Any] | None = None,
    ) -> None:  # fmt: skip
        """The call has returned, and what was captured of it is saved.

        Args:
            numbers: Its losses and metrics by name, ``"loss"`` among them: floats or arrays of one element, which may
                be on their way from a device. A name that begins with ``"loss"`` or ends with ``"/loss"`` is a loss.
            rate: Its learning rate; None if that is not known.
            weight: What they count in means, samples.
            model: Number of its model.
            others: Losses of further models that it trains, by their numbers.
        """
        port, step = self._port, self._open
        if step is None:
            loss = numbers.get("loss", ABSENT)
            self.end_row(loss if loss is ABSENT else number_of(loss), rate, weight, model)
            return
        self._open = None
        train = step.mode is Mode.TRAIN
        for name, value in numbers.items():
            role = Role.LOSS if name == "loss" or name.endswith("/loss") else Role.METRIC
            number = number_of(value)
            if train and name == "loss":
                number = self.first_bad.ended(step, number)
            port.add_scalar(step.records, name, number, role, weight, model if name in _OF_MODEL else None)
        for other, value in (others or {}).items():
            port.add_scalar(step.records, "loss", number_of(value), Role.LOSS, weight, other)
        rated = rate is not None and train
        if rated:
            port.add_scalar(step.records, "learning_rate", rate, Role.METRIC)
        # What the loop knows itself counts more than what was computed from collected values.
        own = {*numbers, "learning_rate"} if rated else numbers.keys()
        step.records.series = [each for each in step.records.series if each[0] not in own]
        step.model = model
        if train:
            port.updated(step)
        port.end(step)
        self._ended_ns = step.end_ns
        plain = train and not others and numbers.keys() <= {"loss"}
        if train:
            self._passed()
        self._steady = plain and self._begin_rows(model, rated=rate is not None)
        self._since_ns = step.end_ns

    def fail(self) -> None:
        """The call has raised: its step is none."""
        self._open = None
        self.first_bad.dropped()

    def leave(self) -> None:
        """No further step is recorded as a row for now."""
        if self._steady:
            self._steady = False
            rows, self._rows = self._rows, Counter()
            for model, count in rows.items():
                self._port.alternating.passed(model, count)
            self._port.cost.steady_steps_ended(rows.total(), self._since_ns, self._ended_ns, 0)

    def _begin_rows(self, model: int, *, rated: bool) -> bool:
        """Whether steps of a model may be rows from now on."""
        port = self._port
        begun = port.steady.begin(model, rated=rated)
        if begun:
            self._model = model
            train_step = port.clock.next_train_step
            self._ahead[model] = port.alternating.next_due(model, train_step) - train_step
        return begun

    def _replan(self) -> None:
        self.leave()
        self._ahead.clear()

    def end_row(self, loss: Any, rate: float | None, weight: float = 1.0, model: int = 0) -> None:
        """The same for a step of which nothing was captured.

        Args:
            loss: A float, a readback or an array that NumPy reads, which may wait for it on the recorder's thread;
                :data:`ABSENT` where it is not known.
            rate: See :meth:`end`.
            weight: See :meth:`end`.
            model: See :meth:`end`.
        """
        now_ns, spent_ns = (self._port.clock.now_ns(), NO_PHASES) if self._phases is None else self._phases.end()
        ahead = self._ahead.get(model)
        if ahead is None:  # it was not known as the step began
            model = model if self._begin_rows(model, rated=rate is not None) else self._model
            ahead = self._ahead[model]
        if loss is not ABSENT:
            loss = self.first_bad.watched(loss)
        self._port.steady.step(self._began_ns, now_ns, loss, ABSENT if rate is None else rate, weight, spent_ns, model)
        self._ended_ns, self._model = now_ns, model
        self._rows[model] += 1
        self._ahead[model] = ahead - 1 if ahead else 0
        if self._ends.passed:
            self._passed()

    def _passed(self) -> None:
        """A TRAIN step is over."""
        profiler, self._profiler = self._profiler, None
        if profiler is not None:
            profile_windows(self._port, (profiler,), self._ends)
        for passed in self._ends.passed:
            passed()

    def _lasted(self, duration_ns: int) -> None:
        """The latest step is over, and lasted this long: a framework may only queue the work of its calls."""
        if not self._captured:
            self._usual.append(duration_ns)
        elif len(self._usual) >= _LEAST_USUAL:
            self._port.cost.device_ns += max(0, duration_ns - int(statistics.median(self._usual)))
