"""When ``fit``, ``evaluate`` and ``predict`` take their batches: between the callbacks around the calls of steps."""

from __future__ import annotations

import threading

import keras

from watchglass.capture.advice import replace
from watchglass.capture.compiled.steps import CompiledSteps
from watchglass.capture.port import Port
from watchglass.capture.wrappers_importlib_bootstrap import marking

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
        kind, modes = keras.callbacks.CallbackList, ("train", "test", "predict")
        ends, begins = map(port.guard.shielded, (self._ends, self._begins))
        for name in (*_AFTER, *(f"on_{mode}_batch_begin" for mode in modes)):
            replace(port, kind, name, marking(vars(kind)[name], ends, _nothing))
        for name in _BEFORE:
            replace(port, kind, name, marking(vars(kind)[name], ends, begins))
        for name in (f"on_{mode}_batch_end" for mode in modes):
            replace(port, kind, name, marking(vars(kind)[name], _nothing, begins))

    def _begins(self) -> None:
        if threading.get_ident() == self._thread:
            self._steps.waits()

    def _ends(self) -> None:
        if threading.get_ident() == self._thread:
            self._steps.goes_on()


def _nothing() -> None: ...
