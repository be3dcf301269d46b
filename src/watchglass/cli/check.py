"""``watchglass check``: evaluate stored runs, for people and for CI."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from watchglass import view
from watchglass.cli.declaring import option
from watchglass.cli.evaluator_options import Calibration, Causes, Rules, RuleTimeout, evaluator_config, explain_options
from watchglass.cli.failure import CLEAN, COULD_NOT, FINDINGS, print_error, print_note, print_warning
from watchglass.cli.shared_options import (
    AsJson,
    Engine,
    FailOn,
    PricePerHour,
    RayAddress,
    RunOrPrefix,
    Verbose,
    check_choice,
    check_engine,
    format_of,
)
from watchglass.cli.terminal import print_rows, stdout_console
from watchglass.config import EvaluatorConfig
from watchglass.records import Status, Verdict


def _print_schema(wanted: bool) -> None:
    if wanted:
        typer.echo(view.json_schema(), nl=False)
        raise typer.Exit


def check(
    run: RunOrPrefix,
    rules: Rules = None,
    calibration: Calibration = "default",
    fail_on: FailOn = "warning",
    output_format: Annotated[
        str, option("--format FORMAT", f"Format of the output: {', '.join(view.FORMATS)}.")
    ] = "text",
    as_json: AsJson = False,
    output: Annotated[str | None, option("--output, -o FILE", "Write to this file instead of stdout.")] = None,
    force: Annotated[bool, option("--force", "Overwrite the file of --output if it exists.")] = False,
    allow_unfinished: Annotated[
        bool,
        option("--allow-unfinished", "Exit with 0 also if a run without findings failed, is running or is damaged."),
    ] = False,
    causes: Causes = None,
    rule_timeout: RuleTimeout = 30.0,
    price_per_hour: PricePerHour = None,
    quiet: Annotated[
        bool, option("--quiet, -q", "Print no verdict and no notes; use the exit status or --output.")
    ] = False,
    verbose: Verbose = False,
    engine: Engine = "local",
    ray_address: RayAddress = None,
    schema: Annotated[
        bool,
        option("--schema", "Print the JSON Schema of --format json and exit.", callback=_print_schema, is_eager=True),
    ] = False,
) -> int:
    """Evaluate rules on a stored run, or on all runs of a folder.

    The rules are evaluated again on the stored data, so any rule can be tried on any run. The run does not change, with
    one exception: the last steps of a process that was killed on this machine are recovered first. The exit status is
    0 without findings, 1 with findings, and 2 if a run failed, is unfinished, lacks records, or could not be evaluated.
    Findings of severity info are printed and do not count.
    """
    check_choice("--fail-on", fail_on, view.FAIL_ON)
    output_format = format_of(output_format, as_json, tuple(view.FORMATS))
    check_engine(engine, ray_address)
    target = None
    if output is not None:
        example = f"watchglass.{view.FORMATS[output_format].ending}"
        target = view.check_output_path(output, replace=force, cure="--force", example=example)
    from watchglass.cli.verdicts import replayed_all

    config = evaluator_config(
        run=run, rules=rules, calibration=calibration, causes=causes, rule_timeout_s=rule_timeout,
        price_per_hour=price_per_hour,
    )  # fmt: skip
    verdicts, many = replayed_all(config, on_ray=engine == "ray", address=ray_address)
    judged = view.Judged(
        verdicts, view.Terms(fail_on, allow_unfinished), many, explain_options(rules, calibration, causes), verbose,
        rules=lambda: _rule_texts(config),
    )  # fmt: skip
    if output_format == "text" and verbose and not many and rules is None:
        judged = replace(judged, verdicts=[_with_silent_rules(verdicts[0], config.run)])
    _print(judged, output_format, target, quiet=quiet)
    return concluded(verdicts, judged.terms)


def _print(judged: view.Judged, output_format: str, target: Path | None, *, quiet: bool) -> None:
    """Print the document or write it to a file, and print the read errors of each run on stderr."""
    if target is not None:
        document = view.renderer(output_format)(judged)
        written = view.write_whole(target, document.encode("utf-8", "backslashreplace"))
        if not quiet:
            print_note(f"{judged.headline}; written to {target} ({view.size(written)})")
    elif quiet:
        pass
    elif output_format == "text":
        print_rows(stdout_console(), view.judged_rows(judged))
    else:
        typer.echo(view.renderer(output_format)(judged), nl=False)
    for verdict in judged.verdicts:
        for problem in verdict.problems:
            print_warning(f"{verdict.run}: {problem}" if judged.many else problem)


def concluded(verdicts: Sequence[Verdict], terms: view.Terms) -> int:
    """The exit status over all verdicts; prints why a run has neither findings nor a clean verdict."""
    answers = {"clean": CLEAN, "findings": FINDINGS, "no answer": COULD_NOT}
    found = set()
    for verdict in verdicts:
        for failure in view.failed_rules(verdict):
            print_warning(failure if len(verdicts) == 1 else f"{verdict.run}: {failure}")
        answer = view.outcome(verdict, terms)
        reason = view.not_answered(verdict, terms)
        if answer == "no answer" and reason:
            print_error(f"{verdict.run}: {reason}")
        found.add(answers[answer])
    return next(status for status in (FINDINGS, COULD_NOT, CLEAN) if status in found or status == CLEAN)


def _with_silent_rules(verdict: Verdict, run: str) -> Verdict:
    """The verdict with rules of the run's own evaluator that had no data or failed, whatever is evaluated now."""
    from watchglass.run import open_run

    silent, note = (Status.STARVED, Status.ERROR), " (when the run was followed)"
    judged = {status.rule for status in verdict.statuses if status.status in silent}
    found = [
        replace(each, reason=(each.reason or "no reason given") + note)
        for each in open_run(run).journal.statuses
        if each.status in silent and each.rule not in judged
    ]
    return replace(verdict, statuses=(*verdict.statuses, *found)) if verdict.train_steps else verdict


def _rule_texts(config: EvaluatorConfig) -> dict[str, view.RuleText]:
    """Summary and documentation of the rules that were evaluated."""
    from watchglass.rules import documentation, find_rule

    documented = [documentation(find_rule(spec.name)) for spec in config.rules]
    return {
        rule.name: view.RuleText(rule.summary, rule.sections, {each.name: each.default for each in rule.parameters})
        for rule in documented
    }
