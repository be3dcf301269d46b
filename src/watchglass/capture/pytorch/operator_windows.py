"""Windows of training steps in which PyTorch's profiler records operators.

A window opens and closes between two steps. The training thread only starts and stops the profiler; the recorder's
thread sums the events up. A script's own profiler has precedence: PyTorch has one for each process, so that a second
one would end the first.

The events of a window must be freed while nothing is profiled: PyTorch 2.13 damages its memory otherwise, and the
garbage collector may free them at any time. So they are freed as soon as they are summed up, and before the next
window or a profiler of the script begins.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from statistics import median
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from watchglass.capture.hook import Hook
from watchglass.capture.pytorch import public_calls as calls
from watchglass.capture.pytorch.compiled.graphs import captured, compiling
from watchglass.records import COMPARED_STEPS, OperatorTotals, OperatorWindow, WindowCost, WindowRefusal

if TYPE_CHECKING:
    from torch.profiler import profile

_SOURCE = "torch.profiler"


@dataclass(frozen=True)
class _DueWindow:
    """A window that is still to come.

    Attributes:
        steps: The TRAIN steps.
        request: Number of the request on the running job; None if the configuration names it.
    """

    steps: range
    request: int | None = None


@dataclass
class _OpenWindow:
    """A window that is being recorded, or waits to be summed up.

    Attributes:
        due: The window.
        profiler: PyTorch's profiler.
        begin_ns: Time to start it.
        outside_s: Times of the steps before.
        reached: The step that comes next.
        inside_s: Times of its steps so far.
        end_ns: Time to stop it.
        note: Why it ended early; "" if it did not.
    """

    due: _DueWindow
    profiler: profile
    begin_ns: int
    outside_s: list[float]
    reached: int
    inside_s: list[float] = field(default_factory=list)
    end_ns: int = 0
    note: str = ""


class OperatorWindows:
    """Profiles operators in windows, of the configuration and requested later. Without one it registers nothing.

    A requested window begins at its step, or as soon after it as it can.

    Args:
        hook: Gets the results, and names the windows.
    """

    def __init__(self, hook: Hook) -> None:
        self._hook = hook
        self._thread = threading.get_ident()
        self._due: deque[_DueWindow] = deque()
        self._open: _OpenWindow | None = None
        self._closed: deque[_OpenWindow] = deque()
        self._summing = threading.Lock()
        self._times_s: deque[float] = deque(maxlen=COMPARED_STEPS)
        self._boundary: tuple[int, int] | None = None
        self._configured: tuple[range, ...] = ()
        self._undo: Callable[[], None] = _nothing
        self._leave_profilers: Callable[[], None] | None = None
        hook.on_configured.append(self._configure)
        hook.on_window.append(self._requested)
        hook.on_look.append(self._sum_up)
        hook.on_end.append(self._run_ends)
        hook.detach_with(self._detach)
        self._configure()

    def _configure(self) -> None:
        windows = self._hook.config.profile_windows
        if windows == self._configured:
            return
        self._configured = windows
        begun = self._open.due.steps.stop if self._open is not None else 0
        requested = [window for window in self._due if window.request is not None]
        self._await([*requested, *(_DueWindow(steps) for steps in windows if steps.start >= begun)])

    def _requested(self, steps: range, request: int) -> None:
        self._await([*self._due, _DueWindow(steps, request)])

    def _await(self, windows: Iterable[_DueWindow]) -> None:
        """Listen for the windows to come. Not while PyTorch is going through its hooks."""
        self._due = deque(sorted(windows, key=lambda window: window.steps.start))
        self._undo()
        after = self._hook.guard.shielded(self._updated, unless=compiling)
        needed = self._due or self._open is not None
        self._undo = register_optimizer_step_post_hook(after).remove if needed else _nothing

    # -- in the training thread --------------------------------------------------------------------------------------

    def _updated(self, optimizer: Any, arguments: Any, kwargs: Any) -> None:
        """An optimizer has stepped: the step is over, and the next window may begin here."""
        # The hook stays registered: PyTorch is going through its hooks here.
        if self._open is None and not self._due and self._leave_profilers is None:
            return
        clock = self._hook.clock
        if threading.get_ident() != self._thread or not clock.at_boundary:
            return
        step = clock.next_train_step
        now_ns = monotonic_ns()
        if self._boundary is not None and step > self._boundary[0]:
            seconds = (now_ns - self._boundary[1]) / 1e9 / (step - self._boundary[0])
            (self._times_s if self._open is None else self._open.inside_s).append(seconds)
        if self._open is not None:
            self._open.reached = step
            if step >= self._open.due.steps.stop:
                self._close()
        while self._due and self._open is None and self._due[0].steps.start <= step:
            self._begin(self._due.popleft(), step)
        if self._open is None and not self._closed:
            self._leave()
        self._boundary = (step, monotonic_ns())

    def _leave(self) -> None:
        """No events are left: what the script profiles needs no attention."""
        leave, self._leave_profilers = self._leave_profilers, None
        if leave is not None:
            leave()

    def _begin(self, window: _DueWindow, step: int) -> None:
        if window.request is not None:
            window = replace(window, steps=range(step, step + len(window.steps)))
            following = next((each.steps for each in self._due if each.request is None), window.steps[:0])
            if following.start < window.steps.stop and following:
                self._refuse(window, f"it would overlap the window {following.start}:{following.stop}")
                return
        if window.steps.start < step:
            self._refuse(window, f"its first step was over: step {step} comes next")
            return
        try:
            if torch.autograd._profiler_enabled():  # type: ignore[attr-defined]
                self._refuse(window, "the script uses PyTorch's profiler itself")
            elif captured():
                self._refuse(window, "a CUDA graph is being captured")
            else:
                self._sum_up()
                self._open = self._started(window)
        except Exception as error:  # of PyTorch's profiler: the window is lost, capture goes on
            self._refuse(window, f"PyTorch's profiler did not start: {type(error).__name__}: {error}")

    def _started(self, window: _DueWindow) -> _OpenWindow:
        from torch import profiler  # only when a window is due

        began_ns = monotonic_ns()
        activities = [profiler.ProfilerActivity.CPU]
        if torch.cuda.is_initialized():
            activities.append(profiler.ProfilerActivity.CUDA)
        recording = profiler.profile(activities=activities, profile_memory=True)
        recording.start()
        if self._leave_profilers is None:
            self._leave_profilers = calls.PROFILERS.listen(self._hook.guard, before=self._script_profiles)
        return _OpenWindow(window, recording, monotonic_ns() - began_ns, list(self._times_s), window.steps.start)

    def _close(self, note: str = "") -> None:
        window, self._open = self._open, None
        assert window is not None
        began_ns = monotonic_ns()
        try:
            window.profiler.stop()
        except Exception as error:
            window.profiler.profiler = None
            self._refuse(window.due, f"PyTorch's profiler did not stop: {type(error).__name__}: {error}")
            return
        window.end_ns = monotonic_ns() - began_ns
        window.note = note
        if window.inside_s:
            self._closed.append(window)
        else:
            window.profiler.profiler = None
            self._refuse(window.due, note)

    def _script_profiles(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The script is about to use PyTorch's profiler."""
        if threading.get_ident() == self._thread:
            if self._open is not None:
                self._close("the script began to use PyTorch's profiler itself")
            self._sum_up()

    def _run_ends(self) -> None:
        if self._open is not None:
            self._close("the training run ended before its last step")
        for window in self._due if self._hook.started else ():
            begin = f"step {window.steps.start}" if window.request is None else "the window began"
            self._refuse(window, f"the training run ended before {begin}")
        self._due.clear()
        self._sum_up()

    def _refuse(self, window: _DueWindow, reason: str) -> None:
        refusal = WindowRefusal(window.steps.start, window.steps.stop, reason, window.request)
        self._hook.add_fact(refusal.to_fact(_SOURCE))

    def _detach(self) -> None:
        self._undo()
        if self._open is not None:
            self._close("capture ended before its last step")
        self._sum_up()
        self._leave()

    # -- in the recorder's thread ------------------------------------------------------------------------------------

    def _sum_up(self) -> None:
        with self._summing:
            while self._closed:
                window = self._closed[0]
                try:
                    self._hook.add_fact(_result(window).to_fact(_SOURCE))
                except Exception as error:
                    self._refuse(window.due, f"its events were not read: {type(error).__name__}: {error}")
                self._closed.popleft()


def _result(window: _OpenWindow) -> OperatorWindow:
    try:
        operators = [_totals(event) for event in window.profiler.key_averages()]
    finally:
        window.profiler.profiler = None
    operators.sort(key=lambda each: (-max(each.self_cpu_s, each.self_device_s), each.name))
    outside = median(window.outside_s) if window.outside_s else float("nan")
    cost = WindowCost(median(window.inside_s), outside, window.begin_ns / 1e9, window.end_ns / 1e9)
    first, request = window.due.steps.start, window.due.request
    return OperatorWindow(first, window.reached, tuple(operators), cost, note=window.note, request=request)


def _totals(event: Any) -> OperatorTotals:
    """The sums of one operator; PyTorch has microseconds."""
    return OperatorTotals(
        str(event.key),
        int(event.count),
        _seconds(event.self_cpu_time_total),
        _seconds(event.cpu_time_total),
        _seconds(event.self_device_time_total),
        _seconds(event.device_time_total),
        int(event.self_cpu_memory_usage),
        int(event.self_device_memory_usage),
        event.device_type.name != "CPU",
    )


def _nothing() -> None: ...


def _seconds(microseconds: float) -> float:
    return round(microseconds / 1e6, 9)
