"""Keeps a process beside a training run going until its end, if it can be missed: a sampler, an export."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from watchglass.config import ExporterConfig, SamplerConfig
from watchglass.errors import LaunchError
from watchglass.supervise.companion import CompanionProcess
from watchglass.supervise.supervision import how_ended


class RestartedOnce:
    """A sampler or an export, started again once if it dies. For one thread. Raises nothing.

    Args:
        config: The configuration of the process.
        environ: The environment of the process.
        report: Takes a sentence for the user.
        start: Starts a process.
    """

    def __init__(
        self,
        config: SamplerConfig | ExporterConfig,
        environ: Mapping[str, str],
        report: Callable[[str], None],
        *,
        start: Callable[[Any, Mapping[str, str]], CompanionProcess] = CompanionProcess,
    ) -> None:
        self._config: SamplerConfig | ExporterConfig = config
        self._environ, self._report, self._start_process = dict(environ), report, start
        self._process: CompanionProcess | None = None
        self._start(config)

    def look(self) -> None:
        """Replace a process that has died. Returns at once; called every second."""
        code = self._process.poll() if self._process is not None else None
        if self._process is None or code is None:
            return
        self._process.let_go()
        self._process = None
        if code == 0:  # it has nothing to do, as where another sampler of this machine writes the stream
            return
        how = how_ended(code)
        if self._config.replaces:
            self._report(f"{self._config.title} {how}, for the second time; this run has no more {self._config.gives}")
            return
        self._config = replace(self._config, replaces=how)
        self._start(self._config)

    def finish(self, timeout_s: float) -> None:
        """Let the process do the rest of its work and end; one that takes longer is ended."""
        if self._process is not None:
            self._process.let_go()
            if self._process.wait(timeout_s) is None:
                self._process.end()
                if self._config.unfinished:
                    self._report(self._config.unfinished)
            self._process = None

    def _start(self, config: SamplerConfig | ExporterConfig) -> None:
        try:
            self._process = self._start_process(config, self._environ)
        except LaunchError as error:
            self._report(f"{error}; this run has no {config.gives}")
