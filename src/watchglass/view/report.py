"""The report: one HTML file that opens anywhere, with no network, today and in ten years."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from watchglass.records import Verdict
from watchglass.view.figures import run_figures, scalar_figures
from watchglass.view.output_file import check_output_path, write_whole
from watchglass.view.page import figures_html, page, section
from watchglass.view.sections import (
    diagnoses_html,
    facts_html,
    findings_html,
    scalars_html,
    settings_html,
    statuses_html,
    summary_html,
    time_tables_html,
)
from watchglass.view.text import escaped
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
    title = f"watchglass: {verdict.status} in {verdict.run}"
    times = figures_of_time(run, verdict.findings)
    whose = f", {escaped(run.worker().name)}" if len(run.workers) > 1 else ""
    body = "".join(
        (
            summary_html(run, verdict),
            *section("Diagnoses", diagnoses_html(verdict)),
            *section("Figures", figures_html(run_figures(run, verdict.findings))),
            *section(f"Saved by the script{whose}", scalars_html(*scalar_figures(run))),
            *section("Time", [*figures_html(times), *time_tables_html(run)]),
            *section("Findings", [findings_html(verdict.findings)] if verdict.findings else []),
            *section("Rules", [statuses_html(verdict.statuses)] if verdict.statuses else []),
            *section("Settings", settings_html(run)),
            *section("Run", [facts_html(run, verdict)]),
        )
    )
    return page(title, body)
