"""What ``fit`` knows of the run: its epochs and planned steps, the metrics of each epoch, and how to end it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import keras

from watchglass.capture.advice import record_logged, wrap
from watchglass.capture.port import Port
from watchglass.records import facts

_SOURCE = "epochs and steps of fit"


class Fits:
    """Listens to each ``fit`` by the list of callbacks that Keras makes of the script's own.

    Args:
        port: Gets what is known.
        watched: Whether a model is watched.
        begins: Called with a model before the first batch of an epoch, after the callbacks of the script.
    """

    def __init__(self, port: Port, watched: Callable[[Any], bool], begins: Callable[[Any], None]) -> None:
        self._port, self._watched, self._begins = port, watched, begins
        self._first_epoch = True
        # The next training step when the epoch before began.
        self._epoch_began = 0
        #: Batches up to the end of the epoch; None if that is not known.
        self.batches_left: int | None = None
        for name, ended in (
            ("on_train_begin", self._fit_begins), ("on_epoch_begin", self._epoch_begins),
            ("on_epoch_end", self._epoch_ends), ("on_train_end", self._fit_ends),
        ):  # fmt: skip
            wrap(port, keras.callbacks.CallbackList, name, lambda callbacks: None, ended)

    def after_step(self, model: Any) -> None:
        """A training step is over: end the fit there if that was asked for."""
        port = self._port
        if self.batches_left is not None:
            self.batches_left -= model.steps_per_execution
        if port.advice.stops and self._stops():
            model.stop_training = True

    def _stops(self) -> bool:
        port = self._port
        if not (port.changes.pending and port.clock.at_boundary):
            return False
        return port.ends_before(port.clock.next_train_step)

    def batches_ahead(self, model: Any) -> int:
        """Batches that the next call takes, as far as that is known before it."""
        several: int = model.steps_per_execution
        return several if self.batches_left is None else max(1, min(several, self.batches_left))

    def _fit_begins(self, callbacks: Any, arguments: Mapping[Any, Any]) -> None:
        if self._watched(callbacks.model):
            self._first_epoch = True
            # Keras asks after a batch whether to stop: only an exception keeps the first one from being trained on.
            self._port.advice.stops = not self._stops()

    def _epoch_begins(self, callbacks: Any, arguments: Mapping[Any, Any]) -> None:
        model, port = callbacks.model, self._port
        if not self._watched(model):
            return
        self._begins(model)
        epoch, now = arguments.get(0, arguments.get("epoch", 0)), port.clock.next_train_step
        epochs, steps = callbacks.params.get("epochs"), callbacks.params.get("steps")
        known_late = steps is None and not self._first_epoch
        if epochs and (known_late or (steps and self._first_epoch)):
            planned = now + (epochs - epoch) * (steps or now - self._epoch_began)
            port.advice.planned_steps, port.advice.source = lambda: planned, _SOURCE
            port.records.current().add_fact(facts.PlannedSteps(planned, _SOURCE), "keras")
        self._first_epoch, self._epoch_began, self.batches_left = False, now, steps

    def _epoch_ends(self, callbacks: Any, arguments: Mapping[Any, Any]) -> None:
        if self._watched(callbacks.model):
            logs = arguments.get(1, arguments.get("logs")) or {}
            record_logged(self._port, {name: _number(value) for name, value in logs.items()})

    def _fit_ends(self, callbacks: Any, arguments: Mapping[Any, Any]) -> None:
        self._port.advice.stops, self.batches_left = False, None


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None  # a metric with several values
