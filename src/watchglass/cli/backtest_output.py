"""What ``watchglass backtest`` prints: tables for people, JSON and CSV for programs."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from watchglass.config import RuleSpec
from watchglass.evaluate import Firing, Label, Outcome, Score, TestedRun, front, judge, score, unanswered
from watchglass.records import count
from watchglass.view import harmless_json, printable

_RUN_COLUMNS = (
    "run", "sick", "since_step", "fired", "first_step", "last_step", "count", "severity", "worker", "outcome", "delay",
    "status",
)  # fmt: skip
_SCORE_COLUMNS = (
    "recall", "false_alarm_rate", "precision", "median_delay", "worst_delay", "found", "missed", "early",
    "false_alarms", "sick", "healthy", "fired",
)  # fmt: skip


#: How a cell begins that a spreadsheet computes: one that is text of a run gets a quote before it.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


class Backtest(NamedTuple):
    """What is printed.

    Attributes:
        specs: The rule with each combination of parameters.
        swept: Names of the parameters that differ.
        runs: What came of each run.
        labels: What is known, by location of the run.
        tolerance: See ``--tolerance``.
        severity: Least severity that counts.
        labelled: Whether there are labels at all.
    """

    specs: tuple[RuleSpec, ...]
    swept: tuple[str, ...]
    runs: list[TestedRun]
    labels: dict[str, Label]
    tolerance: int
    severity: str
    labelled: bool


def printed(test: Backtest, output: str) -> str:
    """The result in one of the formats ``text``, ``json``, ``csv``; ends with a line feed."""
    return {"text": _text, "json": _json, "csv": _csv}[output](test)


def _scores(test: Backtest) -> list[Score]:
    return [
        score({run.run: run.firings[number] for run in test.runs}, test.labels, test.tolerance)
        for number in range(len(test.specs))
    ]


def _row(test: Backtest, run: TestedRun, firing: Firing) -> dict[str, Any]:
    label = test.labels.get(run.run)
    outcome, delay = judge(firing, label, test.tolerance)
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
        "outcome": None if outcome is Outcome.UNLABELLED else outcome.value,
        "delay": delay,
        "status": firing.status.status.value,
    }


def _json(test: Backtest) -> str:
    scores = _scores(test)
    best = front(scores)
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
    return harmless_json(json.dumps(result, indent=2, allow_nan=False)) + "\n"


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
    for spec, found, on_front in zip(test.specs, scores, front(scores), strict=True):
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
    """Of how many runs the rule could say nothing, and why of the first of them; "" for none."""
    silent = unanswered(firing for run in test.runs for firing in run.firings[:1])
    if not silent:
        return ""
    kinds = " or ".join(sorted({status.status.value for status in silent}))
    reasons = [status.reason.strip() for status in silent if status.reason.strip()]
    why = f"\n{'The first because: ' if len(silent) > 1 else 'Because: '}{_line(reasons[0])}" if reasons else ""
    return f"The rule could say nothing of {len(silent)} of {count(len(test.runs), 'run')} ({kinds}).{why}\n"


def _line(reason: str) -> str:
    """What a traceback ends with; of any other reason all of it."""
    return printable(reason.splitlines()[-1])


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


def _found(firing: Firing) -> str:
    """What there is to say of a run in a word: the worst that was found, or why nothing could be."""
    if firing.severity is not None:
        return firing.severity.value
    return "nothing" if not unanswered([firing]) else firing.status.status.value


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
        for spec, s, on_front in zip(test.specs, scores, front(scores), strict=True)
    ]  # fmt: skip
    sick, healthy = scores[0].sick, scores[0].healthy
    unlabelled = len(test.runs) - sick - healthy
    beside = f"; not counted: {unlabelled} without a label" if unlabelled else ""
    counted = f"{count(sick, 'sick run')}, {count(healthy, 'healthy one')}{beside}"
    return (
        f"{_table(columns, rows)}\n{counted}.\n"
        "* no other is as good in both and better in one. Delays: median and worst, in steps.\n"
    )


def _sentences(test: Backtest, found: Score) -> str:
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
    """Columns as wide as what is in them, so that a line is a line for grep."""
    cells = [list(columns), *([printable(_cell(value)) for value in row] for row in rows)]
    widths = [max(len(row[index]) for row in cells) for index in range(len(columns))]
    return "".join("  ".join(map(str.ljust, row, widths)).rstrip() + "\n" for row in cells)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:g}" if isinstance(value, float) else str(value)
