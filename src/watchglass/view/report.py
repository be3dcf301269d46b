"""The report: one HTML file that opens anywhere, with no network, today and in ten years."""

from __future__ import annotations

import hashlib
import os
import re
from base64 import b64encode
from collections.abc import Sequence
from functools import cache
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from watchglass.records import Diagnosis, Finding, RankedCause, RuleStatus, Status, Verdict, count
from watchglass.view.capture_cost import capture_lines
from watchglass.view.failure import failure_lines
from watchglass.view.figures import run_figures, scalar_figures
from watchglass.view.output_file import check_output_path, write_whole
from watchglass.view.settings import setting_rows
from watchglass.view.text import duration, number, percent, printable, size
from watchglass.view.time_figures import (
    OPERATOR_TITLES,
    duration_rows,
    module_rows,
    operator_rows,
    time_figures,
    usage_rows,
)
from watchglass.view.verdict import tone
from watchglass.view.verdict_sentences import chain, closing, findings_of, headline, since

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from watchglass.run import Run

#: Where plotly's script holds a style of its maps, which it adds to every page.
_STYLE_IN_SCRIPT = re.compile(r"""createElement\("style"\);\w+\.id="\w+",\w+\.textContent='([^'\\]*)'""")
_SYMBOLS = {"error": "✖", "warning": "▲", "info": "●", "": "✔"}

#: Most rows of the findings table; a reader does not go through more of them one by one.
_MAX_FINDINGS = 500
#: Evidence of at most this many sentences is shown unfolded.
_OPEN_EVIDENCE = 6


def write_report(run: Run, verdict: Verdict, path: str | os.PathLike[str], *, replace: bool = False) -> int:
    """Write the report of a run and return its size in bytes.

    Args:
        run: The run, for figures and facts.
        verdict: Its verdict.
        path: The file; it appears whole or not at all.
        replace: Overwrite a file that is there.

    Raises:
        RunExistsError: The file exists, and ``replace`` is not given.
        StoreError: It cannot be written.
    """
    target = check_report_path(path, replace=replace)
    return write_whole(target, render_report(run, verdict).encode(), option="-o")


def check_report_path(path: str | os.PathLike[str], *, replace: bool = False) -> Path:
    """The path of a report to be written, its folder made.

    Raises:
        RunExistsError: It exists, and ``replace`` is not given.
        InvalidValueError: It is a folder.
        StoreError: Its folder cannot be made or written.
    """
    return check_output_path(path, replace=replace, cure="watchglass report --force", example="report.html")


def render_report(run: Run, verdict: Verdict) -> str:
    """The whole page. Everything that comes from the run is escaped; plotly's script is inlined once."""
    title = f"watchglass: {verdict.status} in {verdict.run}"
    figures = run_figures(run, verdict.findings)
    times = time_figures(run, verdict.findings)
    scalars, more = scalar_figures(run)
    whose = f", {_text(run.worker().name)}" if len(run.workers) > 1 else ""
    body = "".join(
        (
            _summary(run, verdict),
            *_sections("Diagnoses", [_diagnosis(item, verdict) for item in verdict.diagnoses]),
            *_sections("Figures", _figures(0, figures)),
            *_sections(f"Saved by the script{whose}", _scalars(len(figures), scalars, more)),
            *_sections("Time", [*_figures(len(figures) + len(scalars), times), *_time_tables(run)]),
            *_sections("Findings", [_findings_table(verdict.findings)] if verdict.findings else []),
            *_sections("Rules", [_statuses_table(verdict.statuses)] if verdict.statuses else []),
            *_sections("Settings", _settings(run)),
            *_sections("Run", [_facts_table(run, verdict)]),
        )
    )
    scripts = [_plotly_script(), _asset("report.js")] if figures or scalars or times else []
    style = _asset("report.css")
    page = _asset("report.html")
    for mark, text in (
        ("SCRIPTS", _allowed(scripts)),
        ("STYLES", _allowed([style, *(_plotly_styles(scripts[0]) if scripts else [])])),
        ("TITLE", _text(title)),
        ("STYLE", style),
        ("SCRIPT", "".join(f"<script>{script}</script>" for script in scripts)),
        ("BODY", body),
    ):
        head, found, tail = page.partition(f"<!--{mark}-->")
        assert found, mark
        page = head + text + tail
    return page.replace("<!--SIZE-->", size(len(page.encode())), 1)


