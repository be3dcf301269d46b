"""The output of ``follow``: the verdict on a run, the exit status, and a line for each of many runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from watchglass import evaluate, view
from watchglass.cli.check import concluded
from watchglass.cli.evaluator_options import explain_options
from watchglass.cli.failure import CLEAN, COULD_NOT, FINDINGS, print_error, print_note, print_warning
from watchglass.cli.terminal import print_table, print_verdict, stdout_console
from watchglass.cli.verdicts import verdict_on
from watchglass.config import EvaluatorConfig
from watchglass.errors import WatchglassError
from watchglass.records import Evaluation, Finding, count
from watchglass.run import open_run


def conclude(
    config: EvaluatorConfig, evaluation: Evaluation, fail_on: str, *, ended: bool, name: str = "", verbose: bool = False
) -> int:
    """Print the verdict and return the exit status, which is 1 or 2 for a run that continues.

    Findings count even if the run cannot be read any more.

    Args:
        config: The configuration of the evaluator.
        evaluation: The results of the rules.
        fail_on: Lowest severity of a finding that counts.
        ended: Whether the run has ended.
        name: Name of the run among many; "" for a single run.
        verbose: Whether the verdict has cost and counts.
    """
    try:
        verdict = verdict_on(open_run(config.run), evaluation, config)
    except WatchglassError as error:
        found = counts(evaluation.findings, fail_on)
        print_error(f"{f'[{name}] ' if name else ''}no verdict, only the findings above: {error}")
        return FINDINGS if found else COULD_NOT
    if not config.quiet:
        console = stdout_console()
        if name:
            console.file.write(f"[{view.printable(name)}]\n")
        print_verdict(console, verdict, explain_options(None, "default", config.causes), verbose=verbose)
        if name:
            console.file.write("\n")
            console.file.flush()
    status = concluded([verdict], view.Terms(fail_on))
    return status if ended or status == FINDINGS else COULD_NOT


def counts(findings: Iterable[Finding], fail_on: str) -> bool:
    """Whether one of the findings is severe enough for exit status 1; needs no verdict."""
    return any(view.enough(finding, view.Terms(fail_on)) for finding in findings)


@dataclass(frozen=True)
class _Row:
    """The row of a run in the table."""

    state: str
    steps: int
    findings: str
    worst: str
    status: int


class RunsReport:
    """Reports on many runs while they are followed, and prints a table of them at the end.

    Args:
        config: The configuration of the evaluators, with the prefix as its run.
        fail_on: Lowest severity of a finding that counts.
        verbose: Whether verdicts have cost and counts.
    """

    def __init__(self, config: EvaluatorConfig, fail_on: str, *, verbose: bool = False) -> None:
        self._config, self._fail_on, self._verbose = config, fail_on, verbose
        self._rows: dict[str, _Row] = {}

    def begun(self, name: str, location: str) -> None:
        """Report that a run is followed from now on."""
        self.notified(f"[{name}] following {location}")

    def ended(self, name: str, location: str, followed: evaluate.Followed) -> None:
        """Report that a run has ended, or that following stopped before."""
        evaluation = followed.evaluation
        if followed.ended:
            self.notified(f"[{name}] the run has ended: {followed.ended}")
            config = replace(self._config, run=location)
            status = conclude(config, evaluation, self._fail_on, ended=True, name=name, verbose=self._verbose)
        else:
            status = FINDINGS if counts(evaluation.findings, self._fail_on) else COULD_NOT
        worst = min(evaluation.findings, key=lambda finding: -finding.severity.rank, default=None)
        self._rows[name] = _Row(
            followed.ended or "running", evaluation.train_steps, ", ".join(view.amounts(evaluation.findings)) or "none",
            "" if worst is None else f"step {worst.step}: {worst.message} ({worst.rule})", status,
        )  # fmt: skip

    def skipped(self, name: str, location: str, reason: str) -> None:
        """Report a run that cannot be followed, or that never started."""
        print_warning(f"[{name}] skipped: {reason}")
        self._rows[name] = _Row("skipped", 0, "", reason, COULD_NOT)

    def notified(self, sentence: str) -> None:
        """Print one line, unless the output is quiet."""
        if not self._config.quiet:
            print_note(sentence)

    def status(self) -> int:
        """1 if any run has findings that count, else 2 if any run has no clean verdict, else 0."""
        statuses = {row.status for row in self._rows.values()}
        return next((status for status in (FINDINGS, COULD_NOT) if status in statuses), CLEAN)

    def print_table(self, judged_before: int) -> None:
        """Print a line for each run, and the number of runs that were evaluated before."""
        words = count(len(self._rows), "run")
        if judged_before:
            words += f", and {judged_before:,} that had ended and were evaluated before"
        print_table(
            stdout_console(),
            f"{self._config.run}: {words}",
            ((name, row.state, f"{row.steps:,}", row.findings, row.worst) for name, row in sorted(self._rows.items())),
            titles=("run", "state", "steps", "findings", "worst"),
            numbers=("steps",),
        )
