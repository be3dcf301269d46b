"""``watchglass backtest``: the steps at which a rule would have fired on stored runs, and its scores.

The result is printed as tables for people, or as JSON or CSV for programs.
"""

from __future__ import annotations

import csv
import io
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any, NamedTuple

import typer

from watchglass import evaluate, view
from watchglass.cli.declaring import argument, option
from watchglass.cli.evaluator_options import Calibration, RuleTimeout
from watchglass.cli.failure import CLEAN, COULD_NOT, INTERRUPTED, print_note, print_warning
from watchglass.cli.shared_options import AsJson, check_choice, format_of
from watchglass.cli.sweep_option import parse_sweeps
from watchglass.cli.terminal import stderr_console
from watchglass.config import CALIBRATIONS, RuleSpec, local_path, scheme_of
from watchglass.errors import InvalidValueError, MissingFileError, in_a_line
from watchglass.records import Severity, Status, count

_RUN_COLUMNS = (
    "run", "sick", "since_step", "fired", "first_step", "last_step", "count", "severity", "worker", "outcome", "delay",
    "status",
)  # fmt: skip
_SCORE_COLUMNS = (
    "recall", "false_alarm_rate", "precision", "median_delay", "worst_delay", "found", "missed", "early",
    "false_alarms", "sick", "healthy", "fired",
)  # fmt: skip


#: First characters of cells that a spreadsheet evaluates as formulas; text of a run gets a quote before them.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")

RuleName = Annotated[
    str, argument("RULE", "A rule from 'watchglass rules', or FILE.py:CLASS, with optional :PARAM=VALUE,...")
]
RunPaths = Annotated[list[str], argument("RUNS", "Runs, folders or prefixes of runs, or patterns such as 'runs/lr-*'.")]
Labels = Annotated[
    str | None, option("--labels FILE", "Labels of the runs: CSV, JSON or TOML with the fields run, sick, since_step.")
]
Sweeps = Annotated[
    list[str] | None,
    option("--sweep PARAM=V1,V2|A..B/N", "Values of a parameter to try. Repeatable; every combination is tried."),
]
Counted = Annotated[str, option("--severity warning|error|info", "Lowest severity of findings that count.")]
Tolerance = Annotated[
    int, option("--tolerance STEPS", "A finding up to this many steps before since_step is not a false alarm.", min=0)
]
OutputFormat = Annotated[str, option("--format text|json|csv", "Format of the output: for people or for programs.")]


class Backtest(NamedTuple):
    """The results of a back-test."""

    specs: tuple[RuleSpec, ...]  #: The rule with each combination of parameters.
    swept: tuple[str, ...]  #: Names of the parameters that differ.
    runs: list[evaluate.TestedRun]  #: The results for each run.
    labels: dict[str, evaluate.Label]  #: The labels, by location of the run.
    tolerance: int  #: See ``--tolerance``.
    severity: str  #: Lowest severity that counts.
    labelled: bool  #: Whether there are labels at all.


