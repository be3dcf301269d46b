"""PyTorch's profiler in windows of training steps: the operators of a model.

PyTorch has one profiler for each process, so that a second one would end the first. The events of a window must be
freed while nothing is profiled: PyTorch 2.13 damages its memory otherwise, and the garbage collector may free them at
any time. So they are freed as soon as they are summed up, and before the next window or a profiler of the script.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from watchglass.capture.guard import Guard
from watchglass.capture.hook import Hook
from watchglass.capture.pytorch import public_calls as calls
from watchglass.capture.pytorch.kept_traces import KeptTraces
from watchglass.capture.pytorch.step_windows import WindowProfiler
from watchglass.config import ProfiledRange, SessionConfig
from watchglass.records import Fact, OperatorTotals, OperatorWindow, WindowFrame

if TYPE_CHECKING:
    from torch.profiler import profile


class OperatorProfiler(WindowProfiler):
    """Sums of each operator, by ``torch.profiler``; and the trace, where the configuration keeps it.

    Args:
        hook: Gets the traces.
    """

    kind = "operators"
    name = "PyTorch's profiler"

    def __init__(self, hook: Hook) -> None:
        self._hook = hook
        self._traces = KeptTraces(hook)

    def windows(self, config: SessionConfig) -> tuple[ProfiledRange, ...]:  # noqa: D102
        return config.profiler.operator_windows

    def obstacle(self) -> str:  # noqa: D102
        profiles = torch.autograd._profiler_enabled()  # type: ignore[attr-defined]
        return "the script uses PyTorch's profiler itself" if profiles else ""

    def start(self) -> profile:  # noqa: D102
        from torch import profiler  # only when a window is due

        activities = [profiler.ProfilerActivity.CPU]
        if torch.cuda.is_initialized():
            activities.append(profiler.ProfilerActivity.CUDA)
        recording = profiler.profile(activities=activities, profile_memory=True)
        recording.start()
        return recording

    def stop(self, recording: profile) -> None:  # noqa: D102
        recording.stop()

    def result(self, recording: profile, frame: WindowFrame) -> Fact:  # noqa: D102
        operators = [_totals(event) for event in recording.key_averages()]
        operators.sort(key=lambda each: (-max(each.self_cpu_s, each.self_device_s), each.name))
        keeps = self._hook.config.profiler.keep_traces
        trace = self._traces.keep(recording, frame.first_step) if keeps else ""
        window = OperatorWindow(frame.first_step, frame.end_step, tuple(operators), *frame[2:], trace=trace)
        return window.to_fact("torch.profiler")

    def free(self, recording: profile) -> None:  # noqa: D102
        recording.profiler = None

    def listen(self, guard: Guard, before: Callable[[Any, Any], None]) -> Callable[[], None]:  # noqa: D102
        return calls.PROFILERS.listen(guard, before=before)


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


def _seconds(microseconds: float) -> float:
    return round(microseconds / 1e6, 9)
