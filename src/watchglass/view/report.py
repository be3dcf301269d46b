"""The report: one HTML file that opens anywhere, with no network, today and in ten years."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from watchglass.errors import InvalidValueError, RunExistsError, StoreError
from watchglass.records import Diagnosis, Finding, RuleStatus, Status, Verdict
from watchglass.view.capture import capture_lines
from watchglass.view.figures import run_figures
from watchglass.view.text import duration, number, printable, size
from watchglass.view.verdict import chain, closing, headline, since, worst

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from watchglass.run import Run

_SYMBOLS = {"error": "✖", "warning": "▲", "info": "●", "": "✔"}

#: Rows of the findings table; a run that has more is past reading row by row.
_MAX_FINDINGS = 500


def write_report(run: Run, verdict: Verdict, path: str | os.PathLike[str], *, replace: bool = False) -> int:
    """Write the report of a run and return its size in bytes.

    Args:
        run: The run, for figures and facts.
        verdict: What is said of it.
        path: The file; it appears whole or not at all.
        replace: Overwrite a file that is there.

    Raises:
        RunExistsError: The file exists, and ``replace`` is not given.
        StoreError: It cannot be written.
    """
    target = check_report_path(path, replace=replace)
    data = render_report(run, verdict).encode()
    try:
        descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=".report-")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
            os.chmod(temporary, 0o666 & ~_umask())
            os.replace(temporary, target)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise
    except OSError as error:
        raise StoreError(f"cannot write {target}: {error.strerror or error}; choose another file with -o") from error
    return len(data)


def check_report_path(path: str | os.PathLike[str], *, replace: bool = False) -> Path:
    """The path of a report to be written, its folder made.

    Raises:
        RunExistsError: It exists, and ``replace`` is not given.
        InvalidValueError: It is a folder.
        StoreError: Its folder cannot be made or written.
    """
    target = Path(path)
    if target.is_dir():
        raise InvalidValueError(f"{target} is a folder; name the file to write, for instance {target / 'report.html'}")
    if os.path.lexists(target) and not replace:
        raise RunExistsError(f"{target} exists; choose another file, or overwrite it with watchglass report --force")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"cannot make the folder {target.parent}: {error.strerror or error}") from error
    if not os.access(target.parent, os.W_OK):
        raise StoreError(f"cannot write {target}: its folder does not allow it; choose another file")
    return target


def render_report(run: Run, verdict: Verdict) -> str:
    """The whole page. Everything that comes from the run is escaped; plotly's script is inlined once."""
    title = f"watchglass: {verdict.status} in {printable(verdict.run)}"
    figures = run_figures(run, verdict.findings)
    body = "".join(
        (
            _summary(run, verdict),
            *_sections("Diagnoses", [_diagnosis(item, verdict.findings) for item in verdict.diagnoses]),
            *_sections("Figures", [_figure(index, caption, figure) for index, (caption, figure) in enumerate(figures)]),
            *_sections("Findings", [_findings_table(verdict.findings)] if verdict.findings else []),
            *_sections("Rules", [_statuses_table(verdict.statuses)] if verdict.statuses else []),
            *_sections("Run", [_facts_table(run, verdict)]),
        )
    )
    script = f"<script>{_plotly_script()}</script><script>{_asset('report.js')}</script>" if figures else ""
    page = _asset("report.html")
    for mark, text in (("TITLE", escape(title)), ("STYLE", _asset("report.css")), ("SCRIPT", script), ("BODY", body)):
        head, found, tail = page.partition(f"<!--{mark}-->")
        assert found, mark
        page = head + text + tail
    approximate = size(len(page.encode()))
    return page.replace("<!--SIZE-->", approximate, 1)


def _sections(title: str, parts: Sequence[str]) -> Sequence[str]:
    return [f"<section><h2>{title}</h2>", *parts, "</section>"] if parts else []


def _summary(run: Run, verdict: Verdict) -> str:
    severity = worst(verdict)
    told = (*closing(verdict), *(str(seam) for seam in run.seams))
    lines = "".join(f"<li>{escape(line)}</li>" for line in told)
    return (
        f'<header class="{severity or "healthy"}"><p class="brand">watchglass</p>'
        f"<h1><span aria-hidden='true'>{_SYMBOLS[severity]}</span> {escape(headline(verdict))}</h1>"
        f'<p class="path">{escape(printable(verdict.run))}</p><ul class="facts">{lines}</ul></header>'
    )


