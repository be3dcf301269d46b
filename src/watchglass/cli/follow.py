"""``watchglass follow``: evaluate a run, or all runs below a prefix, while they are written, on any machine."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from watchglass import evaluate
from watchglass.cli import evaluator_options, shared_options
from watchglass.cli.declaring import argument, option
from watchglass.cli.failure import COULD_NOT, print_note
from watchglass.config import EvaluatorConfig
from watchglass.errors import InvalidValueError

#: Exit status after Ctrl-C or SIGTERM, as of a process that the signal ended.
_SIGNALLED = 128
_LAST_PORT = 65_535

_RunOrPrefix = Annotated[
    str, argument("RUN", "Location of a run, now or later, or a folder or prefix of runs: s3://BUCKET/runs.")
]
_Wait = Annotated[float, option("--wait S", "Wait at most S seconds for the run and its first step.")]
_Timeout = Annotated[float | None, option("--timeout S", "Stop following after S seconds. [default: no limit]")]
_UntilIdle = Annotated[
    float | None, option("--until-idle S", "Stop following a prefix when no run was active for S seconds.")
]
_LostAfter = Annotated[
    float, option("--lost-after S", "A worker on another machine is lost after S seconds of silence.")
]
_MetricsPort = Annotated[
    int | None, option("--metrics-port PORT", "Port for Prometheus metrics; 0 selects a free port.")
]
_MetricsHost = Annotated[str | None, option("--metrics-host ADDRESS", "Address for metrics. [default: 127.0.0.1]")]


def follow(
    context: typer.Context,
    run: _RunOrPrefix,
    rules: evaluator_options.Rules = None,
    calibration: evaluator_options.Calibration = "default",
    stop_on: evaluator_options.StopOn = None,
    action: evaluator_options.Actions = None,
    config_file: shared_options.ActionsFile = None,
    fail_on: shared_options.FailOn = "warning",
    wait: _Wait = 600.0,
    timeout: _Timeout = None,
    until_idle: _UntilIdle = None,
    lost_after: _LostAfter = 600.0,
    causes: evaluator_options.Causes = None,
    rule_timeout: evaluator_options.RuleTimeout = 30.0,
    price_per_hour: shared_options.PricePerHour = None,
    metrics_port: _MetricsPort = None,
    metrics_host: _MetricsHost = None,
    engine: shared_options.Engine = "local",
    ray_address: shared_options.RayAddress = None,
    quiet: shared_options.Quiet = False,
    verbose: shared_options.Verbose = False,
) -> int:
    """Evaluate rules on a run, or on all runs below a prefix, while they are written.

    For runs started with 'watchglass run --evaluator none', on any machine that can read them. Findings are printed on
    stderr and written into the run; the verdict is printed on stdout at the end of the run. --stop-on stops the run
    through its store. The exit status is that of check. Ctrl-C stops following; the run continues.
    """
    shared_options.check_choice("--fail-on", fail_on, ("warning", "error", "never"))
    shared_options.check_engine(engine, ray_address)
    for name, seconds in (("--wait", wait), ("--timeout", timeout), ("--until-idle", until_idle)):
        _check_seconds(name, seconds, 0)
    _check_seconds("--lost-after", lost_after, 1)

    config = evaluator_options.evaluator_config(
        run=run, rules=rules, calibration=calibration, stop_on=stop_on, actions=action,
        config_file=config_file, causes=causes, rule_timeout_s=rule_timeout, lost_after_s=lost_after,
        price_per_hour=price_per_hour, quiet=quiet, acts=True, timing=context.obj.evaluator,
    )  # fmt: skip
    snapshots = evaluate.Snapshots()
    with _interruptible() as interruption, _metrics(snapshots, metrics_port, metrics_host):
        following = _Following(
            config, fail_on, wait, timeout, until_idle, interruption, snapshots, engine == "ray", ray_address, verbose
        )
        with evaluate.may_restart():
            status = following.follow()
    return _SIGNALLED + interruption.number if interruption.number else status


@dataclass
class _Following:
    """One call of ``follow``, with its options."""

    config: EvaluatorConfig
    fail_on: str
    wait_s: float
    timeout_s: float | None
    until_idle_s: float | None
    interruption: _Interruption
    snapshots: evaluate.Snapshots
    on_ray: bool
    ray_address: str | None
    verbose: bool

    def follow(self) -> int:
        """Waits for a run or a prefix, and follows it to its end; returns the exit status."""
        from watchglass.store import open_store, read_manifest

        with closing(open_store(self.config.run)) as store:  # a file can never become a run: do not wait for it
            if Path(store.location).is_file():
                read_manifest(store)  # raises: it is not a run
        self._note(f"waiting for {self.config.run}")
        begun_s = time.monotonic()
        wait_s = self.wait_s if self.timeout_s is None else min(self.wait_s, self.timeout_s)
        kind = evaluate.what_is_at(self.config.run, self.interruption.pause, wait_s=wait_s, report=self._note)
        left_s = None if self.timeout_s is None else max(0.0, self.timeout_s - (time.monotonic() - begun_s))
        if kind == "run":
            return self._run(left_s)
        return self._runs(left_s) if kind == "prefix" else COULD_NOT

    def _run(self, timeout_s: float | None) -> int:
        from watchglass.cli.follow_output import conclude

        config = self.config
        if self.on_ray:
            raise InvalidValueError(
                f"--engine ray needs a folder or prefix of runs, but {config.run} is one run; omit --engine, since "
                "one process evaluates one live run"
            )
        self._note(f"following {config.run}")
        followed = evaluate.follow(
            config,
            self.interruption.pause,
            wait_s=self.wait_s,
            timeout_s=timeout_s,
            output=None if config.quiet else sys.stderr,
            snapshots=self.snapshots,
        )
        if followed.left_off:
            self._note(f"stopped following before the end of the run: {self._reason(followed.left_off)}")
        elif followed.ended:
            self._note(f"the run has ended: {followed.ended}")
        return conclude(config, followed.evaluation, self.fail_on, ended=bool(followed.ended), verbose=self.verbose)

    def _runs(self, timeout_s: float | None) -> int:
        from watchglass.cli.follow_output import RunsReport

        config, console = self.config, RunsReport(self.config, self.fail_on, verbose=self.verbose)
        self._note(f"following the runs below {config.run}")
        with evaluate.cluster(self.ray_address) if self.on_ray else nullcontext() as cluster:

            def pause(seconds: float) -> bool:
                if cluster is not None:
                    cluster.check()  # following ends where the cluster does
                return self.interruption.pause(seconds)

            fleet, left_off = evaluate.follow_runs(
                config,
                pause,
                console,
                wait_s=self.wait_s,
                timeout_s=timeout_s,
                until_idle_s=self.until_idle_s,
                output=None if config.quiet else sys.stderr,
                snapshots=self.snapshots,
                judging=evaluate.Judging if cluster is None else evaluate.judging_on(cluster),
            )
        if left_off:
            self._note(f"stopped following: {self._reason(left_off)}")
        if not config.quiet:
            console.print_table(fleet.judged_before)
        return console.status()

    def _reason(self, left_off: str) -> str:
        return left_off if left_off != evaluate.OUT_OF_TIME else f"--timeout of {self.timeout_s:g} s reached"

    def _note(self, sentence: str) -> None:
        if not self.config.quiet:
            print_note(sentence)


def _check_seconds(option: str, seconds: float | None, least: int) -> None:
    if seconds is not None and not seconds >= least:  # so that NaN is refused
        raise InvalidValueError(f"{option} must be a number of seconds >= {least} but got {seconds:g}")


class _Interruption:
    """The signal that requested the end; a second signal raises KeyboardInterrupt."""

    def __init__(self) -> None:
        self.number = 0
        self._event = threading.Event()

    def pause(self, seconds: float) -> bool:
        """Sleep for a time, or until a signal arrives; returns whether no signal arrived."""
        return not self._event.wait(seconds)

    def arrived(self, number: int, _: object) -> None:
        if self.number:
            raise KeyboardInterrupt
        self.number = number
        self._event.set()


@contextmanager
def _metrics(snapshots: evaluate.Snapshots, port: int | None, host: str | None) -> Iterator[None]:
    """A context in which metrics are served, if a port is given."""
    if port is not None and not 0 <= port <= _LAST_PORT:
        raise InvalidValueError(f"--metrics-port must be 0 to {_LAST_PORT} but got {port}; 0 selects a free port")
    if port is None:
        if host is not None:
            raise InvalidValueError(f"--metrics-host {host} needs --metrics-port; use --metrics-port 0 for a free port")
        yield
        return
    with evaluate.MetricsServer(lambda: snapshots.newest, port=port, host=host or "127.0.0.1") as server:
        print_note(f"metrics at {server.url}")
        yield


@contextmanager
def _interruptible() -> Iterator[_Interruption]:
    """A context in which Ctrl-C and SIGTERM end the work in order, never within a write."""
    interruption = _Interruption()
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, interruption.arrived) for number in numbers]
    try:
        yield interruption
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
