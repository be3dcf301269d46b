"""The evaluator of a training run that is watched from its script."""

from __future__ import annotations

import logging
import os
from dataclasses import replace

from watchglass.config import EvaluatorConfig, absolute, environment
from watchglass.supervise import Supervision

_log = logging.getLogger("watchglass")

#: How long the end of a training run waits for the last findings to be printed.
_LAST_WORDS_S = 10.0


class WatchedEvaluator:
    """Starts the evaluator when the worker has joined, looks after it, and lets it finish when the training ends."""

    def __init__(self, config: EvaluatorConfig) -> None:
        self._config = replace(config, run=absolute(config.run), concludes=True)
        self._evaluator: Supervision | None = None

    def start(self, attempt: int) -> None:
        """Called on the recorder's thread once the run exists; only rank 0 has an evaluator."""
        if environment.rank() == 0:
            config = replace(self._config, attempt=attempt)
            self._evaluator = Supervision(config, environment.for_evaluator(os.environ), _warn)

    def look(self) -> None:
        """Replace an evaluator that has died. Called on the recorder's thread, again and again."""
        if self._evaluator is not None:
            self._evaluator.look()

    def finish(self) -> None:
        """Let go of the lifeline and give the evaluator a moment for its last words; it ends by itself."""
        if self._evaluator is not None:
            self._evaluator.wait(_LAST_WORDS_S)


def _warn(sentence: str) -> None:
    _log.warning("watchglass: %s", sentence)
