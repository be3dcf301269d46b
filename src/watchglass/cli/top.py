"""``watchglass top``: one run in a terminal, while it is written."""

from __future__ import annotations

import sys
import time
from contextlib import closing
from typing import Annotated

import typer

from watchglass import view
from watchglass.cli.declaring import option
from watchglass.cli.failure import print_warning
from watchglass.cli.shared_options import RunPath
from watchglass.cli.terminal import print_verdict, stdout_console
from watchglass.errors import importing


def top(
    run: RunPath,
    once: Annotated[bool, option("--once", "Print a summary and exit, as in a pipe.")] = False,
    as_json: Annotated[bool, option("--json", "Print the summary as JSON and exit.")] = False,
) -> None:
    """Show a run in the terminal while it is written: verdict, findings, loss, phases, progress.

    Keys: / filters the findings, Enter explains one, p profiles the next steps, S stops the job after a question, q
    quits. The run is read from its store; no rule is evaluated. In a pipe, a summary is printed once.
    """
    from watchglass.run import open_run
    from watchglass.top import LookingThread, look_at, look_json

    if as_json:
        typer.echo(look_json(look_at(open_run(run))), nl=False)
        return
    if once or not sys.stdout.isatty() or not sys.stdin.isatty():
        look = look_at(open_run(run))
        console = stdout_console()
        for line in filter(None, (f"{look.location}: {look.progress(time.time_ns())}", look.numbers(), *look.machine)):
            console.print(view.printable(line), markup=False, soft_wrap=True)
        print_verdict(console, look.verdict)
        if look.problem:
            print_warning(look.problem)
        return
    with importing("watchglass top needs textual", "top"):
        from watchglass.top import TopApp

    with closing(LookingThread(run)) as follower:
        TopApp(lambda: follower.newest).run()