def backtest(
    context: typer.Context,
    rule: RuleName,
    runs: RunPaths,
    labels: Labels = None,
    sweep: Sweeps = None,
    severity: Counted = "warning",
    tolerance: Tolerance = 0,
    calibration: Calibration = "default",
    output: OutputFormat = "text",
    as_json: AsJson = False,
    rule_timeout: RuleTimeout = 30.0,
) -> int:
    """Show where a rule would have fired on stored runs.

    With --labels, also show recall, false alarms and delay. With --sweep, show them for each combination of parameters
    and mark the combinations that no other one beats. Each run is read once and does not change. The exit status is 0,
    or 2 if a run could not be read or the rule failed; the other results are shown nevertheless.
    """
    check_choice("--severity", severity, tuple(each.value for each in Severity))
    output = format_of(output, as_json, ("text", "json", "csv"))
    check_choice("--calibration", calibration, CALIBRATIONS)
    from watchglass.rules import build_rule

    spec = _rule(rule)
    sweeps = parse_sweeps(sweep or (), spec)
    specs = evaluate.combinations(spec, sweeps)
    for each in specs:  # refuse invalid parameters before a run is read
        build_rule(each, calibration)
    known = evaluate.read_labels(labels) if labels is not None else []
    locations, problems = find_runs(runs)
    by_run, others = evaluate.labels_of_runs(known, [*locations, *problems])
    if others:
        more = ", ..." if len(others) > 3 else ""
        print_note(f"{count(len(others), 'label')} for runs that are not among RUNS: {', '.join(others[:3])}{more}")

    def one(run: str, progress: Callable[[int], None]) -> evaluate.TestedRun:
        return evaluate.tested(
            run, specs, calibration=calibration, severity=Severity(severity), rule_timeout_s=rule_timeout,
            progress=progress,
        )  # fmt: skip

    results, interrupted = _each(locations, one, problems, context.obj.progress_s)
    found = Backtest(specs, tuple(sweeps), results, by_run, tolerance, severity, labels is not None)
    typer.echo(printed(found, output), nl=False)
    failed = _report_problems(results, problems)
    if interrupted:
        print_note(f"interrupted after {len(results)} of {count(len(locations), 'run')}")
        return INTERRUPTED
    return COULD_NOT if failed else CLEAN


