"""``watchglass rules``: list and document the rules."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import Annotated

import typer

from watchglass.cli.terminal import stdout_console

Name = Annotated[
    str | None,
    typer.Argument(metavar="NAME", help="A rule, a rule set, or FILE.py:CLASS for a custom rule.", show_default=False),
]


def rules(name: Name = None) -> None:
    """List rules and rule sets, list the rules of one set, or document one rule."""
    from rich.text import Text

    from watchglass.cli.listing import print_heading, print_hint, print_list, print_parameters, print_section
    from watchglass.rules import RULE_SETS, documentation, find_rule, rule_names, rules_of_set

    def summaries(names: Iterable[str]) -> list[tuple[str, str]]:
        return [(each, documentation(find_rule(each)).summary) for each in names]

    console = stdout_console()
    if name is None:
        print_list(console, summaries(rule_names()))
        console.print("\nRule sets", style="bold")
        print_list(
            console, ((each, f"{len(made.rules) or 'none yet'}: {made.help}") for each, made in RULE_SETS.items())
        )
        print_hint(
            console,
            "Details of a rule: watchglass rules NAME. Without --rules, the rules of the set default are evaluated.",
        )
        return
    if name in RULE_SETS:
        print_list(console, summaries(rules_of_set(name)))
        print_hint(console, f"{name}: {RULE_SETS[name].help}. Usage: watchglass run --rules {name} train.py")
        return
    rule = documentation(find_rule(name))
    print_heading(console, rule.name, rule.summary)
    for title, text in rule.sections.items():
        print_section(console, title, text[:1].upper() + text[1:])
    print_parameters(console, rule.parameters)
    for calibration, overrides in rule.calibrations.items():
        values = ", ".join(f"{key}={value}" for key, value in overrides.items())
        console.print()
        console.print(Text.assemble((f"Calibration {calibration}", "bold"), f"  {values}"))
    example = f"{name}:{rule.parameters[0].name}={rule.parameters[0].default}" if rule.parameters else name
    print_hint(console, f"watchglass run --rules {shlex.quote(example)} train.py")
