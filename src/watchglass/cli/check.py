"""``watchglass check``: evaluate stored runs, for people and for CI."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from watchglass import view
from watchglass.cli.declaring import argument, option
from watchglass.cli.evaluator_options import Calibration, Causes, Rules, RuleTimeout, evaluator_config, explain_options
from watchglass.cli.failure import CLEAN, COULD_NOT, FINDINGS, print_error, print_note, print_warning
from watchglass.cli.shared_options import Engine, FailOn, PricePerHour, RayAddress, Verbose, check_choice, check_engine
from watchglass.cli.terminal import print_verdict, stdout_console
from watchglass.config import EvaluatorConfig
from watchglass.records import RuleStatus, Status, Verdict, count
from watchglass.version import __version__

if TYPE_CHECKING:
    from rich.console import Console


#: Formats of --format, and how the name of a file of each ends.
FORMATS = {"text": "txt", "json": "json", "sarif": "sarif", "junit": "xml", "markdown": "md"}

RunOrPrefix = Annotated[
    str, argument("RUN", "Location of the run, or a folder or prefix of runs: runs, s3://BUCKET/runs.")
]


def _print_schema(wanted: bool) -> None:
    if wanted:
        typer.echo(view.json_schema(), nl=False)
        raise typer.Exit


def check(
    run: RunOrPrefix,
    rules: Rules = None,
    calibration: Calibration = "default",
    fail_on: FailOn = "warning",
    output_format: Annotated[str, option("--format FORMAT", f"Format of the output: {', '.join(FORMATS)}.")] = "text",
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
    check_choice("--format", output_format, tuple(FORMATS))
    check_engine(engine, ray_address)
    target = None
    if output is not None:
        example = f"watchglass.{FORMATS[output_format]}"
        target = view.check_output_path(output, replace=force, cure="--force", example=example)
    from watchglass.cli.verdicts import replayed_all

    config = evaluator_config(
        run=run, rules=rules, calibration=calibration, causes=causes, rule_timeout_s=rule_timeout,
        price_per_hour=price_per_hour,
    )  # fmt: skip
    verdicts, many = replayed_all(config, on_ray=engine == "ray", address=ray_address)
    report = _Report(
        verdicts,
        many,
        view.Terms(fail_on, allow_unfinished),
        explain_options(rules, calibration, causes),
        config,
        verbose,
        _silent_while_it_ran(config.run) if verbose and not many and rules is None else (),
    )
    _print(report, output_format, target, quiet=quiet)
    return concluded(verdicts, report.terms)


class _Report(NamedTuple):
    """The content of the output."""

    verdicts: Sequence[Verdict]  #: One for each run.
    many: bool  #: Whether the location is a folder of runs, with any number of runs.
    terms: view.Terms  #: Which findings count.
    options: Sequence[str]  #: The options for ``explain`` that give the same verdicts.
    config: EvaluatorConfig  #: The configuration of the evaluation.
    verbose: bool  #: Whether text has cost and counts.
    silent: Sequence[RuleStatus]  #: Rules that had no data, or failed, in the evaluation beside the run.


def _print(report: _Report, output_format: str, target: Path | None, *, quiet: bool) -> None:
    """Print the document or write it to a file, and print the read errors of each run on stderr."""
    if target is not None:
        document = "".join(_rendered(output_format, report))
        written = view.write_whole(target, document.encode("utf-8", "backslashreplace"))
        if not quiet:
            print_note(f"{_headline(report.verdicts, many=report.many)}; written to {target} ({view.size(written)})")
    elif quiet:
        pass
    elif output_format == "text":
        _print_text(report, stdout_console())
    else:
        for part in _rendered(output_format, report):
            typer.echo(part, nl=False)
    for verdict in report.verdicts:
        for problem in verdict.problems:
            print_warning(f"{verdict.run}: {problem}" if report.many else problem)


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


def _rendered(output_format: str, report: _Report) -> Iterator[str]:
    """A document in one of :data:`FORMATS`."""
    verdicts, many, terms, _, config, *_ = report
    if output_format == "json":
        yield view.json_document(verdicts, terms, many=many)
    elif output_format == "sarif":
        yield view.sarif_document(verdicts, terms, rules=_rule_texts(config), version=__version__)
    elif output_format == "junit":
        yield view.junit_document(verdicts, terms)
    elif output_format == "markdown":
        yield view.markdown_document(verdicts, terms, many=many)
    else:
        from rich.console import Console

        document = io.StringIO()
        _print_text(report, Console(file=document, force_terminal=False))
        yield document.getvalue()


def _print_text(report: _Report, console: Console) -> None:
    for verdict in report.verdicts:
        if report.many and not console.is_terminal:  # where the frame has no title
            console.file.write(f"{view.printable(verdict.run)}\n")
        judged = {status.rule for status in verdict.statuses if status.status in _SILENT}
        silent = [status for status in report.silent if status.rule not in judged]
        shown = replace(verdict, statuses=(*verdict.statuses, *silent)) if verdict.train_steps else verdict
        print_verdict(console, shown, report.options, verbose=report.verbose)
        if report.many:
            console.file.write("\n")
    if report.many:
        console.file.write(f"{_headline(report.verdicts, many=True)}\n")


def _silent_while_it_ran(run: str) -> list[RuleStatus]:
    """Statuses of the rules of the run's own evaluator that could not be evaluated, whatever is evaluated now."""
    from watchglass.run import open_run

    found = [status for status in open_run(run).journal.statuses if status.status in _SILENT]
    note = " (when the run was followed)"
    return [replace(each, reason=(each.reason or "no reason given") + note) for each in found]


def _headline(verdicts: Sequence[Verdict], *, many: bool) -> str:
    if not many:
        return view.headline(verdicts[0])
    amounts = {status: sum(verdict.status == status for verdict in verdicts) for status in _ORDER}
    words = [f"{amount:,} {_AMOUNTS.get(status, status)}" for status, amount in amounts.items() if amount]
    return f"{count(len(verdicts), 'run')}: {', '.join(words)}"


_SILENT = (Status.STARVED, Status.ERROR)
_AMOUNTS = {"issues found": "with issues", "no data": "without data", "no issues found": "without issues"}
_ORDER = (
    "failed", "interrupted", "issues found", "stopped", "damaged", "unreadable", "incomplete", "no data", "not judged",
    "no issues found",
)  # fmt: skip


def _rule_texts(config: EvaluatorConfig) -> dict[str, view.RuleText]:
    """Summary and documentation of the rules that were evaluated."""
    from watchglass.rules import documentation, find_rule

    documented = [documentation(find_rule(spec.name)) for spec in config.rules]
    return {rule.name: view.RuleText(rule.summary, rule.sections) for rule in documented}
