"""``watchglass mcp``: answers questions of programs about runs, by the Model Context Protocol."""

from __future__ import annotations

from typing import Annotated

from watchglass.cli.declaring import argument, option
from watchglass.cli.failure import print_warning
from watchglass.config import environment
from watchglass.errors import WatchglassError


def mcp(
    prefix: Annotated[
        str | None, argument("[PREFIX]", "A run, or a folder or prefix of runs: s3://BUCKET/runs. [default: runs]")
    ] = None,
    allow_actions: Annotated[
        bool, option("--allow-actions", "Also stop running jobs and profile their steps, if a program asks for it.")
    ] = False,
) -> None:
    """Answer questions of programs, such as coding assistants, about runs: by the Model Context Protocol on stdio.

    A program starts this command and asks: which runs there are, the verdict on one, what explains a finding, a series
    of numbers, what differs between two runs, what a rule looks at and where it would have fired. Nothing is written.
    """
    from watchglass.questions import make_server
    from watchglass.run import open_runs

    location = prefix if prefix is not None else environment.runs() or "runs"
    server = make_server(location, allow_actions=allow_actions)
    try:
        open_runs(location)
    except WatchglassError as error:  # runs may come, and a store may answer later
        print_warning(str(error))
    server.run("stdio")
