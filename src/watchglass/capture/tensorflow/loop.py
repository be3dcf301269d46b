"""TensorFlow for the table of frameworks: loops of ``tf.GradientTape``."""

from __future__ import annotations

import weakref
from typing import Any

import tensorflow as tf

from watchglass.capture.loops import Loop
from watchglass.capture.modules import modules_of
from watchglass.capture.port import Port
from watchglass.capture.profiling.windows import WindowProfiler
from watchglass.capture.tensorflow.data_waits import DatasetWaits
from watchglass.capture.tensorflow.eager_tapes import EagerTapes
from watchglass.capture.tensorflow.function_calls import FunctionCalls
from watchglass.capture.tensorflow.hooks import TensorFlowHooks
from watchglass.capture.tensorflow.profiler import TensorFlowProfiler
from watchglass.capture.tensorflow.tape_steps import TapeSteps

_watched: weakref.WeakKeyDictionary[Port, tuple[TapeSteps, TensorFlowHooks]] = weakref.WeakKeyDictionary()


class TensorFlowLoop(Loop):
    """Any loop that takes gradients by a tape, in compiled functions or not."""

    name = "tensorflow"

    def is_loop(self, value: object) -> bool:
        """Whether this is a module, or a model of Keras whose weights are variables of TensorFlow."""
        if isinstance(value, tf.Module):
            return True
        members = modules_of(value, over="tensorflow")
        return members is not None and any(isinstance(each, tf.Variable) for each, _ in members.parameters(value))

    def attach(self, port: Port, watched: Any = None) -> None:
        """Watch all loops of the process; names of a module that is given are found by it."""
        if port not in _watched:
            steps = TapeSteps(port)
            _watched[port] = steps, TensorFlowHooks(steps, FunctionCalls(steps), EagerTapes(steps))
            if port.phases is not None:
                DatasetWaits(port, port.phases)
            port.detach_with(lambda: _watched.pop(port, None))
        steps, hooks = _watched[port]
        hooks.keras()
        if watched is not None:
            steps.models.offer(watched)

    def profiler(self, port: Port) -> WindowProfiler:
        """``tf.profiler.experimental``."""
        return TensorFlowProfiler(port)
