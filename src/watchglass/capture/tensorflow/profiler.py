"""TensorFlow's profiler in windows of training steps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from watchglass.capture.compiled.operator_windows import FolderProfiler


class TensorFlowProfiler(FolderProfiler):
    """``tf.profiler.experimental``: operations of graphs and eager ones."""

    name = "TensorFlow's profiler"

    def begin(self, folder: str) -> None:  # noqa: D102
        tf.profiler.experimental.start(folder)

    def end(self) -> None:  # noqa: D102
        tf.profiler.experimental.stop()

    def of_script(self) -> Iterable[tuple[Any, str]]:  # noqa: D102
        profiler = tf.profiler.experimental
        return (profiler, "start"), (profiler.Profile, "__enter__")
