"""The report: one HTML file that opens anywhere, with no network, today and in ten years."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from watchglass.records import Verdict
from watchglass.run import Run, open_run
from watchglass.view.block_values import json_blocks
from watchglass.view.blocks import Block, Section, captioned
from watchglass.view.comparison import comparison_page
from watchglass.view.figures import run_figures, scalar_figures
from watchglass.view.formats import Judged, RuleText
from watchglass.view.html_format import page_html
from watchglass.view.json_format import strict_json
from watchglass.view.output_file import check_output_path, write_whole
from watchglass.view.sections import (
    diagnosis_blocks,
    fact_blocks,
    finding_blocks,
    folded_statuses,
    scalar_blocks,
    setting_blocks,
    summary_block,
)
from watchglass.view.timing import no_texts, time_blocks
from watchglass.view.verdict_sentences import headline


def write_report(judged: Judged, path: str | os.PathLike[str], *, replace: bool = False) -> int:
    """Write the page of :func:`html_document` and return its size in bytes.

    Args:
        judged: The run, or the runs, with their verdicts.
        path: The file; it appears whole or not at all.
        replace: Overwrite a file that is there.

    Raises:
        RunExistsError: The file exists, and ``replace`` is not given.
        StoreError: It cannot be written.
    """
    target = check_report_path(path, replace=replace)
    return write_whole(target, html_document(judged).encode(), option="-o")


def check_report_path(path: str | os.PathLike[str], *, replace: bool = False, or_json: bool = False) -> Path:
    """The path of a report to be written, its folder made.

    Args:
        path: The file.
        replace: Whether an existing file may be overwritten.
        or_json: Whether it may be written as JSON, too.

    Raises:
        RunExistsError: It exists, and ``replace`` is not given.
        InvalidValueError: It is a folder, or its name does not end as that of a report.
        StoreError: Its folder cannot be made or written.
    """
    endings = (".html", ".htm", ".json") if or_json else (".html", ".htm")
    return check_output_path(
        path, replace=replace, cure="watchglass report --force", example="report.html", endings=endings
    )


def html_document(judged: Judged) -> str:
    """The page of a run, or of many their comparison; everything that comes from a run is escaped."""
    return page_html(*_page_of(judged))


def report_json(judged: Judged) -> str:
    """What the page shows as JSON: its blocks, each with its type and fields, and pictures with their numbers."""
    title, blocks = _page_of(judged)
    runs = [{"run": each.run, "status": each.status, "headline": headline(each)} for each in judged.verdicts]
    return strict_json({"title": title, "runs": runs, "blocks": json_blocks(blocks)})


def _page_of(judged: Judged) -> tuple[str, Sequence[Block]]:
    """Title and content."""
    if judged.many:
        return f"watchglass: {judged.headline}", comparison_page(judged)
    (verdict,) = judged.verdicts
    run = judged.runs.get(verdict.run) or open_run(verdict.run)
    return _title(verdict), report_blocks(run, verdict, judged.rules)


def render_report(run: Run, verdict: Verdict, rules: Callable[[], Mapping[str, RuleText]] = no_texts) -> str:
    """The whole page; ``rules`` documents those on time. Everything that comes from the run is escaped."""
    return page_html(_title(verdict), report_blocks(run, verdict, rules))


def _title(verdict: Verdict) -> str:
    return f"watchglass: {verdict.status} in {verdict.run}"


def report_blocks(run: Run, verdict: Verdict, rules: Callable[[], Mapping[str, RuleText]] = no_texts) -> list[Block]:
    """The sections of a report."""
    whose = f", {run.worker().name}" if len(run.workers) > 1 else ""
    return [
        summary_block(run, verdict),
        Section("Diagnoses", diagnosis_blocks(verdict)),
        Section("Figures", captioned(run_figures(run, verdict.findings))),
        Section(f"Saved by the script{whose}", scalar_blocks(*scalar_figures(run))),
        Section("Time and machine", time_blocks(run, verdict, rules)),
        Section("Findings", finding_blocks(verdict.findings)),
        Section("Rules", folded_statuses(verdict.statuses)),
        Section("Settings", setting_blocks(run)),
        Section("Run", fact_blocks(run, verdict)),
    ]
