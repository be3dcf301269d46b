"""``watchglass rules``: what there is, and what each looks at."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
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
    typer.Argument(
        metavar="[NAME]", help="A rule, a set of rules, or FILE.py:CLASS for one of your own.", show_default=False
    ),
]


def rules(name: Name = None, debug: Debug = False) -> int:
    """List the rules and sets of rules, or those of one set, or document one rule in full."""
    with failing_in_one_line(debug):
        from watchglass.cli.terminal import stdout_console
        from watchglass.rules import RULE_SETS, documentation, find_rule, rule_names, rules_of_set

        console = stdout_console()
        if name is None:
            _print_table(console, _summaries(rule_names()))
            _print_sets(console)
        elif name in RULE_SETS:
            _print_table(console, _summaries(rules_of_set(name)))
            console.print()
            _print_dim(console, f"{name}: {RULE_SETS[name].help}. In use: watchglass run --rules {name} train.py")
        else:
            _print_rule(console, documentation(find_rule(name)), name)
    return 0


def _summaries(names: Iterable[str]) -> list[tuple[str, str]]:
    from watchglass.rules import documentation, find_rule

    return [(name, documentation(find_rule(name)).summary) for name in names]


def _print_table(console: Console, rows: Iterable[tuple[str, str]]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    for name, summary in rows:
        table.add_row(Text(name, style="bold"), Text(summary))
    console.print(table)


def _print_sets(console: Console) -> None:
    from rich.text import Text

    from watchglass.rules import RULE_SETS

    console.print()
    console.print(Text("Sets of rules", style="bold"))
    counts = ((name, len(each.rules), each.help) for name, each in RULE_SETS.items())
    _print_table(console, ((name, f"{count or 'none yet'}: {text}") for name, count, text in counts))
    console.print()
    _print_dim(console, "One in full: watchglass rules NAME. Those of default are evaluated when --rules names none.")


def _print_dim(console: Console, line: str) -> None:
    from rich.text import Text

    console.print(Text(line, style="dim"), soft_wrap=True)


def _print_rule(console: Console, rule: RuleDocumentation, name: str) -> None:
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
    _print_dim(console, f"watchglass run --rules {shlex.quote(_example(rule, name))} train.py")


def _describe(parameter: ParameterInfo) -> str:
    """``float, default 0.5, > 0, steps``."""
    limits = f", {parameter.limits}" if parameter.limits else ""
    unit = f", in {parameter.unit}" if parameter.unit else ""
    return f"{parameter.type}, default {parameter.default}{limits}{unit}"


def _example(rule: RuleDocumentation, name: str) -> str:
    """The rule as ``--rules`` takes it, by the name that it was asked for."""
    if not rule.parameters:
        return name
    first = rule.parameters[0]
    return f"{name}:{first.name}={first.default}"