def find_runs(places: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Locations of runs without duplicates, by place and then by name; and unreadable runs with the reason.

    Raises:
        MissingFileError: A place that does not exist or holds no runs.
    """
    found: dict[str, str] = {}
    for place in places:
        matches = _expanded(place)
        before = len(found)
        for match in matches:
            found.update(_runs_at(match, only=len(matches) == 1))
        if len(found) == before and not any(match in found for match in matches):
            raise MissingFileError(f"{place} holds no further runs")
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
    """The matches of a pattern of the local file system; the place itself if it is no pattern."""
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
    locations: Sequence[str],
    one: Callable[[str, Callable[[int], None]], evaluate.TestedRun],
    problems: dict[str, str],
    progress_s: float,
) -> tuple[list[evaluate.TestedRun], bool]:
    """The results of the readable runs, and whether Ctrl-C interrupted the back-test."""
    results: list[evaluate.TestedRun] = []
    with _progress(len(locations), progress_s) as report:
        for number, run in enumerate(locations, 1):
            report(number, run, 0)
            try:
                results.append(one(run, partial(report, number, run)))
            except KeyboardInterrupt:
                return results, True
            except Exception as error:  # an error in one run must not end the test of the others
                problems[run] = in_a_line(error)
    return results, False


def _report_problems(results: Sequence[evaluate.TestedRun], problems: dict[str, str]) -> bool:
    """Print the problems of the runs; returns whether there were any."""
    lines = [f"{run} skipped: {reason}" for run, reason in problems.items()]
    for result in results:
        lines += [f"{result.run}: {problem}" for problem in result.problems]
        errors = [f.status.reason for f in result.firings if f.status.status is Status.ERROR]
        if errors:
            lines.append(f"the rule failed on {result.run}: {errors[0].strip().splitlines()[-1]}")
    for line in lines:
        print_warning(line)
    return bool(lines)


@contextmanager
def _progress(total: int, every_s: float) -> Iterator[Callable[[int, str, int], None]]:
    """A function that reports the run being read: in a changing line on a terminal, else in a line now and then."""
    from rich.markup import escape

    reported_s = time.monotonic()
    with stderr_console().status("reading runs") if sys.stderr.isatty() else nullcontext() as status:

        def report(number: int, run: str, step: int) -> None:
            nonlocal reported_s
            line = f"run {number} of {total}, {run}, step {step}"
            if status is not None:
                status.update(escape(line))
            elif time.monotonic() - reported_s > every_s:
                reported_s = time.monotonic()
                print_note(line)

        yield report


def printed(test: Backtest, output: str) -> str:
    """The result in one of the formats ``text``, ``json``, ``csv``; ends with a line feed."""
    return {"text": _text, "json": _json, "csv": _csv}[output](test)


def _scores(test: Backtest) -> list[evaluate.Score]:
    return [
        evaluate.score({run.run: run.firings[number] for run in test.runs}, test.labels, test.tolerance)
        for number in range(len(test.specs))
    ]


def _row(test: Backtest, run: evaluate.TestedRun, firing: evaluate.Firing) -> dict[str, Any]:
    label = test.labels.get(run.run)
    outcome, delay = evaluate.judge(firing, label, test.tolerance)
    return {
        "run": run.run,
        "sick": None if label is None else label.sick,
        "since_step": None if label is None else label.since_step,
        "fired": firing.fired,
        "first_step": firing.first_step,
        "last_step": firing.last_step,
        "count": firing.count,
        "severity": None if firing.severity is None else firing.severity.value,
        "worker": firing.worker or None,
        "outcome": None if outcome is evaluate.BacktestOutcome.UNLABELLED else outcome.value,
        "delay": delay,
        "status": firing.status.status.value,
    }


def _json(test: Backtest) -> str:
    scores = _scores(test)
    best = evaluate.front(scores)
    result = {
        "rule": test.specs[0].name,
        "severity": test.severity,
        "tolerance": test.tolerance,
        "combinations": [
            {
                "parameters": spec.parameters,
                **({**asdict(found), "pareto": on_front} if test.labelled else {"fired": found.fired}),
                "runs": [_row(test, run, run.firings[number]) for run in test.runs],
            }
            for number, (spec, found, on_front) in enumerate(zip(test.specs, scores, best, strict=True))
        ],
    }
    return view.harmless_json(json.dumps(result, indent=2, allow_nan=False)) + "\n"


def _csv(test: Backtest) -> str:
    """A row per run; of a sweep a row per combination."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    if not test.swept:
        writer.writerow(_RUN_COLUMNS)
        for run in test.runs:
            row = _row(test, run, run.firings[0])
            writer.writerow([_plain(row[name]) for name in _RUN_COLUMNS])
        return out.getvalue()
    scores = _scores(test)
    writer.writerow([*test.swept, *_SCORE_COLUMNS, "pareto"])
    for spec, found, on_front in zip(test.specs, scores, evaluate.front(scores), strict=True):
        numbers = asdict(found)
        cells = [*_swept(test, spec), *(numbers[name] for name in _SCORE_COLUMNS), on_front]
        writer.writerow(map(_plain, cells))
    return out.getvalue()


def _plain(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str) and value.startswith(_FORMULA) and not _is_number(value):
        return f"'{value}"
    return "" if value is None else value


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _text(test: Backtest) -> str:
    parts = [_sweep_table(test)] if test.swept else [_run_table(test)]
    if test.labelled and not test.swept:
        parts.append(_sentences(test, _scores(test)[0]))
    parts.append(_unanswered(test))
    return "\n".join(part for part in parts if part)


def _unanswered(test: Backtest) -> str:
    """The number of runs that the rule could not evaluate, with the first reason; "" for none."""
    silent = evaluate.unanswered(firing for run in test.runs for firing in run.firings[:1])
    if not silent:
        return ""
    kinds = " or ".join(sorted({status.status.value for status in silent}))
    reasons = [status.reason.strip() for status in silent if status.reason.strip()]
    why = f"\n{'First reason: ' if len(silent) > 1 else 'Reason: '}{_line(reasons[0])}" if reasons else ""
    return f"The rule could not evaluate {len(silent)} of {count(len(test.runs), 'run')} ({kinds}).{why}\n"


def _line(reason: str) -> str:
    """The last line of a traceback, or another reason in full."""
    return view.printable(reason.splitlines()[-1])


def _run_table(test: Backtest) -> str:
    columns = ["run", "first", "last", "count", "found"]
    columns[1:1] = ["label", "outcome", "delay"] if test.labelled else []
    if any(run.firings[0].worker not in ("", "worker_0") for run in test.runs):
        columns.append("worker")
    rows = []
    for run in test.runs:
        found = _row(test, run, run.firings[0])
        label = "-" if found["sick"] is None else "sick" if found["sick"] else "healthy"
        if found["since_step"] is not None:
            label = f"sick since {found['since_step']}"
        cells = {
            "run": run.run, "label": label, "outcome": found["outcome"], "delay": found["delay"],
            "first": found["first_step"], "last": found["last_step"], "count": found["count"] or None,
            "found": _found(run.firings[0]), "worker": found["worker"],
        }  # fmt: skip
        rows.append([cells[name] for name in columns])
    return _table(columns, rows)


def _found(firing: evaluate.Firing) -> str:
    """The result for a run in a word: the worst severity found, or the status of a rule without a result."""
    if firing.severity is not None:
        return firing.severity.value
    return "nothing" if not evaluate.unanswered([firing]) else firing.status.status.value


def _sweep_table(test: Backtest) -> str:
    scores = _scores(test)
    if not test.labelled:
        rows = [
            [*_swept(test, spec), f"{s.fired} of {len(test.runs)}"] for spec, s in zip(test.specs, scores, strict=True)
        ]
        return _table([*test.swept, "fired on"], rows)
    early = any(each.early for each in scores)
    columns = [
        *test.swept, "recall", "false alarms", "precision", *(["early"] if early else ()), "delay", "worst", "best",
    ]  # fmt: skip
    rows = [
        [
            *_swept(test, spec), _percent(s.recall, s.found, s.sick),
            _percent(s.false_alarm_rate, s.false_alarms, s.healthy), _percent(s.precision),
            *([s.early or None] if early else ()), s.median_delay, s.worst_delay, "*" if on_front else "",
        ]
        for spec, s, on_front in zip(test.specs, scores, evaluate.front(scores), strict=True)
    ]  # fmt: skip
    sick, healthy = scores[0].sick, scores[0].healthy
    unlabelled = len(test.runs) - sick - healthy
    beside = f"; not counted: {unlabelled} without a label" if unlabelled else ""
    counted = f"{count(sick, 'sick run')}, {count(healthy, 'healthy one')}{beside}"
    return (
        f"{_table(columns, rows)}\n{counted}.\n"
        "* no other combination is as good in both and better in one. Delays: median and worst, in steps.\n"
    )


def _sentences(test: Backtest, found: evaluate.Score) -> str:
    lines = [
        f"recall        {_percent(found.recall, found.found, found.sick)} of sick runs"
        + (f", {found.early} more too early" if found.early else ""),
        f"false alarms  {_percent(found.false_alarm_rate, found.false_alarms, found.healthy)} of healthy runs",
        f"precision     {_percent(found.precision)}",
    ]
    if found.median_delay is not None:
        steps = "step" if found.median_delay == 1 else "steps"
        lines.append(f"delay         median {found.median_delay:g} {steps}, worst {found.worst_delay}")
    unlabelled = len(test.runs) - found.sick - found.healthy
    if unlabelled:
        lines.append(f"not counted   {unlabelled} without a label")
    return "\n".join(lines) + "\n"


def _swept(test: Backtest, spec: RuleSpec) -> list[Any]:
    return [spec.parameters[name] for name in test.swept]


def _percent(share: float | None, part: int | None = None, whole: int | None = None) -> str:
    if share is None:
        return "-"
    counts = f" ({part}/{whole})" if part is not None else ""
    return f"{100 * share:.3g} %{counts}"


def _table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Columns as wide as their content, without line breaks, for grep."""
    cells = [list(columns), *([view.printable(_cell(value)) for value in row] for row in rows)]
    widths = [max(len(row[index]) for row in cells) for index in range(len(columns))]
    return "".join("  ".join(map(str.ljust, row, widths)).rstrip() + "\n" for row in cells)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:g}" if isinstance(value, float) else str(value)
