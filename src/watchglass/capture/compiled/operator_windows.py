"""The profilers of TensorFlow and JAX in windows of training steps: the operators, and the trace."""

from __future__ import annotations

import shutil
import tempfile
from abc import abstractmethod
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from watchglass.capture.compiled.xplane import read_xspace
from watchglass.capture.guard import Guard
from watchglass.capture.port import Port
from watchglass.capture.profiling.kept_traces import KeptTraces
from watchglass.capture.profiling.windows import WindowProfiler
from watchglass.capture.wrappers_importlib_bootstrap import around
from watchglass.config import ProfiledRange, SessionConfig
from watchglass.records import OperatorWindow, WindowFrame

#: The largest profile that is read: house. A step of a large model has some hundred kilobytes.
_LARGEST_BYTES = 64 << 20


class FolderProfiler(WindowProfiler):
    """Sums of each operator, by a profiler that writes its profile into a folder; and the trace, where it is kept.

    Args:
        port: Gets the traces.
    """

    kind = "operators"
    of_process = True

    def __init__(self, port: Port) -> None:
        self._port, self._traces = port, KeptTraces(port, self.name)
        self._own = False  # whether we call it ourselves now

    @abstractmethod
    def begin(self, folder: str) -> None:
        """Start the profiler of the framework. It raises if another one runs in the process, as of the script."""

    @abstractmethod
    def end(self) -> None:
        """Stop it; it writes what it has recorded."""

    @abstractmethod
    def of_script(self) -> Iterable[tuple[Any, str]]:
        """What begins it for a script: owners and names of functions."""

    def windows(self, config: SessionConfig) -> tuple[ProfiledRange, ...]:  # noqa: D102
        return config.profiler.operator_windows

    def obstacle(self) -> str:  # noqa: D102
        return ""  # only its start shows that another one runs

    def start(self) -> Any:  # noqa: D102
        folder = tempfile.mkdtemp(prefix="watchglass-")
        self._own = True
        try:
            self.begin(folder)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        finally:
            self._own = False
        return folder

    def stop(self, recording: Any) -> None:  # noqa: D102
        self.end()

    def result(self, recording: Any, frame: WindowFrame, *, writes: bool) -> OperatorWindow:  # noqa: D102
        files = sorted(Path(recording).rglob("*.xplane.pb"))
        if not files:
            raise FileNotFoundError("the profiler has written no xplane.pb")
        size = files[0].stat().st_size
        if size > _LARGEST_BYTES:
            raise ValueError(f"its profile has {size:,} bytes, more than {_LARGEST_BYTES:,}; profile fewer steps")
        profile = read_xspace(files[0].read_bytes())
        trace = ""
        if self._port.config.profiler.keep_traces:
            trace = self._traces.keep(profile.write_trace, frame.first_step, writes=writes)
        return OperatorWindow(frame.first_step, frame.end_step, tuple(profile.operators()), *frame[2:], trace)

    def free(self, recording: Any) -> None:  # noqa: D102
        shutil.rmtree(recording, ignore_errors=True)

    def listen(self, guard: Guard, before: Callable[[Any, Any], None]) -> Callable[[], None]:  # noqa: D102
        begins, undo = guard.shielded(before), list[Callable[[], None]]()

        def begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
            if not self._own:
                begins(args, kwargs)
            return False

        for owner, name in self.of_script():
            original = getattr(owner, name)
            wrapped = around(original, begin, lambda args, kwargs, result: None)
            setattr(owner, name, wrapped)
            undo.append(_restoring(owner, name, original, wrapped))

        def leave() -> None:
            for each in reversed(undo):
                each()

        return leave


def _restoring(owner: Any, name: str, original: Any, wrapped: Any) -> Callable[[], None]:
    def restore() -> None:
        if getattr(owner, name) is wrapped:
            setattr(owner, name, original)

    return restore
