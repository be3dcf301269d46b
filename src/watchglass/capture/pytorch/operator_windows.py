"""Windows of training steps in which PyTorch's profiler records operators.

A window opens and closes between two steps. The training thread only starts and stops the profiler; the recorder's
thread sums the events up. A script's own profiler has precedence: PyTorch has one for each process, so that a second
one would end the first.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from watchglass.capture.hook import Hook
from watchglass.capture.pytorch import public_calls as calls
from watchglass.capture.pytorch.compiled.graphs import captured, compiling
from watchglass.records import OperatorTotals, OperatorWindow, WindowCost, WindowRefusal

if TYPE_CHECKING:
    from torch.profiler import profile

#: Steps before a window whose times its steps are compared with: house.
_COMPARED_STEPS = 32
_SOURCE = "torch.profiler"


@dataclass
class _OpenWindow:
    """A window that is being recorded, or waits to be summed up.

    Attributes:
        steps: The requested TRAIN steps.
        profiler: PyTorch's profiler.
        begin_ns: Time to start it.
        outside_s: Times of the steps before.
        reached: The step that comes next.
        inside_s: Times of its steps so far.
        end_ns: Time to stop it.
        note: Why it ended early; "" if it did not.
    """

    steps: range
    profiler: profile
    begin_ns: int
    outside_s: list[float]
    reached: int
    inside_s: list[float] = field(default_factory=list)
    end_ns: int = 0
    note: str = ""


class OperatorWindows:
    """Profiles the operators of the windows that the configuration names. Without one it registers nothing.

    Args:
        hook: Gets the results, and names the windows.
    """

    def __init__(self, hook: Hook) -> None:
        self._hook = hook
        self._thread = threading.get_ident()
        self._due: deque[range] = deque()
        self._open: _OpenWindow | None = None
        self._closed: deque[_OpenWindow] = deque()
        self._summing = threading.Lock()
        self._times_s: deque[float] = deque(maxlen=_COMPARED_STEPS)
        self._boundary: tuple[int, int] | None = None
        self._configured: tuple[range, ...] = ()
        self._undo: Callable[[], None] = _nothing
        self._leave_profilers: Callable[[], None] = _nothing
        hook.on_configured.append(self._configure)
        hook.on_look.append(self._sum_up)
        hook.on_end.append(self._run_ends)
        hook.detach_with(self._detach)
        self._configure()

    def _configure(self) -> None:
        windows = self._hook.config.profile_windows
        if windows == self._configured:
            return
        self._configured = windows
        begun = self._open.steps.stop if self._open is not None else 0
        self._due = deque(window for window in windows if window.start >= begun)
        self._undo()
        after = self._hook.guard.shielded(self._updated, unless=compiling)
        needed = self._due or self._open is not None
        self._undo = register_optimizer_step_post_hook(after).remove if needed else _nothing

    # -- in the training thread --------------------------------------------------------------------------------------

    def _updated(self, optimizer: Any, arguments: Any, kwargs: Any) -> None:
        """An optimizer has stepped: the step is over, and the next window may begin here."""
        # The hook stays registered: PyTorch is going through its hooks here.
        if self._open is None and not self._due:
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
            if step >= self._open.steps.stop:
                self._close()
        while self._due and self._open is None and self._due[0].start <= step:
            self._begin(self._due.popleft(), step)
        self._boundary = (step, monotonic_ns())

    def _begin(self, window: range, step: int) -> None:
        if window.start < step:
            self._refuse(window, f"the step before it ended unobserved, and step {step} comes next")
            return
        try:
            if torch.autograd._profiler_enabled():  # type: ignore[attr-defined]
                self._refuse(window, "the script uses PyTorch's profiler itself")
            elif captured():
                self._refuse(window, "a CUDA graph is being captured")
            else:
                self._open = self._started(window)
        except Exception as error:  # of PyTorch's profiler: the window is lost, capture goes on
            self._refuse(window, f"PyTorch's profiler did not start: {type(error).__name__}: {error}")

    def _started(self, window: range) -> _OpenWindow:
        from torch import profiler  # only when a window is due

        began_ns = monotonic_ns()
        activities = [profiler.ProfilerActivity.CPU]
        if torch.cuda.is_initialized():
            activities.append(profiler.ProfilerActivity.CUDA)
        recording = profiler.profile(activities=activities, profile_memory=True)
        recording.start()
        self._leave_profilers = calls.PROFILERS.listen(self._hook.guard, before=self._script_profiles)
        return _OpenWindow(window, recording, monotonic_ns() - began_ns, list(self._times_s), window.start)

    def _close(self, note: str = "") -> None:
        window, self._open = self._open, None
        assert window is not None
        self._leave_profilers()
        began_ns = monotonic_ns()
        try:
            window.profiler.stop()
        except Exception as error:
            self._refuse(window.steps, f"PyTorch's profiler did not stop: {type(error).__name__}: {error}")
            return
        window.end_ns = monotonic_ns() - began_ns
        window.note = note
        if window.inside_s:
            self._closed.append(window)
        else:
            self._refuse(window.steps, note)

    def _script_profiles(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The script is about to use PyTorch's profiler."""
        if self._open is not None and threading.get_ident() == self._thread:
            self._close("the script began to use PyTorch's profiler itself")

    def _run_ends(self) -> None:
        if self._open is not None:
            self._close("the training run ended before its last step")
        for window in self._due if self._hook.started else ():
            self._refuse(window, f"the training run ended before step {window.start}")
        self._due.clear()
        self._sum_up()

    def _refuse(self, window: range, reason: str) -> None:
        self._hook.add_fact(WindowRefusal(window.start, window.stop, reason).to_fact(_SOURCE))

    def _detach(self) -> None:
        self._undo()
        if self._open is not None:
            self._close("capture ended before its last step")

    # -- in the recorder's thread ------------------------------------------------------------------------------------

    def _sum_up(self) -> None:
        with self._summing:
            while self._closed:
                window = self._closed.popleft()
                try:
                    self._hook.add_fact(_result(window).to_fact(_SOURCE))
                except Exception as error:
                    self._refuse(window.steps, f"its events were not read: {type(error).__name__}: {error}")


def _result(window: _OpenWindow) -> OperatorWindow:
    operators = [_totals(event) for event in window.profiler.key_averages()]
    operators.sort(key=lambda each: (-max(each.self_cpu_s, each.self_device_s), each.name))
    outside = median(window.outside_s) if window.outside_s else float("nan")
    cost = WindowCost(median(window.inside_s), outside, window.begin_ns / 1e9, window.end_ns / 1e9)
    return OperatorWindow(window.steps.start, window.reached, tuple(operators), cost, note=window.note)


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
