"""``watchglass report``: write a run as one HTML file."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from watchglass import view
from watchglass.cli.declaring import option
from watchglass.cli.evaluator_options import Causes
from watchglass.cli.shared_options import PricePerHour, RunOrPrefix, price_of
from watchglass.cli.terminal import working
from watchglass.errors import InvalidValueError


def report(
    run: RunOrPrefix,
    output: Annotated[
        str | None,
        option("--output, -o FILE", "HTML file to write. [default: NAME-OF-RUN.html; with --profiler: inside the run]"),
    ] = None,
    force: Annotated[bool, option("--force", "Overwrite the file if it exists.")] = False,
    causes: Causes = None,
    price_per_hour: PricePerHour = None,
    profiler: Annotated[
        bool, option("--profiler", "Write the report on time and machine instead, as JSON if FILE ends with .json.")
    ] = False,
    as_json: Annotated[
        bool, option("--json", "Print what the report shows, with the numbers of its figures, as JSON for programs.")
    ] = False,
) -> None:
    """Write a self-contained HTML report of a run, with verdict, figures and findings, for use offline.

    Of a folder or prefix of runs: their verdicts and losses side by side, and the settings that differ.
    """
    from watchglass.cli.verdicts import judged, judged_all, runs_at
    from watchglass.diagnose import rule_texts

    price = price_of(price_per_hour)
    if as_json and (profiler or output is not None or force):
        cure = "for the profiler's: --profiler -o FILE.json" if profiler else "omit -o and --force"
        raise InvalidValueError(f"--json prints the report; {cure}")
    if profiler:
        from watchglass.cli.profiler_report import write_profiler_report

        written = write_profiler_report(run, output, replace=force)
        typer.echo(f"{view.printable(written.place)} ({view.size(written.bytes)})")
        return
    if not as_json:
        output = output or f"{Path(run).resolve().name or 'report'}.html"
        view.check_report_path(output, replace=force)
    if runs_at(run)[1]:
        shown = view.Judged(judged_all(run, causes=causes or (), price_per_hour=price), many=True)
    else:
        opened, verdict = judged(run, causes=causes or (), price_per_hour=price)
        shown = view.Judged([verdict], runs={verdict.run: opened}, rules=partial(rule_texts, verdict))
    if output is None:
        typer.echo(view.report_json(shown), nl=False)
        return
    with working("drawing the figures"):
        size = view.write_report(shown, output, replace=force)
    typer.echo(f"{output} ({view.size(size)})")
