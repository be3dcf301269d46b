"""Asking a running job for a window of profiled operators, and waiting for it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from watchglass.config import TIMING
from watchglass.control import ProfileWindow, commit_window
from watchglass.errors import EndOfRunError, InvalidValueError, ProfileRefusedError, StepNotReadyError
from watchglass.records import COMPARED_STEPS, PYTHON_PROFILERS, Mode, WindowRefusal, count, read_facts
from watchglass.run.ending import ending_of
from watchglass.run.operators import Operators, operators_in
from watchglass.run.python_profiles import PythonProfile, python_profiles_in
from watchglass.run.run_records import RunRecords
from watchglass.store import attempts

if TYPE_CHECKING:
    from watchglass.tables import WorkerTables


T = TypeVar("T", Operators, PythonProfile)


@dataclass(frozen=True, eq=False)
class ProfileRequest(Generic[T]):
    """A running job was asked to profile some training steps. For one thread, that of the run.

    Attributes:
        run: The run.
        attempt: The attempt whose workers were asked.
        number: Number of the request in this attempt.
        steps: The TRAIN steps, half-open. A worker that is past the first of them begins with its next one.
        read: Gives the windows that a worker recorded, by its name and tables.
    """

    run: RunRecords
    attempt: int
    number: int
    steps: range
    read: Callable[[str, WorkerTables], list[T]]

    @property
    def windows(self) -> list[T]:
        """What was recorded, as of the last read: a window for each worker that has profiled."""
        windows = [each for name, tables in self._tables().items() for each in self.read(name, tables)]
        return [window for window in windows if window.request == self.number]

    @property
    def refused(self) -> dict[str, str]:
        """Why a worker has not profiled, by its name, as of the last read."""
        return {
            name: refusal.reason
            for name, tables in self._tables().items()
            for refusal in read_facts(tables.facts(-1), WindowRefusal)
            if refusal.request == self.number
        }

    def wait(
        self,
        timeout_s: float | None = None,
        *,
        tick: Callable[[float], object] = lambda waited_s: None,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> list[T]:
        """The recorded windows, as soon as each worker has profiled, refused or ended.

        Args:
            timeout_s: The longest time to wait; no limit if None. 0 reads once.
            tick: Called with the seconds waited, at each look.
            now: The clock, in seconds.
            sleep: Waits.

        Raises:
            StepNotReadyError: The time is over. The request remains.
            ProfileRefusedError: No worker has profiled; the message has the reason.
            EndOfRunError: The run ended before, without stating a reason: its processes were killed.
        """
        intervals = self.run.store.policy.intervals(len(self.run.workers))
        begun_s = now()
        looked_s, over = -math.inf, False
        found: list[T]
        refused: dict[str, str]
        while True:
            self.run.refresh()
            found, refused = self.windows, self.refused
            answered = {*refused, *(each.worker for each in found)}
            silent = [name for name in self._tables() if name not in answered and not self.run.worker(name).ended]
            if (answered and not silent) or over:
                break
            passed_s = now() - begun_s
            tick(passed_s)
            if now() - looked_s >= intervals.liveness_s:
                looked_s = now()
                over = self.run.attempt > self.attempt or ending_of(self.run).over
                if over:  # its last records may have arrived since
                    continue
            if timeout_s is not None and passed_s >= timeout_s:
                raise StepNotReadyError(
                    f"{self.run.location}: the window of steps {self.steps.start}:{self.steps.stop} is not recorded "
                    f"after {timeout_s:g} s; the request remains"
                )
            sleep(intervals.poll_s if timeout_s is None else max(min(intervals.poll_s, timeout_s - passed_s), 0.001))
        if found:
            return found
        steps = count(len(self.steps), "training step")
        if not refused:
            raise EndOfRunError(f"{self.run.location} ended before {steps} were profiled")
        raise ProfileRefusedError(f"{self.run.location}: {steps} not profiled: {next(iter(refused.values()))}")

    def _tables(self) -> dict[str, WorkerTables]:
        return _tables(self.run, self.attempt)


def request_profile(
    run: RunRecords, steps: int, start: int | None, *, reason: str = "", finding: str = ""
) -> ProfileRequest[Operators]:
    """See :meth:`Run.profile`; ``reason`` and ``finding`` are as for :class:`~watchglass.control.ProfileWindow`."""
    return _request(run, ProfileWindow(steps, reason, finding), start, operators_in)


def request_python_profile(
    run: RunRecords, steps: int, start: int | None, profiler: str
) -> ProfileRequest[PythonProfile]:
    """See :meth:`Run.profile_python`."""
    if profiler not in PYTHON_PROFILERS:
        raise InvalidValueError(f"profiler must be one of {', '.join(PYTHON_PROFILERS)} but got {profiler!r}")
    return _request(run, ProfileWindow(steps, profile=profiler), start, python_profiles_in)


def change_profiler(run: RunRecords, settings: Mapping[str, Any]) -> int:
    """See :meth:`Run.change_profiler`."""
    window = ProfileWindow(0, settings=settings)
    attempt, next_step, lead = _running(run)
    for name in ("enabled", "sample_interval_s"):
        if settings.get(name) and not run.streams:
            raise InvalidValueError(
                f"{run.location} has no sampler, which only begins with the run, so {name} cannot be {settings[name]}"
            )
    return commit_window(run.store, attempt, window, next_step + lead).at_step


def _request(
    run: RunRecords, window: ProfileWindow, start: int | None, read: Callable[[str, WorkerTables], list[T]]
) -> ProfileRequest[T]:
    steps = window.steps
    if start is not None and (type(start) is not int or start < 1):
        raise InvalidValueError(f"start must be a step from 1 on: a window opens between two steps; but got {start!r}")
    attempt, next_step, lead = _running(run)
    if start is not None and start < next_step:
        raise InvalidValueError(
            f"step {start} of {run.location} is over, it has steps up to {next_step - 1}; "
            "choose a later start, or none for the next steps"
        )
    at_step = max(next_step + lead, 1) if start is None else start
    commit = commit_window(run.store, attempt, window, at_step)
    return ProfileRequest(run, attempt, commit.number, range(at_step, at_step + steps), read)


def running_attempt(run: RunRecords, why: str) -> int:
    """The attempt of a run that goes on; reads what is new.

    Args:
        run: The run.
        why: What cannot be done with a run that has ended, for the message: "so it cannot be stopped".

    Raises:
        EndOfRunError: The run has ended, or the attempt that it was opened with.
    """
    run.refresh()
    attempt = max(attempts(run.store), default=0)
    if run.fixed_attempt not in (None, attempt):
        raise EndOfRunError(f"{run.location}: attempt {run.fixed_attempt} has ended, {why}")
    if ending_of(run).over:
        raise EndOfRunError(f"{run.location} has ended, {why}; a new run can be")
    return attempt


def _running(run: RunRecords) -> tuple[int, int, int]:
    """The attempt that goes on, and its progress."""
    attempt = running_attempt(run, "so nothing of it can be profiled")
    return attempt, *_progress(run, attempt)


def _progress(run: RunRecords, attempt: int) -> tuple[int, int]:
    """The next TRAIN step of the furthest worker, and the steps until all workers will have read a request.

    One worker waits for no other: it begins as soon as it has read the request.
    """
    next_step, lengths = 0, []
    going_on = {name: tables for name, tables in _tables(run, attempt).items() if not run.worker(name).ended}
    for tables in going_on.values():
        steps = tables.steps.log.latest
        steps = steps[steps["mode"] == Mode.TRAIN][-COMPARED_STEPS:]
        if len(steps):
            next_step = max(next_step, int(steps["mode_step"][-1]) + 1)
        if len(steps) > 1:
            lengths.append((int(steps["end_ns"][-1]) - int(steps["end_ns"][0])) / 1e9 / (len(steps) - 1))
    if len(going_on) < 2 or not lengths:
        return next_step, 0
    intervals = run.store.policy.intervals(len(going_on))
    delay_s = intervals.flush_s + intervals.control_s + TIMING.recorder_look_s + TIMING.request_slack_s
    return next_step, math.ceil(delay_s / max(min(lengths), 1e-6))


def _tables(run: RunRecords, attempt: int) -> dict[str, WorkerTables]:
    """What each worker recorded in an attempt."""
    found = {name: run.worker(name).attempts.get(attempt) for name in run.workers}
    return {name: tables for name, tables in found.items() if tables is not None}
