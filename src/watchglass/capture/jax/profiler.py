"""JAX's profiler in windows of training steps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax

from watchglass.capture.compiled.operator_windows import FolderProfiler


class JaxProfiler(FolderProfiler):
    """``jax.profiler``: operations of XLA, without the functions of Python, which it would slow down."""

    name = "JAX's profiler"

    def begin(self, folder: str) -> None:  # noqa: D102
        options: Any = getattr(jax.profiler, "ProfileOptions", None)
        if options is None:  # before JAX 0.6
            jax.profiler.start_trace(folder)
            return
        chosen = options()
        chosen.python_tracer_level = 0
        jax.profiler.start_trace(folder, profiler_options=chosen)

    def end(self) -> None:  # noqa: D102
        jax.profiler.stop_trace()

    def of_script(self) -> Iterable[tuple[Any, str]]:  # noqa: D102
        return (jax.profiler, "start_trace"), (jax.profiler, "trace")
