"""``watchglass export``: write a run as tables for other tools."""

from __future__ import annotations

from typing import Annotated

import typer

from watchglass import view
from watchglass.cli.declaring import option
from watchglass.cli.failure import print_warning
from watchglass.cli.shared_options import RunPath, check_choice
from watchglass.cli.terminal import working
from watchglass.records import count


def export(
    run: RunPath,
    output: Annotated[str, option("--output, -o PATH", "New or empty folder for the tables.")],
    to: Annotated[str, option("--to parquet", "Format of the tables.")] = "parquet",
    histograms: Annotated[bool, option("--histograms", "Include the histograms, as lists.")] = False,
) -> None:
    """Write a run as tidy Parquet tables for pandas, polars, DuckDB or Spark. The run does not change."""
    from watchglass.run import open_run

    check_choice("--to", to, ("parquet",))
    view.check_export_path(output)
    with working("reading the run"):
        opened = open_run(run)
    with working("writing the tables"):
        written = view.export_parquet(opened, output, histograms=histograms)
    typer.echo(view.printable(output))
    for file in written:
        typer.echo(f"  {file.name:<20} {count(file.rows, 'row'):>16}  {view.size(file.bytes):>9}")
    for problem in opened.problems:
        print_warning(str(problem))
