"""The evaluator and the sampler of a training run that is watched from its script."""

from __future__ import annotations

import logging
import multiprocessing
import os
from dataclasses import replace

from watchglass.config import TIMING, EvaluatorConfig, SamplerConfig, SessionConfig, absolute, environment
from watchglass.supervise import SamplerSupervision, Supervision

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


class WatchedSampler:
    """Starts the sampler when the worker has joined, and lets it write its last samples at the end of the run.

    A child of multiprocessing starts none: its processes are among those of its parent.
    """

    def __init__(self, config: SessionConfig) -> None:
        self._config = replace(config, run=absolute(config.run))
        self._sampler: SamplerSupervision | None = None

    def start(self, attempt: int) -> None:
        """Called on the recorder's thread once the run exists; one rank of each machine starts the sampler."""
        config = None
        if multiprocessing.parent_process() is None:
            config = SamplerConfig.here(
                self._config.run, attempt, self._config.profiler.sample_interval_s, of_script=True
            )
        if config is not None:
            self._sampler = SamplerSupervision(config, environment.for_companion(os.environ), _warn)

    def look(self) -> None:
        """Replace a sampler that has died. Called regularly on the recorder's thread."""
        if self._sampler is not None:
            self._sampler.look()

    def finish(self) -> None:
        """Wait a moment for the last samples."""
        if self._sampler is not None:
            self._sampler.finish(TIMING.sampler_end_s)


def _warn(sentence: str) -> None:
    _log.warning("watchglass: %s", sentence)
