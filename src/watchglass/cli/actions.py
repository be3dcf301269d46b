"""``watchglass actions``: what can be done about findings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from watchglass.cli.failure import failing_in_one_line
from watchglass.cli.options import Debug

if TYPE_CHECKING:
    from rich.console import Console

    from watchglass.actions import ActionDocumentation
    from watchglass.config import ParameterInfo

Name = Annotated[
    str | None,
    typer.Argument(metavar="[NAME]", help="An action, or FILE.py:CLASS for one of your own.", show_default=False),
]


def actions(name: Name = None, debug: Debug = False) -> int:
    """List the actions, or document one: what it does, its parameters, how it is named."""
    with failing_in_one_line(debug):
        from watchglass.actions import action_names, documentation, find_action
        from watchglass.cli.terminal import stdout_console

        console = stdout_console()
        if name is not None:
            _print_action(console, documentation(find_action(name)), name)
            return 0
        _print_list(console, [documentation(find_action(known)) for known in action_names()])
    return 0


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
