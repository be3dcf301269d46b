"""Sections of pages of a run, as HTML: verdict, diagnoses, findings, rules, scalars, time, settings.

Everything that comes from the run is escaped.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from watchglass.records import Diagnosis, Finding, RankedCause, RuleStatus, Status, Verdict, count
from watchglass.view.capture_cost import capture_lines
from watchglass.view.failure import failure_lines
from watchglass.view.page import table_html
from watchglass.view.pictures import Lines, picture_html
from watchglass.view.settings import setting_rows
from watchglass.view.text import duration, escaped, number, percent
from watchglass.view.time_figures import duration_rows, usage_rows
from watchglass.view.time_tables import code_tables
from watchglass.view.verdict import tone
from watchglass.view.verdict_sentences import chain, closing, examined, findings_of, headline, silent_rules, since

if TYPE_CHECKING:
    from watchglass.run import Run

#: A sign of each severity beside its colour; "" means no finding.
SYMBOLS = {"error": "✖", "warning": "▲", "info": "●", "": "✔"}

#: Most rows of the findings table; a reader does not go through more of them one by one.
_MAX_FINDINGS = 500
#: Evidence of at most this many sentences is shown unfolded.
_OPEN_EVIDENCE = 6


def summary_html(run: Run, verdict: Verdict, *, live: bool = False) -> str:
    """The verdict in one line, and what else is known about the run; rules without an answer are folded.

    Args:
        run: The run.
        verdict: Its verdict.
        live: Whether the run goes on while the page is read, see :func:`live_tone`.
    """
    severity = live_tone(verdict) if live else tone(verdict)
    seams = (str(seam) for seam in run.seams)
    shown = (*(text for _, text in failure_lines(verdict)), *closing(verdict, reasons=False), *seams)
    lines = _items(shown)
    for words, reasons in silent_rules(verdict).items():
        lines += f"<li><details><summary>{escaped(words)}</summary><ul>{_items(reasons)}</ul></details></li>"
    return (
        f'<header class="{severity or "healthy"}"><p class="brand">watchglass</p>'
        f"<h1><span aria-hidden='true'>{SYMBOLS[severity]}</span> {escaped(headline(verdict))}</h1>"
        f'<p class="path">{escaped(verdict.run)}</p><ul class="facts">{lines}</ul></header>'
    )


def live_tone(verdict: Verdict) -> str:
    """:func:`tone` for who looks at a run that goes on: that it has not ended is no reason to worry."""
    return "info" if verdict.status == "incomplete" else tone(verdict)


def diagnoses_html(verdict: Verdict) -> list[str]:
    """Each diagnosis with its causes, their evidence, the symptoms and what to try."""
    return [_diagnosis(item, verdict) for item in verdict.diagnoses]


def _diagnosis(diagnosis: Diagnosis, verdict: Verdict) -> str:
    causes = "".join(f"<li>{_cause(ranked, rank)}</li>" for rank, ranked in enumerate(diagnosis.causes, 1))
    parts = [
        f'<article class="{diagnosis.severity.value}"><h3>{escaped(diagnosis.headline)}</h3><dl>',
        f"<dt>First in</dt><dd><code>{escaped(diagnosis.subject)}</code></dd>" if diagnosis.subject else "",
        f"<dt>Since</dt><dd>{escaped(since(diagnosis, verdict))}</dd>",
        f"<dt>Likely causes</dt><dd><ol class='causes'>{causes}</ol></dd>" if causes else "",
        _listed("Symptoms, in order", chain(findings_of(diagnosis, verdict)), "ol"),
        _listed("What to try", diagnosis.what_to_try, "ul"),
        "</dl></article>",
    ]
    return "".join(parts)


def _cause(ranked: RankedCause, rank: int) -> str:
    """A cause with the evidence for and against it, collapsed if it is long."""
    cause = ranked.cause
    opened = " open" if len(ranked.evidence) + len(ranked.against) <= _OPEN_EVIDENCE else ""
    evidence = "".join(
        f"<p>{title}</p><ul>{_items(lines)}</ul>"
        for title, lines in (("Evidence for", ranked.evidence), ("Evidence against", ranked.against))
        if lines
    )
    parts = [
        f"<b>{escaped(cause.title)}</b> <span class='score'>{percent(ranked.score)}, from step {ranked.step} on</span>",
        f"<br>{escaped(cause.explanation)}" if cause.explanation else "",
        f"<details{opened}><summary>Evidence</summary>{evidence}</details>" if evidence else "",
        f"<p class='if-so'>If so: {escaped(ranked.what_to_try[0])}</p>" if rank > 1 and ranked.what_to_try else "",
        f"<small>Source: {escaped(cause.source)}</small>" if cause.source else "",
    ]
    return "".join(parts)


def _items(lines: Iterable[str]) -> str:
    return "".join(f"<li>{escaped(line)}</li>" for line in lines)


def _listed(title: str, lines: Sequence[str], kind: str) -> str:
    if not lines:
        return ""
    return f"<dt>{title}</dt><dd><{kind}>{_items(lines)}</{kind}></dd>"


def time_tables_html(run: Run) -> list[str]:
    """Durations of steps, and, folded, modules, operators of profiled steps and the metrics of machines."""
    durations, usage = duration_rows(run), usage_rows(run)
    head = ("steps", "number", "in total", "mean", "median", "99th percentile", "longest", "at step")
    tables = [table_html(head, durations)] if durations else []
    tables += [f"<details><summary>{title}</summary>{table}</details>" for title, table in code_tables(run)]
    if usage:
        rows = [tuple(map(escaped, row)) for row in usage]
        table = table_html(("metric", "mean", "95th percentile", "maximum"), rows)
        tables.append(f"<details><summary>All metrics of the machine</summary>{table}</details>")
    return tables


def scalars_html(figures: Sequence[Lines], more: int) -> Sequence[str]:
    """Small figures side by side."""
    if not figures:
        return ()
    note = f"<p>{count(more, 'further series', 'further series')}; run.scalars(name) returns them.</p>" if more else ""
    parts = "".join(map(picture_html, figures))
    return (f'<div class="small">{parts}</div>', note)


def settings_html(run: Run) -> Sequence[str]:
    """Command and settings of the run."""
    command = f"<code>{escaped(' '.join(run.manifest.command))}</code>"
    rows = [(name, escaped(text)) for name, text in setting_rows(run)]
    return (table_html((), [("Command", command), *rows]),)


def findings_html(findings: Sequence[Finding]) -> str:
    """The findings as a table, of very many the worst."""
    rows = [
        (
            f'<span class="tag {finding.severity.value}">{finding.severity.value}</span>',
            escaped(finding.rule),
            f"{finding.step}" if finding.last_step == finding.step else f"{finding.step} to {finding.last_step}",
            escaped(finding.mode.name),
            escaped(finding.worker or "all workers"),
            "".join(f"<code>{escaped(name)}</code> " for name in finding.tensors[:3])
            + (f"and {len(finding.tensors) - 3} more" if len(finding.tensors) > 3 else ""),
            escaped(number(finding.value)),
            escaped(number(finding.limit)),
            escaped(finding.message),
        )
        for finding in findings[:_MAX_FINDINGS]
    ]
    left_out = len(findings) - len(rows)
    note = f"<p>{left_out} more are in the run; watchglass check --format json lists them all.</p>" if left_out else ""
    head = ("severity", "rule", "steps", "mode", "worker", "tensors", "value", "limit", "finding")
    return f'<div class="findings">{table_html(head, rows)}</div>{note}'


def statuses_html(statuses: Sequence[RuleStatus]) -> str:
    """The status of each rule as a table, with the reason."""
    words = {Status.STARVED: "its data was not captured", Status.NOT_APPLICABLE: "does not apply to this run"}
    rows = [
        (escaped(item.rule), escaped(item.status.value), escaped(item.reason or words.get(item.status, "")))
        for item in statuses
    ]
    return table_html(("rule", "status", "reason"), rows)


def facts_html(run: Run, verdict: Verdict) -> str:
    """What the run is: its length, attempts, version, the cost of its capture."""
    manifest = run.manifest
    created = time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(manifest.created_ns / 1e9))
    rows = [
        ("Run", f"<code>{escaped(manifest.run_id)}</code>"),
        ("Started", escaped(created)),
        ("Length", escaped(duration(verdict.seconds))),
        ("Training steps", escaped(f"{verdict.train_steps:,}{examined(verdict)}")),
        ("Attempts and workers", f"{len(run.attempts)} and {len(run.workers)}"),
        ("Written by", f"watchglass {escaped(manifest.version)}, format {manifest.format[0]}.{manifest.format[1]}"),
        *(("Capture", escaped(line)) for line in capture_lines(verdict.capture)),
        *(("Damaged", escaped(str(problem))) for problem in run.problems),
    ]
    return table_html((), rows)
