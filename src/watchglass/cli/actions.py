"""``watchglass actions``: what can be done about findings, and once more what could not be."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any

import typer

from watchglass.cli.failure import COULD_NOT, failing_in_one_line, print_note
from watchglass.cli.options import ActionsFile, Debug
from watchglass.errors import InvalidValueError

if TYPE_CHECKING:
    from rich.console import Console

    from watchglass.actions import ActionDocumentation
    from watchglass.config import ParameterInfo
    from watchglass.evaluate import Resent

Name = Annotated[
    str | None,
    typer.Argument(
        metavar="NAME|RUN",
        help="An action, or FILE.py:CLASS for one of your own; with --resend where the run is.",
        show_default=False,
    ),
]
Resend = Annotated[bool, typer.Option("--resend", help="Send the dead letters of a run again.")]
Actions = Annotated[
    list[str] | None,
    typer.Option(
        "--action",
        metavar="NAME[:PARAM=VALUE,...]",
        help="With --resend: by what they are sent, as for run, beside what watchglass.toml names. Repeatable.",
    ),
]


def actions(
    name: Name = None,
    resend: Resend = False,
    action: Actions = None,
    config: ActionsFile = None,
    debug: Debug = False,
) -> int:
    """List the actions, or document one: what it does, its parameters, how it is named.

    With --resend, send the dead letters of a run again: events that an action could not deliver.
    """
    with failing_in_one_line(debug):
        if resend:
            return _resend(name, action or [], config)
        if action:
            raise InvalidValueError("--action says by what dead letters are sent again; give --resend and a run too")
        from watchglass.actions import action_names, documentation, find_action
        from watchglass.cli.terminal import stdout_console

        console = stdout_console()
        if name is not None:
            _print_action(console, documentation(find_action(name)), name)
            return 0
        _print_list(console, [documentation(find_action(known)) for known in action_names()])
    return 0


def _resend(run: str | None, texts: list[str], config: str | None) -> int:
    """Sends the dead letters of a run again; returns the exit status."""
    if run is None:
        raise InvalidValueError("--resend needs the run whose dead letters are to be sent again; give its location")
    from watchglass.actions import checked_actions, parse_action
    from watchglass.cli.terminal import working
    from watchglass.config import find_file, read_actions
    from watchglass.evaluate import resend
    from watchglass.store import open_store, read_manifest
    from watchglass.view import printable

    file = find_file(config)
    specs = [*(read_actions(file, named=config is not None) if file is not None else ()), *map(parse_action, texts)]
    checked_actions(specs, None)
    with closing(open_store(run)) as store:
        read_manifest(store)
        with working(f"sending the dead letters of {run}"):
            resent = resend(store, specs, print_note)
    if not resent:
        typer.echo(f"{printable(run)} has no dead letters to send")
    for became in resent:
        typer.echo(_told(became))
    return COULD_NOT if any(became.left for became in resent) else 0


def _told(became: Resent) -> str:
    """``Webhook: 3 arrived, 1 left (answered with 503)``."""
    from watchglass.view import printable

    left = f", {became.left} left" if became.left else ""
    why = became.reason if became.named else "no such action was named; give it with --action"
    return printable(f"{became.action}: {became.arrived} arrived{left}{f' ({why})' if left and why else ''}")


def _print_list(console: Console, documented: list[ActionDocumentation]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    for action in documented:
        table.add_row(Text(action.name, style="bold"), Text(action.summary.replace("``", "")))
    console.print(table)
    console.print()
    console.print(Text("None is taken unless asked for. One in full: watchglass actions NAME", style="dim"))


def _print_action(console: Console, action: ActionDocumentation, name: str) -> None:
    from rich.padding import Padding
    from rich.text import Text

    console.print(Text(action.name, style="bold"))
    console.print(Text(action.summary.replace("``", "")))
    for paragraph in action.text.split("\n\n"):
        if paragraph.strip():
            console.print()
            console.print(Text(" ".join(paragraph.replace("``", "").split())))
    console.print()
    console.print(Text("Parameters", style="bold"))
    for parameter in action.parameters:
        console.print(Padding(Text.assemble((parameter.name, "cyan"), f"  {_describe(parameter)}"), (0, 0, 0, 2)))
        if parameter.help:
            console.print(Padding(Text(parameter.help), (0, 0, 0, 6)))
    console.print()
    example = name if action.example == action.name else action.example
    console.print(Text(f"watchglass run --action '{example}' train.py", style="dim"), soft_wrap=True)


def _describe(parameter: ParameterInfo) -> str:
    """``a number, default 30.0, > 0, in seconds``."""
    limits = f", {parameter.limits}" if parameter.limits else ""
    unit = f", in {parameter.unit}" if parameter.unit else ""
    return f"{parameter.type}, default {_plain(parameter.default)}{limits}{unit}"


def _plain(default: Any) -> str:
    value = getattr(default, "value", default)
    if value is None:
        return "none"
    if isinstance(value, tuple):
        return ",".join(map(_plain, value)) or "none"
    return str(value) or "none"
