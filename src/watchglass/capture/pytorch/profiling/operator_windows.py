"""PyTorch's profiler in windows of training steps: the operators of a model, its memory, and the trace.

PyTorch has one profiler for each process, so that a second one would end the first. A range that is open when a profile
ends must have ended before the next profile begins: PyTorch 2.13 writes its end into the freed memory of the first one
otherwise. Windows end in such a range, that of the optimizer's step, so they lie a step apart.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from watchglass.capture.guard import Guard
from watchglass.capture.port import Port
from watchglass.capture.profiling.kept_traces import KeptTraces
from watchglass.capture.profiling.windows import WindowProfiler
from watchglass.capture.pytorch import public_calls as calls
from watchglass.capture.pytorch.compiled.graphs import compiled_so_far
from watchglass.capture.pytorch.modules.models import Models
from watchglass.capture.pytorch.modules.nested_tensors import tensors_in
from watchglass.capture.pytorch.profiling.module_ranges import ModuleRanges
from watchglass.config import ProfiledRange, SessionConfig
from watchglass.records import MemoryTotals, OperatorTotals, OperatorWindow, WindowFrame


def held_memory(roots: Iterable[nn.Module], optimizers: Iterable[Optimizer]) -> list[MemoryTotals]:
    """Bytes of parameters, gradients, buffers and states of optimizers, by device.

    Each tensor counts once, a distributed one with its local part. Reads no values, so that it waits for no device.
    """
    sums: dict[tuple[str, str], int] = {}
    seen: set[int] = set()
    for category, tensor in _tensors(list(roots), list(optimizers)):
        if id(tensor) not in seen:
            seen.add(id(tensor))
            local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
            key = str(local.device), category
            sums[key] = sums.get(key, 0) + local.element_size() * local.nelement()
    return [MemoryTotals(device, category, size) for (device, category), size in sums.items()]


def temporary_memory(events: Iterable[Any]) -> list[MemoryTotals]:
    """The most that was allocated at a time in a window beyond its beginning, by device.

    These are activations, gradients that are made in each step, and workspaces.

    Args:
        events: Allocations and releases, as PyTorch's profiler has them, in the order of time.
    """
    now: dict[str, int] = {}
    most: dict[str, int] = {}
    for event in events:
        if event.name() == "[memory]":
            kind = event.device_type().name.lower()
            device = kind if kind == "cpu" else f"{kind}:{event.device_index()}"
            now[device] = now.get(device, 0) + event.nbytes()
            most[device] = max(most.get(device, 0), now[device])
    return [MemoryTotals(device, "temporary", size) for device, size in most.items() if size > 0]


def _tensors(roots: list[nn.Module], optimizers: list[Optimizer]) -> Iterator[tuple[str, Tensor]]:
    for root in roots:
        for parameter in root.parameters():
            yield "parameters", parameter
            if parameter.grad is not None:
                yield "gradients", parameter.grad
        for buffer in root.buffers():
            yield "buffers", buffer
    for optimizer in optimizers:
        for state in list(optimizer.state.values()):
            for _, tensor in tensors_in(state):
                yield "optimizer_state", tensor


if TYPE_CHECKING:
    from torch.profiler import profile, record_function


@dataclass
class _Recording:
    """What is recorded."""

    profile: profile  #: By PyTorch.
    ranges: ModuleRanges | None  #: Around modules; None where code is compiled, which hooks would compile once more.
    ignore_script: Callable[[], None]  #: Observes ranges of the script no longer.
    held: tuple[MemoryTotals, ...] = ()  #: Memory at the end of the window.

    def end_ranges(self) -> None:
        """Observe modules and ranges of the script no longer."""
        self.ignore_script()
        if self.ranges is not None:
            self.ranges.end()


class OperatorProfiler(WindowProfiler):
    """Sums of each operator, by ``torch.profiler``; and the trace, where the configuration keeps it.

    Args:
        port: Gets the traces.
        models: The watched models.
        optimizers: Those that have stepped.
    """

    kind = "operators"
    name = "PyTorch's profiler"
    apart = 1

    def __init__(self, port: Port, models: Models, optimizers: Callable[[], Iterable[Optimizer]]) -> None:
        self._port, self._models, self._optimizers = port, models, optimizers
        self._traces = KeptTraces(port, "torch.profiler")
        # Ranges that were begun in windows; one that `with` begins is freed where it ends.
        self._begun: weakref.WeakSet[record_function] = weakref.WeakSet()

    def windows(self, config: SessionConfig) -> tuple[ProfiledRange, ...]:  # noqa: D102
        return config.profiler.operator_windows

    def obstacle(self) -> str:  # noqa: D102
        for each in self._begun:
            return f"the script's range {each.name!r}, which began in an earlier window, may be open"
        profiles = torch.autograd._profiler_enabled()  # type: ignore[attr-defined]
        return "the script uses PyTorch's profiler itself" if profiles else ""

    @calls.own_profiler()
    def start(self) -> _Recording:  # noqa: D102
        from torch import profiler  # only when a window is due

        activities = [profiler.ProfilerActivity.CPU]
        if torch.cuda.is_initialized():
            activities.append(profiler.ProfilerActivity.CUDA)
        recording = _Recording(
            profiler.profile(activities=activities, profile_memory=True),
            None if compiled_so_far() else ModuleRanges(self._models, self._port.guard),
            calls.RANGES.listen(self._port.guard, before=lambda args, kwargs: self._begun.add(args[0])),
        )
        try:
            recording.profile.start()
        except BaseException:
            recording.end_ranges()
            raise
        return recording

    @calls.own_profiler()
    def stop(self, recording: _Recording) -> None:  # noqa: D102
        try:
            recording.end_ranges()
        finally:
            recording.profile.stop()
        recording.held = tuple(held_memory(self._models.roots(), self._optimizers()))

    @calls.own_profiler()
    def result(self, recording: _Recording, frame: WindowFrame, *, writes: bool) -> OperatorWindow:  # noqa: D102
        profile, ranges = recording.profile, recording.ranges
        operators = [
            _totals(event) for event in profile.key_averages() if ranges is None or not ranges.holds(event.key)
        ]
        operators.sort(key=lambda each: (-max(each.self_cpu_s, each.self_device_s), each.name))
        trace = ""
        if self._port.config.profiler.keep_traces:
            trace = self._traces.keep(
                lambda file: profile.export_chrome_trace(str(file)), frame.first_step, writes=writes
            )
        modules = tuple(ranges.operators(profile.events() or ())) if ranges is not None else ()
        results = profile.profiler.kineto_results if profile.profiler is not None else None
        memory = (*recording.held, *temporary_memory(results.events() if results is not None else ()))
        return OperatorWindow(
            frame.first_step, frame.end_step, tuple(operators), *frame[2:], trace, modules, memory
        )  # fmt: skip

    def free(self, recording: _Recording) -> None:  # noqa: D102
        recording.profile.profiler = None

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
