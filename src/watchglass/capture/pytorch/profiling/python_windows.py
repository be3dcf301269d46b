"""Profilers of Python in windows of training steps: cProfile of the standard library, and pyinstrument.

Python has one profile function for each thread. If the script sets another one, it replaces ours: ours is then never
switched off, because that would switch off the script's. From version 3.12 on, cProfile uses ``sys.monitoring``, which
has one profiler for each process and calls it in all threads.
"""

from __future__ import annotations

import sys
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

from watchglass.capture.guard import Guard
from watchglass.capture.profiling.windows import WindowProfiler
from watchglass.capture.pytorch.public_calls import MONITORING_TOOLS, PYTHON_PROFILERS
from watchglass.config import ProfiledRange, SessionConfig
from watchglass.records import CallNode, FunctionTotals, PythonWindow, WindowFrame

#: ``sys.monitoring``, from Python 3.12 on.
_monitoring: Any = getattr(sys, "monitoring", None)
#: Profilers of ours that the script has replaced: as one is freed, it switches off the profiler that is on.
_replaced: list[Any] = []
#: Share of the time of a window from which a call is a node of the tree: house.
_SMALLEST_NODE = 0.002
#: Seconds between two looks of pyinstrument, its own default.
_LOOK_S = 0.001


class PythonProfiler(WindowProfiler):
    """A profiler of the functions of Python."""

    stops_in_child = True

    def windows(self, config: SessionConfig) -> tuple[ProfiledRange, ...]:  # noqa: D102
        return config.profiler.python_windows if config.profiler.python_profiler == self.kind else ()

    def obstacle(self) -> str:  # noqa: D102
        tool = _monitoring.get_tool(_monitoring.PROFILER_ID) if _monitoring is not None else None
        if sys.getprofile() is not None or tool is not None:
            return f"the script profiles itself, by {tool or type(sys.getprofile()).__name__}"
        return ""

    def listen(self, guard: Guard, before: Callable[[Any, Any], None]) -> Callable[[], None]:  # noqa: D102
        return PYTHON_PROFILERS.listen(guard, before=before)

    def result(self, recording: Any, frame: WindowFrame, *, writes: bool) -> PythonWindow:  # noqa: D102
        functions, tree = self.read(recording)
        order = sorted(range(len(functions)), key=lambda index: (-functions[index].self_s, functions[index].name))
        place = {index: position for position, index in enumerate(order)}
        ordered = tuple(functions[index] for index in order)
        nodes = tuple(CallNode(place[node.function], node.depth, node.total_s) for node in tree)
        return PythonWindow(self.kind, frame.first_step, frame.end_step, ordered, nodes, *frame[2:])

    @abstractmethod
    def read(self, recording: Any) -> tuple[list[FunctionTotals], list[CallNode]]:
        """The functions in any order, and the tree of calls with indices among them."""


