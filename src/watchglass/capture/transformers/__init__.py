"""Hugging Face ``Trainer``, which advises the loop of PyTorch; the only package that imports transformers."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

from transformers.trainer import Trainer
from transformers.trainer_callback import TrainerCallback

from watchglass.capture.advice import record_logged, when_made, wrap
from watchglass.capture.loops import Loop, attach, loop
from watchglass.capture.port import Port
from watchglass.records import Mode


class TrainerLoop(Loop):
    """Every ``Trainer``, also of a class that is derived from it, as those of TRL."""

    name = "transformers"

    def is_loop(self, value: object) -> bool:
        """Whether this is a trainer."""
        return isinstance(value, Trainer)

    def attach(self, port: Port, watched: Trainer | None = None) -> None:
        """Listen to a trainer, or to each that is made."""
        if watched is not None:
            _listen(port, watched)
            return
        when_made(port, Trainer, functools.partial(_listen, port))
        wrap(
            port, Trainer, "predict",
            lambda trainer: _evaluate_as(port, Mode.PREDICT), lambda trainer, arguments: _evaluate_as(port, Mode.EVAL),
        )  # fmt: skip

    def callback(
        self, open_port: Callable[[], Port], close_port: Callable[[Port, str | None], None], **options: Any
    ) -> TrainerCallback:
        """A callback for ``Trainer(callbacks=[...])`` that watches each call of ``train``."""
        return WatchingCallback(open_port, close_port, **options)


class TrainListener(TrainerCallback):
    """Reports to a port what a trainer knows."""

    def __init__(self, port: Port) -> None:
        guarded = port.guarded
        self._port = port
        self._begun, self._ended, self._logged = guarded(self._begin), guarded(self._end), guarded(self._log)
        self._stops: Callable[[], bool | None] = guarded(self._ends)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The state has the number of planned updates, and of those that a checkpoint has."""
        self._begun(state)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """An update, and all that the trainer does with it, is over."""
        if self._port.changes.pending and self._stops():
            control.should_training_stop = True

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """The trainer logs metrics."""
        self._logged(logs or {})

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The loop is over."""
        self._ended()

    def _begin(self, state: Any) -> None:
        advice = self._port.advice
        advice.planned_steps, advice.source = lambda: int(state.max_steps), "state.max_steps of the Trainer"
        advice.stops = True
        self._port.resumption.settle(int(state.global_step), "trainer")

    def _end(self) -> None:
        self._port.advice.stops = False

    def _ends(self) -> bool:
        return self._port.ends_before(self._port.clock.next_train_step)

    def _log(self, logs: dict[str, Any]) -> None:
        record_logged(self._port, logs)


class WatchingCallback(TrainerCallback):
    """Watches each call of ``train`` of the trainer that has it.

    Args:
        open_port: Makes the port of a run as training begins.
        close_port: Ends the run.
    """

    def __init__(self, open_port: Callable[[], Port], close_port: Callable[[Port, str | None], None]) -> None:
        self._open, self._close = open_port, close_port
        self._port: Port | None = None
        self._reports: TrainListener | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """Watch the model from now on."""
        if self._port is not None:
            self._close(self._port, "failed")
        self._port = port = self._open()
        attach(port, loop("torch"), model)
        self._reports = TrainListener(port)
        self._reports.on_train_begin(args, state, control)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """An update is over."""
        if self._reports is not None:
            self._reports.on_step_end(args, state, control)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """The trainer logs metrics."""
        if self._reports is not None:
            self._reports.on_log(args, state, control, logs)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The run ends with the training."""
        port, self._port, self._reports = self._port, None, None
        if port is not None:
            self._close(port, None)


def _listen(port: Port, trainer: Trainer) -> None:
    callbacks = trainer.callback_handler.callbacks
    if any(isinstance(each, (TrainListener, WatchingCallback)) for each in callbacks):
        return
    reports, reference = TrainListener(port), weakref.ref(trainer)
    trainer.add_callback(reports)

    def leave() -> None:
        living = reference()
        if living is not None:
            living.remove_callback(reports)

    port.detach_with(leave)


def _evaluate_as(port: Port, mode: Mode) -> None:
    port.settle()
    port.clock.evaluates_as = mode
