"""``watchglass report``: a run as one HTML file."""

from __future__ import annotations

from typing import Annotated

import typer

from watchglass.cli.evaluating import Causes
from watchglass.cli.failure import failing_in_one_line
from watchglass.cli.options import Debug, PricePerHour, RunPath, price_of


def report(
    run: RunPath,
    output: Annotated[str, typer.Option("--output", "-o", metavar="FILE", help="The HTML file to write.")],
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file if it is there.")] = False,
    causes: Causes = None,
    price_per_hour: PricePerHour = None,
    debug: Debug = False,
) -> int:
    """Write a self-contained HTML report of a run: verdict, figures, findings. It opens with no network."""
    with failing_in_one_line(debug):
        from watchglass.cli.judge import judged
        from watchglass.cli.terminal import working
        from watchglass.view import check_report_path, size, write_report

        price = price_of(price_per_hour)
        check_report_path(output, replace=force)
        opened, verdict = judged(run, causes=causes or (), price_per_hour=price)
        with working("drawing the figures"):
            written = write_report(opened, verdict, output, replace=force)
        typer.echo(f"{output} ({size(written)})")
    return 0
