"""``watchglass dashboard``: the runs of a folder as pages in a browser, while they are written."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from watchglass.cli.declaring import argument, option
from watchglass.cli.failure import print_warning
from watchglass.config import environment
from watchglass.errors import InvalidValueError, importing

_LAST_PORT = 65_535
#: Addresses that other machines do not reach.
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def dashboard(
    run: Annotated[
        str | None, argument("[RUN]", "A run, or a folder or prefix of runs: s3://BUCKET/runs. [default: runs]")
    ] = None,
    port: Annotated[int, option("--port PORT", "Port to listen on; 0 selects a free port.")] = 8420,
    host: Annotated[str, option("--host ADDRESS", "Address to listen on.")] = "127.0.0.1",
    allow_host: Annotated[
        list[str] | None,
        option("--allow-host NAME", "Name by which browsers call this machine, if it is not --host. Repeatable."),
    ] = None,
    root_path: Annotated[str, option("--root-path PATH", "Path of the dashboard behind a proxy, such as /watch.")] = "",
    read_only: Annotated[
        bool,
        option("--read-only", "Ask nothing of running jobs and replay no rules; else buttons profile and stop jobs."),
    ] = False,
    opens: Annotated[bool, option("--open", "Open the pages in the browser of this machine.")] = False,
) -> None:
    """Show runs as pages in a browser, while they are written.

    Prints a link with a token, which only you should have. Nothing is imported. Ctrl-C ends it.
    """
    if not 0 <= port <= _LAST_PORT:
        raise InvalidValueError(f"--port must be 0 to {_LAST_PORT} but got {port}; 0 selects a free port")
    root = root_path.rstrip("/")
    if not re.fullmatch(r"(/[\w.~-]+)*", root, re.ASCII):
        raise InvalidValueError(f"--root-path must be a path such as /watch but got {root_path!r}")
    for name in allow_host or ():
        if not re.fullmatch(r"[\w.-]+|\[?[\da-f]*:[\da-f:.]*:[\da-f:.]*\]?", name, re.ASCII | re.IGNORECASE):
            raise InvalidValueError(f"--allow-host must be a name without scheme and port but got {name!r:.100}")
    if host in ("0.0.0.0", "::") and not allow_host:
        raise InvalidValueError(
            f"--host {host} needs --allow-host NAME, the name by which browsers call this machine: requests for other "
            "names are refused"
        )
    with importing("watchglass dashboard needs starlette and uvicorn", "dashboard"):
        from watchglass.dashboard import Address, serve

    def ready(link: str) -> None:
        if host not in _LOOPBACK:
            print_warning(f"--host {host} is reached by other machines; who has the link can read the runs")
        typer.echo(link)
        if opens:
            import webbrowser

            webbrowser.open(link)

    address = Address(host, port, [name.lower() for name in allow_host or ()], root)
    serve(run if run is not None else environment.runs() or "runs", address, ready, read_only=read_only)