def _sections(title: str, parts: Sequence[str]) -> Sequence[str]:
    return [f"<section><h2>{title}</h2>", *parts, "</section>"] if parts else []


def _summary(run: Run, verdict: Verdict) -> str:
    severity = tone(verdict)
    failure = failure_lines(verdict.failure) if verdict.failure is not None else ()
    shown = (*(text for _, text in failure), *closing(verdict), *(str(seam) for seam in run.seams))
    lines = "".join(f"<li>{_text(line)}</li>" for line in shown)
    return (
        f'<header class="{severity or "healthy"}"><p class="brand">watchglass</p>'
        f"<h1><span aria-hidden='true'>{_SYMBOLS[severity]}</span> {_text(headline(verdict))}</h1>"
        f'<p class="path">{_text(verdict.run)}</p><ul class="facts">{lines}</ul></header>'
    )


def _diagnosis(diagnosis: Diagnosis, verdict: Verdict) -> str:
    causes = "".join(f"<li>{_cause(ranked, rank)}</li>" for rank, ranked in enumerate(diagnosis.causes, 1))
    parts = [
        f'<article class="{diagnosis.severity.value}"><h3>{_text(diagnosis.headline)}</h3><dl>',
        f"<dt>First in</dt><dd><code>{_text(diagnosis.subject)}</code></dd>" if diagnosis.subject else "",
        f"<dt>Since</dt><dd>{_text(since(diagnosis, verdict))}</dd>",
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
        f"<p>{title}</p><ul>{''.join(f'<li>{_text(line)}</li>' for line in lines)}</ul>"
        for title, lines in (("Evidence for", ranked.evidence), ("Evidence against", ranked.against))
        if lines
    )
    parts = [
        f"<b>{_text(cause.title)}</b> <span class='score'>{percent(ranked.score)}, from step {ranked.step} on</span>",
        f"<br>{_text(cause.explanation)}" if cause.explanation else "",
        f"<details{opened}><summary>Evidence</summary>{evidence}</details>" if evidence else "",
        f"<p class='if-so'>If so: {_text(ranked.what_to_try[0])}</p>" if rank > 1 and ranked.what_to_try else "",
        f"<small>Source: {_text(cause.source)}</small>" if cause.source else "",
    ]
    return "".join(parts)


def _listed(title: str, lines: Sequence[str], kind: str) -> str:
    if not lines:
        return ""
    return f"<dt>{title}</dt><dd><{kind}>{''.join(f'<li>{_text(line)}</li>' for line in lines)}</{kind}></dd>"


def _figure(index: int, caption: str, figure: go.Figure) -> str:
    # "<" cannot end the script element early when it is written as an escape of JSON.
    data = figure.to_json().replace("<", "\\u003c")
    return (
        f'<figure><div class="plot" id="figure-{index}" data-source="data-{index}"></div>'
        f'<script type="application/json" id="data-{index}">{data}</script>'
        + (f"<figcaption>{_text(caption)}</figcaption></figure>" if caption else "</figure>")
    )


def _figures(first: int, figures: Sequence[tuple[str, go.Figure]]) -> list[str]:
    return [_figure(first + index, caption, figure) for index, (caption, figure) in enumerate(figures)]


def _time_tables(run: Run) -> list[str]:
    """Durations of steps, and, folded, modules, operators of profiled steps and the metrics of machines."""
    durations, usage = duration_rows(run), usage_rows(run)
    head = ("steps", "number", "in total", "mean", "median", "99th percentile", "longest", "at step")
    tables = [_table(head, durations)] if durations else []
    times = run.module_times()
    if len(times):
        rows = [tuple(map(_text, row)) for row in module_rows(times)]
        names = ("module", "type", "calls", "forward", "backward", "share", "with submodules", "backward")
        where = ", times of the device" if times.on_device else ""
        steps = f"{count(len(times.steps), 'step')} that were timed{where}"
        tables.append(f"<details><summary>Modules, per step, in {steps}</summary>{_table(names, rows)}</details>")
    for operators in run.operators():
        rows = [tuple(map(_text, row)) for row in operator_rows(operators)]
        table = _table(OPERATOR_TITLES, rows)
        steps = f"{operators.steps.start:,} up to {operators.steps.stop:,}"
        tables.append(f"<details><summary>Operators of training steps {steps}, per step</summary>{table}</details>")
    if usage:
        rows = [tuple(map(_text, row)) for row in usage]
        table = _table(("metric", "mean", "95th percentile", "maximum"), rows)
        tables.append(f"<details><summary>All metrics of the machine</summary>{table}</details>")
    return tables


