"""``watchglass check``: evaluate a stored run, for people and for CI."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from watchglass.cli.evaluating import Calibration, Causes, Rules, RuleTimeout, evaluator_config
from watchglass.cli.failure import CLEAN, COULD_NOT, FINDINGS, failing_in_one_line, print_error, print_warning
from watchglass.cli.options import Debug, FailOn, RunPath, check_choice
from watchglass.records import Finding, Severity, Status, Verdict

#: What a finding has in the JSON, in this order.
_FINDING_KEYS = (
    "id", "rule", "severity", "step", "last_step", "count", "mode", "worker", "tensors", "value", "limit", "message",
    "causes", "try",
)  # fmt: skip

#: Verdicts on runs of which "nothing was found" says nothing.
_UNFINISHED = {
    "no data": "no training step was recorded; did the script train, and with a framework that is watched?",
    "incomplete": "the training is still going on or died, and nothing was found so far; wait, or accept what "
    "there is with --allow-unfinished",
}


def check(
    run: RunPath,
    rules: Rules = None,
    calibration: Calibration = "default",
    fail_on: FailOn = "warning",
    output: Annotated[str, typer.Option("--format", metavar="text|json", help="For people or for programs.")] = "text",
    allow_unfinished: Annotated[
        bool, typer.Option("--allow-unfinished", help="Exit 0 also when an unfinished run has no findings so far.")
    ] = False,
    causes: Causes = None,
    rule_timeout: RuleTimeout = 30.0,
    debug: Debug = False,
) -> int:
    """Evaluate rules on a stored run.

    Evaluation is repeated from the stored data, so any rule can be tried on any run; the run is not changed. The exit
    status is 0 when nothing was found, 1 for findings, 2 when the run could not be evaluated. Findings of severity
    info are shown and never count.
    """
    with failing_in_one_line(debug):
        check_choice("--fail-on", fail_on, ("warning", "error", "never"))
        check_choice("--format", output, ("text", "json"))
        from watchglass.cli.judge import replayed

        config = evaluator_config(
            run=run, rules=rules, calibration=calibration, causes=causes, rule_timeout=rule_timeout
        )
        opened, verdict = replayed(config)
        if output == "json":
            typer.echo(json.dumps(as_json(verdict), allow_nan=False, indent=2))
        else:
            from watchglass.cli.terminal import print_verdict, stdout_console

            print_verdict(stdout_console(), verdict)
        for problem in opened.problems:
            print_warning(str(problem))
        return exit_status(verdict, fail_on, allow_unfinished=allow_unfinished)


def as_json(verdict: Verdict) -> dict[str, Any]:
    """The one object that ``--format json`` prints."""
    return {
        "run": verdict.run,
        "status": verdict.status,
        "findings": [_finding(finding) for finding in verdict.findings],
        # From a file that anybody may have written: what JSON has no number for becomes a string, as in findings.
        "capture": json.loads(json.dumps(verdict.capture), parse_constant=str),
    }


def _finding(finding: Finding) -> dict[str, Any]:
    data = finding.to_json()
    return {key: data[key] for key in _FINDING_KEYS}


def exit_status(verdict: Verdict, fail_on: str, *, allow_unfinished: bool) -> int:
    """0 where nothing was found, 1 for findings that count, 2 where there is no clean answer; the reason is printed."""
    for status in verdict.statuses:
        if status.status is Status.ERROR:
            print_warning(f"rule {status.rule} failed: {status.reason}")
    counted = () if fail_on == "never" else _at_least(verdict, Severity(fail_on))
    if counted:
        return FINDINGS
    if verdict.status in _UNFINISHED and not (allow_unfinished and verdict.status == "incomplete"):
        print_error(f"{verdict.run}: {_UNFINISHED[verdict.status]}")
        return COULD_NOT
    if any(status.status is Status.ERROR for status in verdict.statuses):
        return COULD_NOT
    return CLEAN


def _at_least(verdict: Verdict, severity: Severity) -> list[Finding]:
    return [finding for finding in verdict.findings if finding.severity.rank >= severity.rank]
