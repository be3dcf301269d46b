"""The hook of a script: a training run is watched, and values are saved, through it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from watchglass.capture.limits import DEFAULT_LIMITS, CaptureLimits
from watchglass.capture.port import Port
from watchglass.capture.process.destination import check_destination
from watchglass.capture.process.exit_and_fork import close_at_exit
from watchglass.capture.process.hang_stacks import HangStacks
from watchglass.capture.process.process_failure import failure_from
from watchglass.config import SessionConfig
from watchglass.errors import InvalidValueError
from watchglass.record import OpenStep
from watchglass.records import Failure, Mode, count
from watchglass.store import Store, open_store


class Hook:
    """Captures one training process into a run.

    Most scripts need only ``watchglass run`` or :func:`watchglass.watch`; a hook gives full control, also over a
    loop that no adapter knows::

        hook = watchglass.Hook(run="runs/mine")
        for batch in data:
            with hook.step("train"):
                ...
                hook.save_scalar("loss", loss)
                hook.save_tensor("w", w)
        hook.close()

    Nothing is written, and no thread is started, before the first training step. The methods are for one thread, the
    training's; except for ``close``, a call from another thread is ignored.

    Args:
        run: Where the run is written, a folder or ``s3://bucket/path``: a new one, or that of a running job.
        config: The whole configuration at once, instead of the keyword arguments.
        limits: Limits on time, memory and steps.
        open_store: Opens the store of a location.
        **settings: Fields of :class:`~watchglass.config.SessionConfig`: ``collections``, ``save_interval``,
            ``overhead_budget`` and so on.

    Raises:
        InvalidValueError: A setting outside its limits.
        NotARunError: ``run`` exists and is not a run.
        RunExistsError: A training process of another launch writes this run now.
    """

    def __init__(
        self,
        run: str | os.PathLike[str] = "",
        *,
        config: SessionConfig | None = None,
        limits: CaptureLimits = DEFAULT_LIMITS,
        open_store: Callable[[str], Store] = open_store,
        **settings: Any,
    ) -> None:
        config = config or SessionConfig(run=os.fspath(run)).with_settings(settings)
        check_destination(config)
        #: What adapters report to.
        self.port = Port(config, limits, open_store)
        if config.records_phases:
            HangStacks(self.port, after_s=limits.stacks_after_s)
        close_at_exit(self.port)

    def step(self, mode: Mode | str = Mode.TRAIN) -> AbstractContextManager[OpenStep]:
        """One step of a loop that no adapter knows.

        Args:
            mode: ``"train"``, ``"eval"`` or ``"predict"``.

        Raises:
            InvalidValueError: Another mode.
            TrainingStopped: A stop was requested, and a TRAIN step would begin.
        """
        return self._step(Mode.of_step(mode))

    def resume(self, step: int) -> None:
        """This training run continues from a checkpoint: its TRAIN steps count from ``step``.

        Not needed where the optimizer counts (Adam and its like), nor for XGBoost. Call it before the first update.

        Args:
            step: How many updates were made before the checkpoint was written: the number of the step to come.

        Raises:
            InvalidValueError: It is not a number of updates, or the first step of this process is over.
        """
        if type(step) is not int or not 0 <= step < 1 << 53:
            raise InvalidValueError(f"step must be a number of updates, 0 or more, but got {step!r}")
        port = self.port
        if not port.guard.active or not port.is_owner:
            return
        if not port.resumption.open:
            raise InvalidValueError(
                f"resume must be called before the first update but was called at step {port.clock.next_train_step}"
            )
        port.guard.call(port.resumption.settle, step, "given")

    def save_scalar(self, name: str, value: float, collection: str | None = None) -> None:
        """Record one number at the current step.

        Args:
            name: Its name in the run, ``"reward"``.
            value: A number, or a tensor of one element.
            collection: Name of a collection to file it under; ``metrics`` when not given.
        """
        self.port.guard.call(self.port.save_scalar, name, value, collection)

    def save_tensor(self, name: str, value: Any, collection: str | None = None) -> None:
        """Record a tensor's statistics at the current step, and the tensor itself where a collection asks for it.

        Args:
            name: Its name in the run.
            value: Anything NumPy can read; a PyTorch tensor may live on any device.
            collection: Name of a collection to file it under. Under a built-in one, such as ``"gradients"``,
                the tensor gets its role, and rules evaluate it.
        """
        self.port.guard.call(self.port.save_tensor, name, value, collection)

    @property
    def started(self) -> bool:
        """Whether a training step has begun in this process, so that it is a worker of the run."""
        return self.port.started

    @property
    def active(self) -> bool:
        """Whether the training is watched: not after a fault, a stop or :meth:`close`."""
        return self.port.guard.active

    def flush(self) -> None:
        """Write the queue now instead of at the next interval, so that readers see it."""
        self.port.flush()

    def close(self, status: str | None = None, failure: Failure | None = None) -> None:
        """End the recording: write everything and detach. Safe to call twice.

        Args:
            status: ``finished``, ``failed`` or ``stopped``; ``finished`` when not given, unless a stop was raised.
            failure: The reason for a failure, where it is known.
        """
        self.port.close(status, failure)

    def __repr__(self) -> str:
        port = self.port
        state = "watching" if self.active else "off after a fault" if port.guard.broken else "closed"
        return f"Hook(run={port.config.run!r}, {state}, {count(port.clock.next_train_step, 'training step')})"

    def __enter__(self) -> Hook:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        failure = failure_from(error, trace)
        self.close("failed" if failure is not None else None, failure)

    @contextmanager
    def _step(self, mode: Mode) -> Iterator[OpenStep]:
        # The loop gets a step even if nothing is recorded, so that its code is the same.
        guard = self.port.guard
        step = guard.call(self.port.begin, mode)
        try:
            yield step or OpenStep(-1, mode, -1, -1, 0)
        finally:
            if step is not None:
                guard.call(self.port.end, step)
