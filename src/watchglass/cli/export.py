"""``watchglass export``: write a run for other tools."""

from __future__ import annotations

import shlex
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from watchglass import diagnose, view
from watchglass.cli.declaring import option
from watchglass.cli.failure import print_warning
from watchglass.cli.shared_options import RunPath, check_choice
from watchglass.cli.terminal import working
from watchglass.errors import InvalidValueError
from watchglass.records import count

if TYPE_CHECKING:
    from watchglass.run import Run


def export(
    run: RunPath,
    output: Annotated[
        str,
        option(
            "--output, -o PATH",
            "New or empty folder for the tables; for TensorBoard the folder of its --logdir, in which the run gets a "
            "folder of its name.",
        ),
    ],
    to: Annotated[str, option("--to parquet|tensorboard|wandb", "Format.")] = "parquet",
    histograms: Annotated[
        bool | None,
        option(
            "--histograms/--no-histograms",
            "Include the histograms, in Parquet as lists. [default: for TensorBoard yes, for Parquet no]",
        ),
    ] = None,
) -> None:
    """Write a run as tidy Parquet tables for pandas, polars, DuckDB or Spark, or for TensorBoard or Weights & Biases.

    The run does not change, and nothing is sent anywhere.

    An export for TensorBoard can be repeated while the run goes on: it adds what is new.
    """
    from watchglass.run import open_run

    check_choice("--to", to, ("parquet", "tensorboard", "wandb"))
    if to == "wandb" and histograms:
        raise InvalidValueError("--histograms is for --to parquet and --to tensorboard; wandb never gets histograms")
    if to != "tensorboard":
        view.check_export_path(output)
    with working("reading the run"):
        opened = open_run(run)
    if to == "parquet":
        _write_parquet(opened, output, histograms=bool(histograms))
    elif to == "tensorboard":
        _write_events(opened, output, histograms=histograms is not False)
    else:
        _write_offline(opened, output)
    for problem in opened.problems:
        print_warning(str(problem))


def _write_parquet(run: Run, output: str, *, histograms: bool) -> None:
    with working("writing the tables"):
        written = view.export_parquet(run, output, histograms=histograms)
    typer.echo(view.printable(output))
    for file in written:
        typer.echo(f"  {file.name:<20} {count(file.rows, 'row'):>16}  {view.size(file.bytes):>9}")


def _write_events(run: Run, output: str, *, histograms: bool) -> None:
    from watchglass.trackers import TensorBoardExport

    opened = TensorBoardExport(run, output, diagnose.verdict, histograms=histograms)
    with working("writing event files"), closing(opened) as export:
        export.write_new(ended=run.finished or bool(run.lost))
    written = export.written
    parts = (count(written.steps, "step"), count(written.scalars, "scalar"), count(written.histograms, "histogram"))
    typer.echo(f"{view.printable(written.folder)}: {', '.join(parts)}")
    typer.echo(f"to look at it: tensorboard --logdir {shlex.quote(view.printable(output))}")


def _write_offline(run: Run, output: str) -> None:
    from watchglass.trackers import export_wandb

    with working("writing an offline run"):
        written = export_wandb(run, output, diagnose.verdict)
    typer.echo(f"{view.printable(written.folder)}: {count(written.steps, 'step')}, {count(written.scalars, 'scalar')}")
    typer.echo(f"to upload it: wandb sync {shlex.quote(view.printable(output))}/wandb/offline-run-*")