class CProfile(PythonProfiler):
    """Every call of a function in the training thread, by ``cProfile``."""

    kind = "cprofile"
    name = "cProfile"
    of_process = _monitoring is not None

    def start(self) -> Any:  # noqa: D102
        from cProfile import Profile  # only when a window is due

        profiler = Profile()
        profiler.enable()
        if _monitoring is not None:
            try:
                _only_in_this_thread(profiler)
            except BaseException:
                profiler.disable()
                raise
        return profiler

    def listen(self, guard: Guard, before: Callable[[Any, Any], None]) -> Callable[[], None]:  # noqa: D102
        if _monitoring is None:
            return super().listen(guard, before)
        training = threading.get_ident()

        def sets(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if threading.get_ident() == training:  # a profile function of another thread does not concern us
                before(args, kwargs)

        def takes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if args[:1] == (_monitoring.PROFILER_ID,):
                before(args, kwargs)

        leave_functions = super().listen(guard, sets)
        leave_tools = MONITORING_TOOLS.listen(guard, before=takes)

        def leave() -> None:
            leave_tools()
            leave_functions()

        return leave

    def stop(self, recording: Any) -> None:  # noqa: D102
        if _is_on(recording):
            recording.disable()
        else:
            _replaced.append(recording)

    def read(self, recording: Any) -> tuple[list[FunctionTotals], list[CallNode]]:  # noqa: D102
        return [_totals(entry) for entry in recording.getstats()], []

    def free(self, recording: Any) -> None:  # noqa: D102
        if recording not in _replaced:
            recording.clear()


class Pyinstrument(PythonProfiler):
    """The stack of the training thread every millisecond, by ``pyinstrument``."""

    kind = "pyinstrument"
    name = "pyinstrument"

    def obstacle(self) -> str:  # noqa: D102
        try:
            import pyinstrument  # noqa: F401
        except ImportError:
            return "pyinstrument is not installed: pip install 'watchglass[pyinstrument]'"
        return super().obstacle()

    def start(self) -> Any:  # noqa: D102
        from pyinstrument import Profiler

        profiler = Profiler(interval=_LOOK_S, async_mode="disabled")
        profiler.start()
        return profiler

    def stop(self, recording: Any) -> None:  # noqa: D102
        recording.stop()

    def read(self, recording: Any) -> tuple[list[FunctionTotals], list[CallNode]]:  # noqa: D102
        session = recording.last_session
        root = session.root_frame() if session is not None else None
        return _of_tree(root) if root is not None else ([], [])

    def free(self, recording: Any) -> None:  # noqa: D102
        recording.reset()


def _is_on(profiler: Any) -> bool:
    """Whether a profiler is the one that is on, so that switching it off harms no other."""
    if _monitoring is not None:
        return _monitoring.get_tool(_monitoring.PROFILER_ID) in (CProfile.name, None)
    return sys.getprofile() in (profiler, None)


def _only_in_this_thread(profiler: Any) -> None:
    """Hide other threads from cProfile, which would take the calls of all threads for calls of one."""
    tool, this, ident = _monitoring.PROFILER_ID, threading.get_ident(), threading.get_ident

    def filtered(callback: Callable[..., object]) -> Callable[..., object]:
        return lambda *args: callback(*args) if ident() == this else None

    events = _monitoring.get_events(tool)
    _monitoring.set_events(tool, _monitoring.events.NO_EVENTS)
    for event in vars(_monitoring.events).values():
        callback = _monitoring.register_callback(tool, event, None) if event else None
        if callback is not None:
            _monitoring.register_callback(tool, event, filtered(callback))
    # It saw these calls begin, but not end.
    profiler.clear()
    _monitoring.set_events(tool, events)


def _totals(entry: Any) -> FunctionTotals:
    """The sums of one function, of ``_lsprof``."""
    code = entry.code
    own, whole = round(entry.inlinetime, 9), round(entry.totaltime, 9)
    if isinstance(code, str):  # "<built-in method torch.ones>"
        return FunctionTotals(code, "", 0, entry.callcount, own, whole)
    name = getattr(code, "co_qualname", code.co_name)  # from Python 3.11 on with the class
    return FunctionTotals(name, code.co_filename, code.co_firstlineno, entry.callcount, own, whole)


def _of_tree(root: Any) -> tuple[list[FunctionTotals], list[CallNode]]:
    """The functions of a tree of frames, and its nodes."""
    sums: dict[tuple[str, str, int], list[float]] = {}
    places: dict[tuple[str, str, int], int] = {}
    nodes: list[CallNode] = []
    least = _SMALLEST_NODE * root.time
    for frame, depth, above in _walk(root):
        key = _key(frame)
        place = places.setdefault(key, len(places))
        own, whole = sums.setdefault(key, [0.0, 0.0])
        own += frame.time - sum(child.time for child in _called(frame))
        # Of a function that calls itself, the outermost call has the time of the inner ones.
        sums[key] = [own, whole if key in above else whole + frame.time]
        if frame.time >= least:
            nodes.append(CallNode(place, depth, round(frame.time, 9)))
    functions = [
        FunctionTotals(name, file, line, 0, round(max(own, 0.0), 9), round(whole, 9))
        for (name, file, line), (own, whole) in sums.items()
    ]
    return functions, nodes


def _walk(root: Any) -> Iterator[tuple[Any, int, frozenset[tuple[str, str, int]]]]:
    """Each frame, its depth, and the functions that called it; a caller comes before what it calls."""
    left: list[tuple[Any, int, frozenset[tuple[str, str, int]]]] = [(root, 0, frozenset())]
    while left:
        frame, depth, above = left.pop()
        yield frame, depth, above
        inner = above | {_key(frame)}
        left += [(child, depth + 1, inner) for child in reversed(_called(frame))]


def _called(frame: Any) -> list[Any]:
    """The frames that it calls; pyinstrument also has its own time as one."""
    return [child for child in frame.children if child.function != "[self]"]


def _key(frame: Any) -> tuple[str, str, int]:
    file = str(frame.file_path or "")
    return str(frame.function), "" if file == "<built-in>" else file, int(frame.line_no or 0)