def _scalars(first: int, figures: Sequence[go.Figure], more: int) -> Sequence[str]:
    """Small figures side by side."""
    if not figures:
        return ()
    note = f"<p>{count(more, 'further series', 'further series')}; run.scalars(name) returns them.</p>" if more else ""
    parts = "".join(_figure(first + index, "", figure) for index, figure in enumerate(figures))
    return (f'<div class="small">{parts}</div>', note)


def _settings(run: Run) -> Sequence[str]:
    command = f"<code>{_text(' '.join(run.manifest.command))}</code>"
    rows = [(name, _text(text)) for name, text in setting_rows(run)]
    return (_table((), [("Command", command), *rows]),)


def _findings_table(findings: Sequence[Finding]) -> str:
    rows = [
        (
            f'<span class="tag {finding.severity.value}">{finding.severity.value}</span>',
            _text(finding.rule),
            f"{finding.step}" if finding.last_step == finding.step else f"{finding.step} to {finding.last_step}",
            _text(finding.mode.name),
            _text(finding.worker or "all workers"),
            "".join(f"<code>{_text(name)}</code> " for name in finding.tensors[:3])
            + (f"and {len(finding.tensors) - 3} more" if len(finding.tensors) > 3 else ""),
            _text(number(finding.value)),
            _text(number(finding.limit)),
            _text(finding.message),
        )
        for finding in findings[:_MAX_FINDINGS]
    ]
    left_out = len(findings) - len(rows)
    note = f"<p>{left_out} more are in the run; watchglass check --format json lists them all.</p>" if left_out else ""
    head = ("severity", "rule", "steps", "mode", "worker", "tensors", "value", "limit", "finding")
    return f'<div class="findings">{_table(head, rows)}</div>{note}'


def _statuses_table(statuses: Sequence[RuleStatus]) -> str:
    words = {Status.STARVED: "its data was not captured", Status.NOT_APPLICABLE: "does not apply to this run"}
    rows = [
        (_text(item.rule), _text(item.status.value), _text(item.reason or words.get(item.status, "")))
        for item in statuses
    ]
    return _table(("rule", "status", "reason"), rows)


def _facts_table(run: Run, verdict: Verdict) -> str:
    import time

    manifest = run.manifest
    created = time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(manifest.created_ns / 1e9))
    rows = [
        ("Run", f"<code>{_text(manifest.run_id)}</code>"),
        ("Started", _text(created)),
        ("Length", _text(duration(verdict.seconds))),
        ("Training steps", f"{verdict.train_steps:,}"),
        ("Attempts and workers", f"{len(run.attempts)} and {len(run.workers)}"),
        ("Written by", f"watchglass {_text(manifest.version)}, format {manifest.format[0]}.{manifest.format[1]}"),
        *(("Capture", _text(line)) for line in capture_lines(verdict.capture)),
        *(("Damaged", _text(str(problem))) for problem in run.problems),
    ]
    return _table((), rows)


def _text(foreign: str) -> str:
    """Text as HTML that shows it in one line, without any effect on the text around it."""
    return escape(printable(foreign))


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    top = f"<thead><tr>{''.join(f'<th>{name}</th>' for name in head)}</tr></thead>" if head else ""
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="wide"><table>{top}<tbody>{body}</tbody></table></div>'


def _allowed(parts: Sequence[str]) -> str:
    """The policy that allows exactly these scripts or styles, so that text of a run in the page is never executed."""
    hashes = (b64encode(hashlib.sha256(part.encode()).digest()).decode() for part in parts)
    return " ".join(f"'sha256-{each}'" for each in hashes) or "'none'"


def _plotly_styles(script: str) -> list[str]:
    """The style elements that plotly makes: one that it then fills rule by rule, and those that its script holds."""
    return ["", *_STYLE_IN_SCRIPT.findall(script)]


def _plotly_script() -> str:
    from plotly.offline import get_plotlyjs

    # A browser reads every end of a line as "\n", and the policy has the hash of what it read.
    script = str(get_plotlyjs()).replace("\r\n", "\n").replace("\r", "\n")
    return script.replace("</script", "<\\/script")


@cache
def _asset(name: str) -> str:
    return Path(__file__).with_name("assets").joinpath(name).read_text(encoding="utf-8")
