"""``watchglass trace``: write a run as a trace for Perfetto."""

from __future__ import annotations

from typing import Annotated

import typer

from watchglass import view
from watchglass.cli.declaring import option
from watchglass.cli.shared_options import RunPath, range_of
from watchglass.cli.terminal import working
from watchglass.errors import InvalidValueError


def trace(
    run: RunPath,
    output: Annotated[str, option("--output, -o FILE", "File to write; with .gz at the end, compressed.")],
    steps: Annotated[
        str | None, option("--steps START:STOP", "Only these training steps, STOP excluded. [default: all]")
    ] = None,
    imported: Annotated[
        list[str] | None, option("--import FILE", "Also show a trace that torch.profiler wrote. Repeatable.")
    ] = None,
    force: Annotated[bool, option("--force", "Overwrite the file if it exists.")] = False,
) -> None:
    """Write a run as a trace that Perfetto opens: steps and phases of all ranks, findings, load of the machines."""
    from watchglass.cli.verdicts import judged

    chosen = None if steps is None else range_of(steps)
    view.check_trace_path(output, replace=force)
    traces = {each: view.read_torch_trace(each) for each in imported or ()}
    for name, trace in traces.items():
        if not trace.dated:
            cure = f"to see its operators: watchglass import-trace {name}"
            raise InvalidValueError(f"trace {name} states no wall time, so its place in the run is unknown; {cure}")
    opened, verdict = judged(run)
    with working("writing the trace"):
        written = view.write_trace(opened, verdict.findings, output, steps=chosen, imported=traces, replace=force)
    typer.echo(f"{view.printable(output)} ({view.size(written)}); open it at https://ui.perfetto.dev")
