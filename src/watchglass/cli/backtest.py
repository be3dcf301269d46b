"""``watchglass backtest``: where a rule would have fired on stored runs, and how good that is."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Annotated

import typer

from watchglass import evaluate
from watchglass.cli.evaluating import Calibration, RuleTimeout
from watchglass.cli.failure import CLEAN, COULD_NOT, INTERRUPTED, print_note, print_warning
from watchglass.cli.options import check_choice
from watchglass.cli.sweeping import parse_sweeps
from watchglass.cli.terminal import stderr_console
from watchglass.config import CALIBRATIONS, RuleSpec, local_path, scheme_of
from watchglass.errors import InvalidValueError, MissingFileError, in_a_line
from watchglass.records import Severity, Status, count

#: Off a terminal progress is a line every so many seconds.
_TELL_EVERY_S = 15.0

RuleName = Annotated[
    str, typer.Argument(metavar="RULE", help="A rule from 'watchglass rules' or FILE.py:CLASS, with :PARAM=VALUE,...")
]
RunPaths = Annotated[
    list[str],
    typer.Argument(metavar="RUNS", help="Runs, folders or prefixes that hold runs, patterns like 'runs/lr-*'."),
]
Labels = Annotated[
    str | None,
    typer.Option(
        "--labels", metavar="FILE", help="What is known of the runs: CSV, JSON or TOML with run, sick, since_step."
    ),
]
Sweeps = Annotated[
    list[str] | None,
    typer.Option(
        "--sweep", metavar="PARAM=V1,V2|A..B/N", help="Values of a parameter to try. Repeatable: every combination."
    ),
]
Counted = Annotated[
    str, typer.Option("--severity", metavar="warning|error|info", help="Least severity of findings that count.")
]
Tolerance = Annotated[
    int,
    typer.Option("--tolerance", metavar="STEPS", min=0, help="So many steps before since_step are not too early yet."),
]
OutputFormat = Annotated[str, typer.Option("--format", metavar="text|json|csv", help="For people or for programs.")]


def backtest(
    rule: RuleName,
    runs: RunPaths,
    labels: Labels = None,
    sweep: Sweeps = None,
    severity: Counted = "warning",
    tolerance: Tolerance = 0,
    calibration: Calibration = "default",
    output: OutputFormat = "text",
    rule_timeout: RuleTimeout = 30.0,
) -> int:
    """Show where a rule would have fired on stored runs.

    With --labels, how good that is: recall, false alarms, delay. With --sweep, the same for each combination of
    parameters, and which of them no other beats. Each run is read once; nothing is written into any. The exit status
    is 0, or 2 when something could not be read or the rule failed, of which the rest is shown all the same.
    """
    check_choice("--severity", severity, tuple(each.value for each in Severity))
    check_choice("--format", output, ("text", "json", "csv"))
    check_choice("--calibration", calibration, CALIBRATIONS)
    from watchglass.cli.backtest_output import Backtest, printed
    from watchglass.rules import build_rule

    spec = _rule(rule)
    sweeps = parse_sweeps(sweep or (), spec)
    specs = evaluate.combinations(spec, sweeps)
    for each in specs:  # what no rule can be is refused before any run is read
        build_rule(each, calibration)
    known = evaluate.read_labels(labels) if labels is not None else []
    locations, problems = find_runs(runs)
    by_run, others = evaluate.labels_of_runs(known, [*locations, *problems])
    if others:
        more = ", ..." if len(others) > 3 else ""
        print_note(f"{count(len(others), 'label')} of runs that are not given: {', '.join(others[:3])}{more}")

    def one(run: str, progress: Callable[[int], None]) -> evaluate.TestedRun:
        return evaluate.tested(
            run, specs, calibration=calibration, severity=Severity(severity), rule_timeout_s=rule_timeout,
            progress=progress,
        )  # fmt: skip

    results, interrupted = _each(locations, one, problems)
    found = Backtest(specs, tuple(sweeps), results, by_run, tolerance, severity, labels is not None)
    typer.echo(printed(found, output), nl=False)
    failed = _tell_problems(results, problems)
    if interrupted:
        print_note(f"interrupted after {len(results)} of {count(len(locations), 'run')}")
        return INTERRUPTED
    return COULD_NOT if failed else CLEAN


def find_runs(places: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Locations of runs, each once, by place and then by name; and those that cannot be read, with the reason.

    Raises:
        MissingFileError: A place that is not there or holds no runs.
    """
    found: dict[str, str] = {}
    for place in places:
        matches = _expanded(place)
        before = len(found)
        for match in matches:
            found.update(_runs_at(match, only=len(matches) == 1))
        if len(found) == before and not any(match in found for match in matches):
            raise MissingFileError(f"{place} holds no runs that are not named already")
    return [run for run, problem in found.items() if not problem], {run: why for run, why in found.items() if why}


