"""The TRAIN steps of a training run in TensorFlow: when one is open, and what is recorded as it ends."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from typing import Any

import tensorflow as tf

from watchglass.capture.arrays import DeferredNumbers
from watchglass.capture.compiled.delivery import StepDelivery
from watchglass.capture.compiled.steps import CompiledSteps
from watchglass.capture.model_numbers import FrameworkNumbers
from watchglass.capture.port import Port
from watchglass.capture.tensorflow.arrays import TensorFlowArrays
from watchglass.capture.tensorflow.models import TrainedModel, TrainedModels
from watchglass.capture.tensorflow.optimizers import rate_of, updates_before
from watchglass.capture.tensorflow.profiler import TensorFlowProfiler
from watchglass.capture.tensorflow.step_values import OpenTapeStep, TapeStepValues
from watchglass.capture.tensorflow.tracing import GraphTracing
from watchglass.record import OpenStep
from watchglass.records import Mode

#: A learning rate is read again after this number of steps on which nothing is due.
_RATE_EVERY = 16


class TapeSteps:
    """The steps of all loops of a process. For the training thread, and replicas while they are traced.

    Calls of compiled functions and eager tapes open and end them: function_calls.py and eager_tapes.py.

    Args:
        port: Gets the steps.

    Attributes:
        open: The TRAIN step that is open.
        tapes: How many eager tapes record.
        runs: Whether a compiled function runs.
        forward: Whether the latest forward was under no tape.
        keras: Called where a process may have imported Keras since.
    """

    def __init__(self, port: Port) -> None:
        self.port, self.models = port, TrainedModels(FrameworkNumbers(port.model_numbers))
        self.recorded = CompiledSteps(port, TensorFlowProfiler(port))
        self.tracing = GraphTracing(self.models, port.plan)
        self.values = TapeStepValues(port, self.tracing, StepDelivery(port, "tensorflow", self.recorded))
        self.open: OpenTapeStep | None = None
        self.tapes, self.runs, self.forward = 0, False, False
        self.keras: Callable[[], None] = lambda: None
        self._arrays, self._frame = TensorFlowArrays(), ExitStack()
        self._rates: dict[int, tuple[int, float | None]] = {}
        port.on_settle.append(self.leave)
        port.detach_with(self._release)

    def _release(self) -> None:
        self._frame.close()
        self.tracing.release()

    def is_off(self) -> bool:
        """Whether calls pass through: nothing is watched, we run ourselves, or a loop around TensorFlow drives."""
        guard = self.port.guard
        return not guard.active or guard.is_busy

    def counts(self) -> bool:
        """Whether what is called now is of the script, traced or not."""
        # A compiled function that runs may be traced again for other shapes: that is no call of the script.
        return (self.tracing.tracing or not self.runs) and self.tracing.counts(self.port.guard.thread)

    def counts_eager(self) -> bool:
        """Whether what is called now is of the script, and not traced."""
        return not self.tracing.tracing and threading.get_ident() == self.port.guard.thread and tf.executing_eagerly()

    def begin(self, models: Iterable[TrainedModel], begun: OpenStep | None = None) -> None:
        """A TRAIN step begins, or what may be one, or the one that is open trains further models.

        Args:
            models: Models that it trains, as far as they are known.
            begun: The step, if it has begun.
        """
        models = list(models)
        opened = self.open
        if opened is None:
            if models and self.port.resumption.open:
                optimizer = next((model.optimizer for model in models if model.optimizer is not None), None)
                if optimizer is not None:
                    self.port.resumption.settle(updates_before(optimizer), "iterations of the optimizer")
            first = min((model.number for model in models), default=None)
            opened = self.open = OpenTapeStep(begun or self.recorded.begin(Mode.TRAIN, model=first))
            if opened.step is not None:
                self.tracing.look_at_plan()
                opened.doings = self._frame.enter_context(self.tracing.eager())
        for model in models:
            self.values.describe(model)
        self.read_before(opened, models)

    def read_before(self, opened: OpenTapeStep, models: Iterable[TrainedModel]) -> None:
        """Keep what models are before their updates."""
        for model in models:
            if model.optimizer is not None and model.number not in opened.rates:
                opened.rates[model.number] = self.rate(model, opened.step is not None)
        if opened.step is None:
            return
        for model in models:
            for variable, place in model.parameters.values():
                if place.name not in opened.before:
                    opened.before[place.name] = variable, self._arrays.values(variable)

    def leave(self) -> None:
        """The step that is open is over, or was none."""
        if self.open is None:
            return
        if self.open.models:
            self.end()
        else:
            self.drop()

    def drop(self) -> None:
        """What is open was no step."""
        self.open = None
        self._frame.close()
        self.recorded.fail()

    def end(self) -> None:
        """The TRAIN step that is open is over."""
        opened, self.open = self.open, None
        if opened is None:
            return
        step = opened.step
        if step is not None and opened.doings is not None:
            opened.values.append(self.tracing.close(opened.doings, None))
        self._frame.close()
        if step is not None:
            self.values.deliver(opened, step)
        for model in opened.models.values():
            self.values.describe(model)
        first = min(opened.models, default=0)
        self.record(first, opened.losses, opened.rates.get(first))

    def record(self, first: int, losses: Mapping[int, list[Any]], rate: float | None) -> None:
        """A step is over that counts for a model; with the losses of all that it trains."""
        means = {number: mean_loss(found) for number, found in losses.items() if found}
        own = {"loss": means.pop(first)} if first in means else {}
        self.recorded.end(own, rate=rate, model=first, others=means)

    def rate(self, model: TrainedModel, due: bool) -> float | None:
        """The learning rate of a model, read at due steps and now and then."""
        since, rate = self._rates.get(model.number, (_RATE_EVERY, None))
        if due or since >= _RATE_EVERY:
            since, rate = 0, rate_of(model.optimizer)
        self._rates[model.number] = since + 1, rate
        return rate


def mean_loss(losses: list[Any]) -> Any:
    """A loss as one number; several, of micro-batches or rows, count by their mean."""
    if len(losses) == 1 and not len(getattr(losses[0], "shape", ())):
        return DeferredNumbers(functools.partial(float, losses[0]))
    with tf.init_scope():
        return tf.reduce_mean([tf.reduce_mean(tf.cast(each, tf.float32)) for each in losses])
