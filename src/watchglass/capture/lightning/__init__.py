"""Lightning, which advises the loop of PyTorch; the only package that imports it, under either of its names."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, ClassVar

from watchglass.capture.advice import record_logged, when_made
from watchglass.capture.loops import Loop, attach, loop
from watchglass.capture.port import Port
from watchglass.records import Mode


class _PackageLoop(Loop):
    """Every ``Trainer`` of one of the two packages, which are copies of each other."""

    #: The package that has ``Trainer`` and ``Callback``.
    package: ClassVar[str]

    def is_loop(self, value: object) -> bool:
        """Whether this is a trainer."""
        return isinstance(value, sys.modules[f"{self.package}.trainer.trainer"].Trainer)

    def attach(self, port: Port, watched: Any = None) -> None:
        """Listen to a trainer, or to each that is made."""
        listen = functools.partial(_listen, port, callbacks_of(self.package))
        if watched is not None:
            listen(watched)
        else:
            when_made(port, sys.modules[f"{self.package}.trainer.trainer"].Trainer, listen)

    def callback(
        self, open_port: Callable[[], Port], close_port: Callable[[Port, str | None], None], **options: Any
    ) -> Any:
        """A callback for ``Trainer(callbacks=[...])`` that watches each call of ``fit``."""
        return callbacks_of(self.package)[1](open_port, close_port, **options)


class LightningLoop(_PackageLoop):
    """``lightning.pytorch``."""

    name, package = "lightning", "lightning.pytorch"


class PyTorchLightningLoop(_PackageLoop):
    """``pytorch_lightning``."""

    name, package = "pytorch_lightning", "pytorch_lightning"


class FitListener:
    """Reports to a port what a trainer knows; the methods are those of ``Callback`` of Lightning."""

    # Events of each batch that are not needed: Lightning skips what it cannot call, which takes a tenth of the time.
    on_train_batch_start = on_before_zero_grad = on_before_backward = on_after_backward = None
    on_before_optimizer_step = None

    def __init__(self, port: Port) -> None:
        guarded = port.guarded
        self._port, self._checked = port, ExitStack()
        self._begun, self._logged, self._turned = guarded(self._begin), guarded(self._log), guarded(self._turn)
        self._stops: Callable[[], bool | None] = guarded(self._ends)

    def on_sanity_check_start(self, trainer: Any, pl_module: Any) -> None:
        """Batches before the training that only try the code of the validation: nothing is recorded of them."""
        self._checked.enter_context(self._port.guard.suspended())

    def on_sanity_check_end(self, trainer: Any, pl_module: Any) -> None:
        """What follows counts."""
        self._checked.close()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """The trainer knows the number of planned updates, and of those that a checkpoint has."""
        self._checked.close()
        self._begun(trainer)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """A batch, maybe with an update, is over."""
        if (batch_idx + 1) % (trainer.log_every_n_steps or sys.maxsize) == 0:
            self._logged(trainer.logged_metrics)
        if self._port.changes.pending and self._stops():
            trainer.should_stop = True

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Means over the validation are known."""
        if not trainer.sanity_checking:
            self._logged(trainer.callback_metrics)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """The loop is over."""
        self._port.advice.stops = False

    def on_predict_start(self, trainer: Any, pl_module: Any) -> None:
        """Predictions begin."""
        self._turned(Mode.PREDICT)

    def on_predict_end(self, trainer: Any, pl_module: Any) -> None:
        """Predictions are over."""
        self._turned(Mode.EVAL)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """A script may go on after it: what follows is no sanity check, and no prediction."""
        self._checked.close()
        self._turned(Mode.EVAL)

    def _begin(self, trainer: Any) -> None:
        advice = self._port.advice
        advice.planned_steps = _planned(weakref.ref(trainer))
        advice.source = "estimated_stepping_batches of the Trainer"
        advice.stops = True
        if len(trainer.optimizers) == 1:  # of several, each counts
            self._port.resumption.settle(int(trainer.global_step), "trainer")

    def _ends(self) -> bool:
        clock = self._port.clock
        return clock.at_boundary and self._port.ends_before(clock.next_train_step)

    def _log(self, metrics: Any) -> None:
        record_logged(self._port, {name: float(value) for name, value in metrics.items() if _on_host(value)})

    def _turn(self, mode: Mode) -> None:
        self._port.settle()
        self._port.clock.evaluates_as = mode


@functools.cache
def callbacks_of(package: str) -> tuple[type[Any], type[Any]]:
    """Classes of callbacks for one of the packages: one that reports to a port, one that opens a run for each fit."""
    base: Any = sys.modules[f"{package}.callbacks.callback"].Callback

    class ListeningCallback(FitListener, base):  # type: ignore[misc]
        """ListeningCallback to a port."""

    class WatchingCallback(base):  # type: ignore[misc]
        """Watches each call of ``fit``."""

        def __init__(self, open_port: Callable[[], Port], close_port: Callable[[Port, str | None], None]) -> None:
            self._open, self._close = open_port, close_port
            self._port: Port | None = None
            self._reports: Any = None

        def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
            """A fit begins: watch its model, and report what the trainer knows."""
            if stage != "fit":
                return
            if self._port is not None:
                self._close(self._port, "failed")
            self._port = port = self._open()
            attach(port, loop("torch"), pl_module)
            self._reports = ListeningCallback(port)
            trainer.callbacks.append(self._reports)

        def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
            """The run ends with the fit."""
            port, self._port = self._port, None
            if port is not None:
                trainer.callbacks.remove(self._reports)
                self._close(port, None)

    return ListeningCallback, WatchingCallback


def _listen(port: Port, kinds: tuple[type[Any], type[Any]], trainer: Any) -> None:
    if any(isinstance(each, kinds) for each in trainer.callbacks):
        return
    reports, reference = kinds[0](port), weakref.ref(trainer)
    trainer.callbacks.append(reports)

    def leave() -> None:
        living = reference()
        if living is not None and reports in living.callbacks:
            living.callbacks.remove(reports)

    port.detach_with(leave)


def _planned(reference: weakref.ref[Any]) -> Callable[[], int | None]:
    def planned() -> int | None:
        trainer = reference()
        steps = None if trainer is None else trainer.estimated_stepping_batches
        return int(steps) if steps is not None and steps < sys.maxsize else None

    return planned


def _on_host(value: Any) -> bool:
    """Whether a number can be read without a wait for a device."""
    device = getattr(value, "device", None)
    return device is None or device.type == "cpu"
