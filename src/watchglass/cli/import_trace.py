"""``watchglass import-trace``: the operators of a trace that PyTorch's profiler wrote."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from watchglass import view
from watchglass.cli import shared_options
from watchglass.cli.declaring import argument, option
from watchglass.cli.failure import print_note
from watchglass.cli.terminal import print_table, stdout_console, working
from watchglass.records import count


def import_trace(
    file: Annotated[str, argument("FILE", "Trace of torch.profiler, .json or .json.gz.")],
    format: Annotated[  # noqa: A002  the name of the option
        str, option("--format text|json", "A table of the first 20, or all operators as JSON.")
    ] = "text",
    as_json: shared_options.AsJson = False,
) -> None:
    """Sum up the operators and kernels of a trace that torch.profiler wrote, without a run.

    To see it beside the steps of a run: watchglass trace RUN --import FILE -o OUT
    """
    chosen = shared_options.format_of(format, as_json, ("text", "json"))
    with working("reading the trace"):
        trace = view.read_torch_trace(file)
        rows = trace.operators()
    if trace.omitted:
        print_note(f"{count(trace.omitted, 'slice')} of {view.printable(file)} omitted: without a name, time or length")
    if chosen == "json":
        typer.echo(json.dumps([asdict(row) for row in rows], allow_nan=False))
        return
    titles = ("operator", "calls", "time", "share", "with its calls")
    console = stdout_console()
    for on_device, title in ((False, "Operators"), (True, "Kernels")):
        cells = view.trace_rows([row for row in rows if row.on_device is on_device])
        if cells:
            heading = f"{title} of {view.printable(file)}"
            print_table(console, heading, cells, titles=titles, numbers=titles[1:])
