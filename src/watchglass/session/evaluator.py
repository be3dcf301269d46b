"""The evaluator of a training run that is watched from its script."""

from __future__ import annotations

import logging
import os
from dataclasses import replace

from watchglass.config import EvaluatorConfig, absolute, environment
from watchglass.supervise import Supervision

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
            self._evaluator = Supervision(config, environment.for_evaluator(os.environ), _warn)

    def look(self) -> None:
        """Replace an evaluator that has died. Called regularly on the recorder's thread."""
        if self._evaluator is not None:
            self._evaluator.look()

    def finish(self) -> None:
        """Close the lifeline and wait a moment for the last findings; the evaluator ends by itself."""
        if self._evaluator is not None:
            self._evaluator.wait(self._config.timing.last_findings_s)


def _warn(sentence: str) -> None:
    _log.warning("watchglass: %s", sentence)
