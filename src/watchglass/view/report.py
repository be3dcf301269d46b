"""The report: one HTML file that opens anywhere, with no network, today and in ten years."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from watchglass.records import Verdict
from watchglass.view.blocks import Block, Section, captioned
from watchglass.view.figures import run_figures, scalar_figures
from watchglass.view.html_format import page_html
from watchglass.view.output_file import check_output_path, write_whole
from watchglass.view.sections import (
    diagnosis_blocks,
    fact_blocks,
    finding_blocks,
    scalar_blocks,
    setting_blocks,
    status_blocks,
    summary_block,
    time_blocks,
)
from watchglass.view.time_figures import figures_of_time

if TYPE_CHECKING:
    from watchglass.run import Run


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


def render_report(run: Run, verdict: Verdict) -> str:
    """The whole page. Everything that comes from the run is escaped."""
    return page_html(f"watchglass: {verdict.status} in {verdict.run}", report_blocks(run, verdict))


def report_blocks(run: Run, verdict: Verdict) -> list[Block]:
    """The sections of a report."""
    times = figures_of_time(run, verdict.findings)
    whose = f", {run.worker().name}" if len(run.workers) > 1 else ""
    return [
        summary_block(run, verdict),
        Section("Diagnoses", diagnosis_blocks(verdict)),
        Section("Figures", captioned(run_figures(run, verdict.findings))),
        Section(f"Saved by the script{whose}", scalar_blocks(*scalar_figures(run))),
        Section("Time", [*captioned(times), *time_blocks(run)]),
        Section("Findings", finding_blocks(verdict.findings)),
        Section("Rules", status_blocks(verdict.statuses)),
        Section("Settings", setting_blocks(run)),
        Section("Run", fact_blocks(run, verdict)),
    ]