def _runs_at(place: str, *, only: bool) -> dict[str, str]:
    from watchglass.run import open_runs

    try:
        return {each.location: each.problem for each in sorted(open_runs(place).listed, key=lambda each: each.name)}
    except MissingFileError:
        if only:
            raise
        return {}  # a pattern matches other things too


def _expanded(place: str) -> list[str]:
    """What a pattern of the local file system matches; the place itself where it is none."""
    import glob
    import os

    if scheme_of(place) or not glob.has_magic(place) or os.path.exists(local_path(place)):
        return [place]
    matches = sorted(path for path in glob.glob(place) if os.path.isdir(path))
    if not matches:
        raise MissingFileError(f"no folder matches {place}")
    return matches


def _rule(text: str) -> RuleSpec:
    from watchglass.rules import RULE_SETS, parse_rules

    specs = parse_rules([text], "RULE")
    if len(specs) > 1:
        raise InvalidValueError(f"RULE must be one rule but got {len(specs)}: {', '.join(s.name for s in specs)}")
    if specs[0].name in RULE_SETS:
        raise InvalidValueError(f'RULE must be one rule but got the set "{specs[0].name}"')
    return specs[0]


def _each(
    locations: Sequence[str], one: Callable[[str, Callable[[int], None]], evaluate.TestedRun], problems: dict[str, str]
) -> tuple[list[evaluate.TestedRun], bool]:
    """The results of the runs that could be read, and whether Ctrl-C came before the last."""
    results: list[evaluate.TestedRun] = []
    with _progress(len(locations)) as tell:
        for number, run in enumerate(locations, 1):
            tell(number, run, 0)
            try:
                results.append(one(run, partial(tell, number, run)))
            except KeyboardInterrupt:
                return results, True
            except Exception as error:  # whatever is wrong with one run, the others are tested
                problems[run] = in_a_line(error)
    return results, False


def _tell_problems(results: Sequence[evaluate.TestedRun], problems: dict[str, str]) -> bool:
    """Prints what was wrong; returns whether anything was."""
    lines = [f"{run} is left out: {reason}" for run, reason in problems.items()]
    for result in results:
        lines += [f"{result.run}: {problem}" for problem in result.problems]
        errors = [f.status.reason for f in result.firings if f.status.status is Status.ERROR]
        if errors:
            lines.append(f"the rule failed on {result.run}: {errors[0].strip().splitlines()[-1]}")
    for line in lines:
        print_warning(line)
    return bool(lines)


@contextmanager
def _progress(total: int) -> Iterator[Callable[[int, str, int], None]]:
    """A function that says which run is read: in a line that changes on a terminal, else in one now and then."""
    from rich.markup import escape

    told_s = time.monotonic()
    with stderr_console().status("reading runs") if sys.stderr.isatty() else nullcontext() as status:

        def tell(number: int, run: str, step: int) -> None:
            nonlocal told_s
            line = f"run {number} of {total}, {run}, step {step}"
            if status is not None:
                status.update(escape(line))
            elif time.monotonic() - told_s > _TELL_EVERY_S:
                told_s = time.monotonic()
                print_note(line)

        yield tell