def _diagnosis(diagnosis: Diagnosis, findings: Sequence[Finding]) -> str:
    known = {finding.id: finding for finding in findings}
    seen = [known[name] for name in diagnosis.findings if name in known]
    causes = "".join(
        f"<li><b>{escape(ranked.cause.title)}</b> <span class='score'>{100 * ranked.score:.0f} %</span>"
        f"<br>{escape(ranked.cause.explanation)}"
        + (f"<br><small>Source: {escape(ranked.cause.source)}</small>" if ranked.cause.source else "")
        + "</li>"
        for ranked in diagnosis.causes
    )
    parts = [
        f'<article class="{diagnosis.severity.value}"><h3>{escape(diagnosis.headline)}</h3><dl>',
        f"<dt>First in</dt><dd><code>{escape(diagnosis.subject)}</code></dd>" if diagnosis.subject else "",
        f"<dt>Since</dt><dd>{escape(since(diagnosis, seen))}</dd>",
        f"<dt>Likely causes</dt><dd><ol>{causes}</ol></dd>" if causes else "",
        _listed("What was seen, in order", chain(seen), "ol"),
        _listed("What to try", diagnosis.what_to_try, "ul"),
        "</dl></article>",
    ]
    return "".join(parts)


def _listed(title: str, lines: Sequence[str], kind: str) -> str:
    if not lines:
        return ""
    return f"<dt>{title}</dt><dd><{kind}>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</{kind}></dd>"


def _figure(index: int, caption: str, figure: go.Figure) -> str:
    # "<" cannot end the script element early when it is written as an escape of JSON.
    data = figure.to_json().replace("<", "\\u003c")
    return (
        f'<figure><div class="plot" id="figure-{index}" data-source="data-{index}"></div>'
        f'<script type="application/json" id="data-{index}">{data}</script>'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


def _findings_table(findings: Sequence[Finding]) -> str:
    rows = [
        (
            f'<span class="tag {finding.severity.value}">{finding.severity.value}</span>',
            escape(finding.rule),
            f"{finding.step}" if finding.last_step == finding.step else f"{finding.step} to {finding.last_step}",
            escape(finding.mode.name),
            escape(finding.worker),
            "".join(f"<code>{escape(name)}</code> " for name in finding.tensors[:3])
            + (f"and {len(finding.tensors) - 3} more" if len(finding.tensors) > 3 else ""),
            escape(number(finding.value)),
            escape(number(finding.limit)),
            escape(finding.message),
        )
        for finding in findings[:_MAX_FINDINGS]
    ]
    left_out = len(findings) - len(rows)
    note = f"<p>{left_out} more are in the run; watchglass check --format json lists them all.</p>" if left_out else ""
    head = ("severity", "rule", "steps", "mode", "worker", "tensors", "value", "limit", "finding")
    return f'<div class="findings">{_table(head, rows)}</div>{note}'


def _statuses_table(statuses: Sequence[RuleStatus]) -> str:
    words = {Status.STARVED: "its data was not captured", Status.NOT_APPLICABLE: "does not fit this training"}
    rows = [
        (escape(item.rule), escape(item.status.value), escape(item.reason or words.get(item.status, "")))
        for item in statuses
    ]
    return _table(("rule", "status", "reason"), rows)


def _facts_table(run: Run, verdict: Verdict) -> str:
    import time

    manifest = run.manifest
    created = time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(manifest.created_ns / 1e9))
    rows = [
        ("Command", f"<code>{escape(printable(' '.join(manifest.command)))}</code>"),
        ("Run", f"<code>{escape(manifest.run_id)}</code>"),
        ("Begun", escape(created)),
        ("Length", escape(duration(verdict.seconds))),
        ("Training steps", f"{verdict.train_steps:,}"),
        ("Attempts and workers", f"{len(run.attempts)} and {len(run.workers)}"),
        ("Written by", f"watchglass {escape(manifest.version)}, format {manifest.format[0]}.{manifest.format[1]}"),
        *(("Capture", escape(line)) for line in capture_lines(verdict.capture)),
        *(("Damaged", escape(printable(str(problem)))) for problem in run.problems),
    ]
    return _table((), rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    top = f"<thead><tr>{''.join(f'<th>{name}</th>' for name in head)}</tr></thead>" if head else ""
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="wide"><table>{top}<tbody>{body}</tbody></table></div>'


def _plotly_script() -> str:
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs()).replace("</script", "<\\/script")


@cache
def _asset(name: str) -> str:
    return Path(__file__).with_name("assets").joinpath(name).read_text(encoding="utf-8")


def _umask() -> int:
    """The process's file mode mask, which can only be read by setting it."""
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
