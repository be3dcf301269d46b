"""``watchglass report``: write a run as one HTML file."""

from __future__ import annotations

from typing import Annotated

import typer

from watchglass import view
from watchglass.cli.declaring import option
from watchglass.cli.evaluator_options import Causes
from watchglass.cli.shared_options import PricePerHour, RunPath, price_of
from watchglass.cli.terminal import working
from watchglass.errors import InvalidValueError


def report(
    run: RunPath,
    output: Annotated[
        str | None,
        option(
            "--output, -o FILE", "HTML file to write, such as report.html. [default with --profiler: inside the run]"
        ),
    ] = None,
    force: Annotated[bool, option("--force", "Overwrite the file if it exists.")] = False,
    causes: Causes = None,
    price_per_hour: PricePerHour = None,
    profiler: Annotated[
        bool, option("--profiler", "Write the report on time and machine instead, as JSON if FILE ends with .json.")
    ] = False,
) -> None:
    """Write a self-contained HTML report of a run, with verdict, figures and findings, for use offline."""
    from watchglass.cli.verdicts import judged

    price = price_of(price_per_hour)
    if profiler:
        from watchglass.cli.profiler_report import write_profiler_report

        written = write_profiler_report(run, output, replace=force)
        typer.echo(f"{view.printable(written.place)} ({view.size(written.bytes)})")
        return
    if output is None:
        raise InvalidValueError("-o is missing; name the HTML file to write, such as -o report.html")
    view.check_report_path(output, replace=force)
    opened, verdict = judged(run, causes=causes or (), price_per_hour=price)
    with working("drawing the figures"):
        size = view.write_report(opened, verdict, output, replace=force)
    typer.echo(f"{output} ({view.size(size)})")
