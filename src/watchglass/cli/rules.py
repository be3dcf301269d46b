"""``watchglass rules``: what there is, and what each looks at."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from watchglass.cli.failure import failing_in_one_line
from watchglass.cli.options import Debug

if TYPE_CHECKING:
    from rich.console import Console

    from watchglass.config import ParameterInfo
    from watchglass.rules import RuleDocumentation

Name = Annotated[
    str | None,
    typer.Argument(metavar="[NAME]", help="A rule, or FILE.py:CLASS for one of your own.", show_default=False),
]


def rules(name: Name = None, debug: Debug = False) -> int:
    """List the rules, or document one: what it looks at, when it fires, its parameters."""
    with failing_in_one_line(debug):
        from watchglass.cli.terminal import stdout_console
        from watchglass.rules import documentation, find_rule, rule_names

        console = stdout_console()
        if name is not None:
            _print_rule(console, documentation(find_rule(name)))
            return 0
        _print_list(console, [documentation(find_rule(known)) for known in rule_names()])
    return 0


def _print_list(console: Console, documented: list[RuleDocumentation]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    for rule in documented:
        table.add_row(Text(rule.name, style="bold"), Text(rule.summary))
    console.print(table)
    console.print()
    console.print(Text("All of them are evaluated by default. One in full: watchglass rules NAME", style="dim"))


def _print_rule(console: Console, rule: RuleDocumentation) -> None:
    from rich.padding import Padding
    from rich.text import Text

    console.print(Text(rule.name, style="bold"))
    console.print(Text(rule.summary))
    for title, text in rule.sections.items():
        console.print()
        console.print(Text(title, style="bold"))
        console.print(Padding(Text(text[:1].upper() + text[1:]), (0, 0, 0, 2)))
    console.print()
    console.print(Text("Parameters" if rule.parameters else "No parameters", style="bold"))
    for parameter in rule.parameters:
        console.print(Padding(Text.assemble((parameter.name, "cyan"), f"  {_describe(parameter)}"), (0, 0, 0, 2)))
        if parameter.help:
            console.print(Padding(Text(parameter.help), (0, 0, 0, 6)))
    for calibration, overrides in rule.calibrations.items():
        values = ", ".join(f"{key}={value}" for key, value in overrides.items())
        console.print()
        console.print(Text.assemble(("Calibration ", "bold"), (calibration, "bold"), f"  {values}"))
    console.print()
    console.print(Text(f"watchglass run --rules {_example(rule)} train.py", style="dim"), soft_wrap=True)


def _describe(parameter: ParameterInfo) -> str:
    """``float, default 0.5, > 0, steps``."""
    limits = f", {parameter.limits}" if parameter.limits else ""
    unit = f", in {parameter.unit}" if parameter.unit else ""
    return f"{parameter.type}, default {parameter.default}{limits}{unit}"


def _example(rule: RuleDocumentation) -> str:
    if not rule.parameters:
        return rule.name
    first = rule.parameters[0]
    return f"{rule.name}:{first.name}={first.default}"
