"""When ``fit``, ``evaluate`` and ``predict`` take their batches: between the callbacks around the calls of steps."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import keras

from watchglass.capture.advice import wrap
from watchglass.capture.compiled.steps import CompiledSteps
from watchglass.capture.port import Port

#: What begins before the first batch, and what each batch begins with; and what ends after the last one.
_BEFORE = ("on_epoch_begin", "on_test_begin", "on_predict_begin")
_AFTER = ("on_epoch_end", "on_test_end", "on_predict_end")


class BatchWaits:
    """Marks that Keras waits for data from the callbacks after a batch up to those before the next one.

    On TensorFlow, Keras reads a data set inside its compiled functions, so waiting and computing cannot be separated.

    Args:
        port: Undoes it.
        steps: Get the marks.
    """

    def __init__(self, port: Port, steps: CompiledSteps) -> None:
        self._steps, self._thread = steps, threading.get_ident()
        if not port.config.records_phases:
            return
        kind = keras.callbacks.CallbackList
        for mode in ("train", "test", "predict"):
            wrap(port, kind, f"on_{mode}_batch_begin", self._ends, _nothing)
            wrap(port, kind, f"on_{mode}_batch_end", _ignored, self._begins)
        for name in _BEFORE:
            wrap(port, kind, name, self._ends, self._begins)
        for name in _AFTER:
            wrap(port, kind, name, self._ends, _nothing)

    def _begins(self, callbacks: Any, arguments: Mapping[Any, Any]) -> None:
        if threading.get_ident() == self._thread:
            self._steps.waits()

    def _ends(self, callbacks: Any) -> None:
        if threading.get_ident() == self._thread:
            self._steps.goes_on()


def _ignored(callbacks: Any) -> None: ...


def _nothing(callbacks: Any, arguments: Mapping[Any, Any]) -> None: ...
