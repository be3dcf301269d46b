"""The processes beside a training run that is watched from its script: evaluator, sampler, export to TensorBoard."""

from __future__ import annotations

import logging
import multiprocessing
import os
from collections.abc import Callable
from dataclasses import replace

from watchglass.capture import Hook
from watchglass.config import (
    TIMING,
    EvaluatorConfig,
    ExporterConfig,
    SamplerConfig,
    SessionConfig,
    TensorBoardConfig,
    absolute,
    environment,
)
from watchglass.supervise import RestartedOnce, Supervision

_log = logging.getLogger("watchglass")


class WatchedEvaluator:
    """Starts the evaluator when the worker has joined, supervises it, and lets it finish at the end of the run."""

    def __init__(self, config: EvaluatorConfig) -> None:
        self._config = replace(config, run=absolute(config.run), concludes=True)
        self._evaluator: Supervision | None = None

    def start(self, attempt: int) -> None:
        """Called on the recorder's thread once the run exists; only rank 0 has an evaluator."""
        if environment.rank() == 0:
            config = replace(self._config, attempt=attempt)
            self._evaluator = Supervision(config, environment.for_companion(os.environ), _warn)

    def look(self) -> None:
        """Replace an evaluator that has died. Called regularly on the recorder's thread."""
        if self._evaluator is not None:
            self._evaluator.look()

    def finish(self) -> None:
        """Close the lifeline and wait a moment for the last findings; the evaluator then ends."""
        if self._evaluator is not None:
            self._evaluator.wait(self._config.timing.last_findings_s)


class WatchedCompanion:
    """Starts a sampler or an export when the worker has joined, and lets it do the rest of its work at the end.

    A child of multiprocessing starts none: its processes are among those of its parent.

    Args:
        configure: Returns its configuration in an attempt; None where another rank starts it.
        end_s: Longest wait for the rest of its work.
    """

    def __init__(self, configure: Callable[[int], SamplerConfig | ExporterConfig | None], end_s: float) -> None:
        self._configure, self._end_s = configure, end_s
        self._process: RestartedOnce | None = None

    def start(self, attempt: int) -> None:
        """Called on the recorder's thread once the run exists."""
        config = self._configure(attempt) if multiprocessing.parent_process() is None else None
        if config is not None:
            self._process = RestartedOnce(config, environment.for_companion(os.environ), _warn)

    def look(self) -> None:
        """Replace a process that has died. Called regularly on the recorder's thread."""
        if self._process is not None:
            self._process.look()

    def finish(self) -> None:
        """Wait a moment for the rest of its work."""
        if self._process is not None:
            self._process.finish(self._end_s)


def sampler_of(config: SessionConfig) -> WatchedCompanion:
    """The sampler of a session; one rank of each machine starts it."""
    run, interval_s = absolute(config.run), config.profiler.sample_interval_s
    return WatchedCompanion(
        lambda attempt: SamplerConfig.here(run, attempt, interval_s, of_script=True), TIMING.sampler_end_s
    )


def export_of(config: SessionConfig, settings: TensorBoardConfig) -> WatchedCompanion:
    """The process that writes for TensorBoard; only rank 0 has one."""
    found = ExporterConfig(absolute(config.run), settings)
    return WatchedCompanion(lambda attempt: found if environment.rank() == 0 else None, TIMING.export_end_s)


def accompany(hook: Hook, companion: WatchedEvaluator | WatchedCompanion) -> None:
    """Start a process beside the run of a hook with its first step; those given first end last."""
    hook.port.on_start.append(companion.start)
    hook.port.on_look.append(companion.look)
    hook.port.on_close.append(companion.finish)


def _warn(sentence: str) -> None:
    _log.warning("watchglass: %s", sentence)
