"""How following ends: the verdict on a run, an exit status, and of many runs a line each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from watchglass import evaluate, view
from watchglass.cli.check import concluded
from watchglass.cli.evaluator_options import asked_of_explain
from watchglass.cli.failure import CLEAN, COULD_NOT, FINDINGS, print_error, print_note, print_warning
from watchglass.cli.terminal import print_table, print_verdict, stdout_console
from watchglass.cli.verdicts import verdict_on
from watchglass.config import EvaluatorConfig
from watchglass.errors import WatchglassError
from watchglass.records import Evaluation, Finding, count
from watchglass.run import open_run


def conclude(config: EvaluatorConfig, evaluation: Evaluation, fail_on: str, *, ended: bool, name: str = "") -> int:
    """Prints the verdict; returns the exit status, of a training that goes on 1 or 2.

    What was found counts, also where the run cannot be read any more to say more about it.

    Args:
        config: What the evaluator was told.
        evaluation: What the rules say.
        fail_on: Least severity of a finding that counts.
        ended: Whether the training has ended.
        name: What to call the run where there are many; "" where it is the only one.
    """
    try:
        told = verdict_on(open_run(config.run), evaluation, config)
    except WatchglassError as error:
        found = counts(evaluation.findings, fail_on)
        print_error(f"{f'[{name}] ' if name else ''}there is no verdict, only the findings above: {error}")
        return FINDINGS if found else COULD_NOT
    if not config.quiet:
        console = stdout_console()
        if name:
            console.file.write(f"[{view.printable(name)}]\n")
        print_verdict(console, told, asked_of_explain(None, "default", config.causes))
        if name:
            console.file.write("\n")
            console.file.flush()
    status = concluded([told], view.Terms(fail_on))
    return status if ended or status == FINDINGS else COULD_NOT


def counts(findings: Iterable[Finding], fail_on: str) -> bool:
    """Whether one of these findings is bad enough for exit status 1, also where there is no verdict to ask."""
    return any(view.enough(finding, view.Terms(fail_on)) for finding in findings)


@dataclass(frozen=True)
class _Row:
    """What the table says of a run."""

    state: str
    steps: int
    findings: str
    worst: str
    status: int


class RunsReport:
    """Reports on many runs while they are followed, and prints a table of them at the end.

    Args:
        config: What evaluators are told, with the prefix as its run.
        fail_on: Least severity of a finding that counts.
    """

    def __init__(self, config: EvaluatorConfig, fail_on: str) -> None:
        self._config, self._fail_on = config, fail_on
        self._rows: dict[str, _Row] = {}

    def begun(self, name: str, location: str) -> None:
        """A run is evaluated from now on."""
        self.notified(f"[{name}] following {location}")

    def ended(self, name: str, location: str, followed: evaluate.Followed) -> None:
        """A training has ended, or following did before."""
        evaluation = followed.evaluation
        if followed.ended:
            self.notified(f"[{name}] the training has ended: {followed.ended}")
            config = replace(self._config, run=location)
            status = conclude(config, evaluation, self._fail_on, ended=True, name=name)
        else:
            status = FINDINGS if counts(evaluation.findings, self._fail_on) else COULD_NOT
        worst = min(evaluation.findings, key=lambda finding: -finding.severity.rank, default=None)
        self._rows[name] = _Row(
            followed.ended or "goes on", evaluation.train_steps, ", ".join(view.amounts(evaluation.findings)) or "none",
            "" if worst is None else f"step {worst.step}: {worst.message} ({worst.rule})", status,
        )  # fmt: skip

    def skipped(self, name: str, location: str, reason: str) -> None:
        """A run cannot be followed, or nothing came of it."""
        print_warning(f"[{name}] is left out: {reason}")
        self._rows[name] = _Row("left out", 0, "", reason, COULD_NOT)

    def notified(self, sentence: str) -> None:
        """Something worth a line."""
        if not self._config.quiet:
            print_note(sentence)

    def status(self) -> int:
        """1 where any run has findings that count, else 2 where any has no clean answer, else 0."""
        statuses = {row.status for row in self._rows.values()}
        return next((status for status in (FINDINGS, COULD_NOT) if status in statuses), CLEAN)

    def print_table(self, judged_before: int) -> None:
        """A line for each run, and how many there were that had been judged before."""
        words = count(len(self._rows), "run")
        if judged_before:
            words += f", and {judged_before:,} that had ended and been judged before"
        print_table(
            stdout_console(),
            f"{self._config.run}: {words}",
            ((name, row.state, f"{row.steps:,}", row.findings, row.worst) for name, row in sorted(self._rows.items())),
            titles=("run", "training", "steps", "findings", "worst"),
            numbers=("steps",),
        )
