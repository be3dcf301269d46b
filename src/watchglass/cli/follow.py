"""``watchglass follow``: evaluate a run while it is written, from anywhere."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from watchglass.cli.evaluating import Calibration, Causes, Rules, RuleTimeout, StopOn, evaluator_config
from watchglass.cli.failure import COULD_NOT, FINDINGS, failing_in_one_line, print_note
from watchglass.cli.options import Debug, FailOn, RunPath, check_choice

if TYPE_CHECKING:
    from watchglass.evaluate import Evaluation

#: Exit status after Ctrl-C or SIGTERM, as of a process that the signal ended.
_SIGNALLED = 128


def follow(
    run: RunPath,
    rules: Rules = None,
    calibration: Calibration = "default",
    stop_on: StopOn = None,
    fail_on: FailOn = "warning",
    wait: Annotated[
        float, typer.Option("--wait", metavar="S", min=0.0, help="Seconds to wait for the run and its first step.")
    ] = 600.0,
    timeout: Annotated[
        float | None, typer.Option("--timeout", metavar="S", min=0.0, help="Seconds to follow at most.")
    ] = None,
    lost_after: Annotated[
        float,
        typer.Option(
            "--lost-after", metavar="S", min=1.0, help="A worker elsewhere that is silent for so long is lost."
        ),
    ] = 600.0,
    causes: Causes = None,
    rule_timeout: RuleTimeout = 30.0,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No line per finding and no verdict.")] = False,
    debug: Debug = False,
) -> int:
    """Evaluate rules on a run while it is written, on any machine that sees where it is written.

    Made for trainings started with 'watchglass run --evaluator none'. Findings appear on stderr as they are made and
    are written into the run; the verdict comes on stdout when the training has ended. With --stop-on the training is
    stopped through the store. The exit status is that of check. Ctrl-C ends following, not the training.
    """
    with failing_in_one_line(debug):
        check_choice("--fail-on", fail_on, ("warning", "error", "never"))
        from watchglass.evaluate import follow as follow_run
        from watchglass.store import open_store

        config = evaluator_config(
            run=run, rules=rules, calibration=calibration, stop_on=stop_on, causes=causes, rule_timeout=rule_timeout,
            lost_after=lost_after, quiet=quiet,
        )  # fmt: skip
        open_store(run).close()  # what can never come is not waited for
        if not quiet:
            print_note(f"waiting for {run}")
        with _interruptible() as interruption:
            followed = follow_run(
                config,
                interruption.pause,
                wait_s=wait,
                timeout_s=timeout,
                output=None if quiet else sys.stderr,
                begun=lambda: None if quiet else print_note(f"following {run}"),
            )
        if followed.left_off and not quiet:
            print_note(f"following ended before the training: {followed.left_off}")
        elif followed.ended and not quiet:
            print_note(f"the training has ended: {followed.ended}")
        status = _concluded(run, followed.evaluation, fail_on, quiet=quiet, ended=bool(followed.ended))
        if interruption.number:
            return _SIGNALLED + interruption.number
        return status


def _concluded(run: str, evaluation: Evaluation, fail_on: str, *, quiet: bool, ended: bool) -> int:
    """Prints the verdict; returns the exit status, of a training that goes on 1 or 2."""
    from watchglass.cli.check import exit_status
    from watchglass.evaluate import verdict
    from watchglass.run import open_run

    if not evaluation.statuses:
        return COULD_NOT  # interrupted before there was a run
    found = replace(verdict(open_run(run), evaluation), run=run)
    if not quiet:
        from watchglass.cli.terminal import print_verdict, stdout_console

        print_verdict(stdout_console(), found)
    status = exit_status(found, fail_on, allow_unfinished=False)
    return status if ended or status == FINDINGS else COULD_NOT


class _Interruption:
    """Whether a signal asked for the end; a second one ends at once."""

    def __init__(self) -> None:
        self.number = 0
        self._event = threading.Event()

    def pause(self, seconds: float) -> bool:
        """Sleep until the time is over or a signal came; returns whether none did."""
        return not self._event.wait(seconds)

    def arrived(self, number: int, _: object) -> None:
        if self.number:
            raise KeyboardInterrupt
        self.number = number
        self._event.set()


@contextmanager
def _interruptible() -> Iterator[_Interruption]:
    """A context in which Ctrl-C and SIGTERM end what is done in order, and not in the middle of a write."""
    interruption = _Interruption()
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, interruption.arrived) for number in numbers]
    try:
        yield interruption
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
