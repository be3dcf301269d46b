"""The evaluator process of a training that is watched from its own script."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from watchglass.config import EvaluatorConfig, absolute, environment

#: How long the end of a training waits for the last findings to be printed.
_LAST_WORDS_S = 10.0


def start_evaluator(config: EvaluatorConfig, environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start the evaluator of a run, with a session of its own, so that Ctrl-C reaches the training only.

    Its standard input is a pipe that only the calling process holds: when that ends, in whatever way, the evaluator
    reads end of file, finishes what there is and ends.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "watchglass.evaluate"],
        env=dict(environ),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert process.stdin is not None
    config.send(process.stdin)
    return process


class WatchedEvaluator:
    """Starts the evaluator when the worker has joined, and lets it finish when the training ends."""

    def __init__(self, config: EvaluatorConfig) -> None:
        self._config = replace(config, run=absolute(config.run))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, attempt: int) -> None:
        """Called on the recorder's thread once the run exists; only rank 0 has an evaluator."""
        if environment.rank() == 0:
            config = replace(self._config, attempt=attempt)
            self._process = start_evaluator(config, environment.for_evaluator(os.environ))

    def finish(self) -> None:
        """Let go of the lifeline and give the evaluator a moment for its last words; it ends by itself."""
        process = self._process
        if process is None or process.stdin is None:
            return
        with suppress(OSError):
            process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_LAST_WORDS_S)
