"""Launch a job: make run and attempt, start the script and its evaluator, and wait for the end of both."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO

from watchglass.capture import FRAMEWORKS
from watchglass.config import TIMING, EvaluatorConfig, ExporterConfig, SamplerConfig, environment
from watchglass.errors import EXIT_STOPPED, LaunchError
from watchglass.launch.evaluator import companion_environment, wait_for
from watchglass.launch.failures import Failures
from watchglass.launch.interpreter import check_bootstrap_possible, with_bootstrap
from watchglass.launch.job import Job
from watchglass.launch.shared_attempt import begin_attempt
from watchglass.launch.signals import SignalWatch
from watchglass.launch.training_process import exit_status, run_training
from watchglass.record import has_unharvested
from watchglass.records import Failure, Sighting, Verdict, from_json
from watchglass.store import attempts, claims_of_worker, layout, open_store, write_launch_end
from watchglass.supervise import CompanionProcess, RestartedOnce, Supervision

#: Folder with the ``sitecustomize.py`` that brings capture into the training process.
BOOTSTRAP = str(Path(__file__).with_name("bootstrap"))

#: Signals by which the stop protocol ends a training process that reaches no step boundary.
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGKILL)


@dataclass(frozen=True)
class LaunchOutcome:
    """The result of a launch."""

    #: That of the script; ``128 + n`` after signal ``n``; :data:`~watchglass.errors.EXIT_STOPPED` after a stop by
    #: request.
    exit_status: int
    run: str  #: Location of the run.
    attempt: int  #: Attempt within the run.
    leads: bool  #: Whether this process launched rank 0 and the evaluator, and so reports the verdict.
    evaluated: bool  #: Whether the evaluator finished without being stopped.
    seconds: float  #: From the start to the end of the training process.
    problems: tuple[str, ...] = ()  #: One line for each error outside the script.
    unwritten: str = ""  #: Why the end of the run could not be written; "" where it was.
    failure: Failure | None = None  #: The failure of the run; None for none.
    verdict: Verdict | None = None  #: The verdict of the evaluator; None if it gave none.
    beside_cpu_s: float = 0.0  #: CPU time of launcher and evaluator so far.
    #: Whether the training process of this launch became a worker, so that the run has records of it.
    recorded: bool = False


#: A context that shows progress; its function takes the seconds waited.
Waiting = Callable[[], AbstractContextManager[Callable[[float], None]]]


class _Evaluation:
    """The evaluator of a launch: started when the script runs, supervised, and waited for.

    Args:
        config: What it evaluates; None where this launch has none.
        report: Takes a sentence about what goes wrong.
    """

    def __init__(self, config: EvaluatorConfig | None, report: Callable[[str], None]) -> None:
        self._config = config
        self._report = report
        self._evaluator: Supervision | None = None
        self._answer: IO[bytes] | None = None
        self.verdict: Verdict | None = None  #: Its verdict at the end; None if it gave none.
        if config is not None:
            with suppress(OSError):  # without a temporary file, the launcher computes the verdict
                self._answer = tempfile.TemporaryFile()  # noqa: SIM115  close() ends it

    def look(self) -> None:
        """Start the evaluator, or replace it if it has died.

        First called when the script runs: before, the evaluator has nothing to read, and its imports would delay the
        script.
        """
        if self._evaluator is not None:
            self._evaluator.look()
        elif self._config is not None:
            environ = companion_environment(os.environ, BOOTSTRAP)
            start = partial(CompanionProcess, answer=self._answer)
            self._evaluator = Supervision(self._config, environ, self._report, start=start)

    def finish(self, signals: SignalWatch, waiting: Waiting, problems: list[str]) -> bool:
        """Wait for its end after the end of the script; returns whether it finished without being stopped."""
        if self._evaluator is None or self._config is None:
            return False
        with waiting() as tick:
            times, alone = self._config.timing, environment.world_size() == 1
            patience_s = times.last_steps_s if alone else times.last_steps_of_ranks_s  # other ranks may still train
            over = wait_for(self._evaluator, signals, patience_s=patience_s, tick=tick)
        if not over:
            problems.append(
                "the evaluator was stopped before it had evaluated all steps; to evaluate them: watchglass check"
            )
        if self._evaluator.completed and self._answer is not None:
            with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
                self._answer.seek(0)
                self.verdict = replace(from_json(Verdict, json.loads(self._answer.read())), run=self._config.run)
        return self._evaluator.completed

    def close(self) -> None:
        """End it now, if it runs."""
        if self._evaluator is not None:
            self._evaluator.end()
        if self._answer is not None:
            self._answer.close()


class _Beside:
    """A sampler or an export of a launch: started when the script runs, and ended with it.

    Args:
        config: What it does; None for none, or where another rank starts it.
        end_s: Longest wait for the rest of its work.
        report: Takes a sentence about what goes wrong.
    """

    def __init__(
        self, config: SamplerConfig | ExporterConfig | None, end_s: float, report: Callable[[str], None]
    ) -> None:
        self._config, self._end_s, self._report = config, end_s, report
        self._process: RestartedOnce | None = None

    def look(self) -> None:
        """Start the process, or replace it if it has died. First called when the script runs."""
        if self._process is not None:
            self._process.look()
        elif self._config is not None:
            environ = companion_environment(os.environ, BOOTSTRAP)
            self._process = RestartedOnce(self._config, environ, self._report)

    def close(self) -> None:
        """Wait a moment for the rest of its work, and end it."""
        if self._process is not None:
            self._process.finish(self._end_s)
            self._process = self._config = None


def launch(
    job: Job,
    *,
    started: Callable[[str, int], None] = lambda run, attempt: None,
    report: Callable[[str], None] = lambda sentence: None,
    waiting: Waiting = lambda: nullcontext(lambda _: None),
) -> LaunchOutcome:
    """Run a training script under watch; returns when the script and its evaluator have ended.

    Main thread only: it handles the signals of this process meanwhile.

    Args:
        job: What to run.
        started: Called by the launcher of rank 0 with location and attempt of the run, just before the script starts.
        report: Takes a sentence about what goes wrong during the run.
        waiting: Makes the context for the wait for the evaluator, after the end of the script.

    Raises:
        WatchglassError: The job cannot be started; then no process runs.
    """
    job.check()
    check_bootstrap_possible()
    run, attempt = begin_attempt(job, report=report)
    leads = environment.rank() == 0
    if _restarted_after_stop(run, attempt):
        note = "torchrun restarted a run that was stopped by request; not started again"
        return LaunchOutcome(EXIT_STOPPED, run, attempt, leads, False, 0.0, (note,))
    problems: list[str] = []
    config = replace(job.evaluator, run=run, attempt=attempt) if leads and job.evaluator else None
    if leads:
        started(run, attempt)
    begin = time.monotonic()
    sampling = _Beside(job.sampler(run, attempt), TIMING.sampler_end_s, report)
    export = _Beside(job.exporter(run) if leads else None, TIMING.export_end_s, report)
    evaluation = _Evaluation(config, report)

    def look() -> None:
        evaluation.look()
        sampling.look()
        export.look()

    with (
        SignalWatch(_group_sender()) as signals,
        closing(export),
        closing(evaluation),
        closing(sampling),
        closing(Failures()) as failures,
    ):
        environ = {**training_environment(job, run, attempt), environment.FAILURES: failures.variable}
        ended = run_training(job.command, environ, signals, look)
        seconds = time.monotonic() - begin
        sampling.close()  # before the evaluator concludes that nothing more comes
        unwritten = _harvest(run, attempt)
        status = exit_status(ended.returncode)
        if -ended.returncode in _STOP_SIGNALS and _stop_was_committed(run, attempt):
            status = EXIT_STOPPED
        failure, sighting = failures.take(0 if status == EXIT_STOPPED else status)
        unwritten = _print_end(run, attempt, status, ended.pid, failure, sighting) or unwritten
        before_s = _seconds_of_children()
        evaluated = evaluation.finish(signals, waiting, problems)
        export.close()  # with the last findings
        beside_cpu_s = _seconds_of_children() - before_s + time.process_time()
        return LaunchOutcome(
            status, run, attempt, leads, evaluated, seconds, tuple(problems), unwritten, failure, evaluation.verdict,
            beside_cpu_s, recorded=_recorded(run, attempt),
        )  # fmt: skip


def run_untouched(job: Job) -> int:
    """Replace this process by python running the script, without watchglass.

    Returns:
        The exit status of the script, on systems that cannot replace a process; does not return on others.

    Raises:
        WatchglassError: The script cannot be started.
    """
    job.check()
    environ = {**os.environ, environment.SWITCH: "0"}  # so that `watch` in the script does nothing either
    sys.stdout.flush()
    sys.stderr.flush()
    if os.name == "posix":
        try:
            os.execve(sys.executable, job.command, environ)
        except OSError as error:
            raise LaunchError(f"{sys.executable} cannot be started: {error.strerror or error}") from None
    with SignalWatch() as signals:
        return exit_status(run_training(job.command, environ, signals).returncode)


def training_environment(job: Job, run: str, attempt: int) -> dict[str, str]:
    """The environment of this process with the bootstrap and the configuration of the session."""
    environ = dict(os.environ)
    environ["PYTHONPATH"] = with_bootstrap(environ.get("PYTHONPATH"), BOOTSTRAP)
    groups = (
        [entry.module or name for name, entry in FRAMEWORKS.items() if entry.discovers is found]
        for found in (True, False)
    )
    environ[environment.FRAMEWORKS] = "|".join(map(" ".join, groups))
    environ.update(job.session(run, attempt).to_env())
    return environ


def _seconds_of_children() -> float:
    """Processor time of the child processes that have ended."""
    spent = os.times()
    return spent.children_user + spent.children_system


def _harvest(run: str, attempt: int) -> str:
    """Recover what a killed worker recorded last, before the evaluator concludes that nothing more comes.

    Returns:
        Why it failed; "" if it did not.
    """
    try:
        store = open_store(run)
        if has_unharvested(store, attempt):
            from watchglass.record import harvest  # here, for what it imports

            harvest(store, by="launcher", attempt=attempt)
    except Exception as error:  # the exit status must be that of the script
        return str(error)
    return ""


def _print_end(
    run: str, attempt: int, status: int, pid: int, failure: Failure | None, sighting: Sighting | None
) -> str:
    """Record the end of this launch for followers on other machines, which cannot see processes here.

    Returns:
        Why it failed, so that these followers wait for a timeout; "" if it did not.
    """
    rank, world_size = environment.rank(), environment.world_size()
    try:
        write_launch_end(
            open_store(run), attempt, rank=rank, world_size=world_size, exit_status=status, pid=pid, failure=failure,
            sighting=sighting,
        )  # fmt: skip
    except Exception as error:  # the exit status must be that of the script
        return str(error)
    return ""


def _group_sender() -> int | None:
    """The agent of torchrun, if it started this process in a new process group: it ends workers with ``killpg``."""
    ours = environment.elastic_run_id() and os.name == "posix" and os.getpgrp() == os.getpid()
    return os.getppid() if ours else None


def _recorded(run: str, attempt: int) -> bool:
    try:
        return bool(claims_of_worker(open_store(run), attempt, layout.worker_name(environment.rank())))
    except Exception:  # an unreachable store gets no report either
        return False


def _stop_was_committed(run: str, attempt: int) -> bool:
    try:
        return open_store(run).size(layout.control_commit("stop", attempt)) is not None
    except Exception:
        return False


def _restarted_after_stop(run: str, attempt: int) -> bool:
    """Whether torchrun started this attempt because an earlier one ended with the exit status of a stop."""
    if environment.restart_count() == 0:
        return False
    earlier = [number for number in attempts(open_store(run)) if number < attempt]
    return bool(earlier) and _stop_was_committed(run, max(earlier))
