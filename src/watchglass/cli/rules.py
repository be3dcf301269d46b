"""``watchglass rules``: list and document the rules."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from watchglass import view
from watchglass.cli.declaring import argument, option
from watchglass.cli.shared_options import AsJson, format_of
from watchglass.cli.terminal import stdout_console
from watchglass.errors import InvalidValueError, PluginFileError
from watchglass.view import printable

Name = Annotated[
    str | None, argument("NAME", "A rule, a rule set, or FILE.py:CLASS for a custom rule.", show_default=False)
]
NewName = Annotated[
    str | None, argument("CLASS", "After NAME new: the class of the rule to write.", show_default=False)
]
Folder = Annotated[
    Path | None, option("--folder FOLDER", "Where new writes its files (default: here).", show_default=False)
]
Coverage = Annotated[
    bool, option("--coverage", "List for each rule whether a real training run triggers it in the tests.")
]
Format = Annotated[str, option("--format text|json", "Format of the output: for people or for programs.")]


def rules(
    name: Name = None,
    new: NewName = None,
    folder: Folder = None,
    coverage: Coverage = False,
    output: Format = "text",
    as_json: AsJson = False,
) -> None:
    """List rules and rule sets, list the rules of one set, document one rule, or write a new one.

    watchglass rules new SlowStart writes a working rule, slow_start.py, and its test with a sick and a healthy run,
    test_slow_start.py. Edit both.

    With --coverage, list each built-in rule as live or built-only. A rule is live if a test under watchglass run
    triggers it with a real faulty run and not with its healthy twin; otherwise the reason is listed.
    """
    from watchglass.rules import RULE_SETS

    if name == "new" or new is not None or folder is not None:
        _write_new(name, new, folder, other_options=coverage or as_json or output != "text")
        return
    output = format_of(output, as_json, ("text", "json"))
    if coverage:
        if name is not None:
            raise InvalidValueError("--coverage takes no NAME; omit one of the two")
        _print_coverage(as_json=output == "json")
        return
    if output == "json":
        typer.echo(view.strict_json(_described(name)), nl=False)
    elif name is None:
        _print_rules()
    elif name in RULE_SETS:
        _print_set(name)
    else:
        _print_rule(name)


def _described(name: str | None) -> dict[str, Any]:
    """The rules and sets, the rules of a set, or one rule in full, as JSON types."""
    from watchglass.rules import RULE_SETS, documentation, find_rule, installed_rules, rule_names, rules_of_set

    if name is not None and name not in RULE_SETS:
        return asdict(documentation(find_rule(name)))
    names = [*rule_names(), *installed_rules()] if name is None else rules_of_set(name)
    found: dict[str, Any] = {"rules": [{"name": each, "summary": text} for each, text in _summaries(names)]}
    if name is None:
        found["sets"] = [
            {"name": each, "help": made.help, "rules": list(made.rules)} for each, made in RULE_SETS.items()
        ]
    return found


def _print_rules() -> None:
    from watchglass.cli.listing import print_hint, print_list
    from watchglass.rules import RULE_SETS, installed_rules, rule_names

    console = stdout_console()
    print_list(console, _summaries(rule_names()))
    if offered := installed_rules():
        console.print("\nRules of installed packages", style="bold")
        print_list(console, _summaries(offered))
    console.print("\nRule sets", style="bold")
    print_list(console, ((each, f"{len(made.rules)}: {made.help}") for each, made in RULE_SETS.items()))
    print_hint(
        console,
        "Details of a rule: watchglass rules NAME. Without --rules, the rules of the set default are evaluated.",
    )


def _print_set(name: str) -> None:
    from watchglass.cli.listing import print_hint, print_list
    from watchglass.rules import RULE_SETS, rules_of_set

    console = stdout_console()
    print_list(console, _summaries(rules_of_set(name)))
    print_hint(console, f"{name}: {RULE_SETS[name].help}. Usage: watchglass run --rules {name} train.py")


def _summaries(names: Iterable[str]) -> list[tuple[str, str]]:
    """Names with the first lines of their docstrings."""
    from watchglass.rules import documentation, find_rule

    def summary(name: str) -> str:
        try:
            return documentation(find_rule(name)).summary
        except PluginFileError as error:  # of an installed package; the others are listed
            return printable(str(error))

    return [(name, summary(name)) for name in names]


def _print_rule(name: str) -> None:
    from rich.text import Text

    from watchglass.cli.listing import as_sentences, print_heading, print_hint, print_parameters, print_section
    from watchglass.rules import BUILT_IN, documentation, find_rule

    console = stdout_console()
    rule = documentation(find_rule(name))
    print_heading(console, rule.name, rule.summary)
    for title, text in rule.sections.items():
        print_section(console, title, as_sentences(text))
    print_parameters(console, rule.parameters)
    for calibration, overrides in rule.calibrations.items():
        values = ", ".join(f"{key}={value}" for key, value in overrides.items())
        console.print()
        console.print(Text.assemble((f"Calibration {calibration}", "bold"), f"  {values}"))
        if calibration in rule.algorithms:
            text = rule.algorithms[calibration]
            print_section(console, "Fires then when", as_sentences(text))
    if rule.sets:
        print_section(console, "Sets", ", ".join((*rule.sets, "all")))
    if rule.symptoms:
        print_section(console, "Symptoms and their likely causes", _causes(rule.symptoms))
    if name in BUILT_IN:
        print_section(console, "Recall and false alarms", _scores(name))
        trained = "made of numbers" if rule.built_only else "trained"
        run = f"A sick run, {trained}: python examples/rules.py {name}\nIts healthy twin: add --healthy"
        print_section(console, "Example, in a checkout", run)
    first = rule.parameters[0] if rule.parameters else None
    # A list has no form of one word.
    plain = first is not None and isinstance(first.default, (bool, int, float, str))
    example = f"{name}:{first.name}={first.default}" if first is not None and plain else name
    print_hint(console, f"watchglass run --rules {shlex.quote(example)} train.py")


def _causes(symptoms: Iterable[str]) -> str:
    """A line for each symptom, with its likeliest causes."""
    from watchglass.rules import load_knowledge

    knowledge = load_knowledge()
    return "\n".join(
        f"{knowledge.symptoms[each].means}: "
        + ("; ".join(knowledge.cause(cause).title for cause in knowledge.likely([each])) or "no separate cause")
        for each in symptoms
    )


def _scores(name: str) -> str:
    """What a rule found when the rules were last scored, a line for each half of the zoo."""
    from watchglass.rules import scores_of, why_not_scored

    return (
        "\n".join(
            f"{each.half} half: {each.found} of {each.sick} sick runs, with faults of all classes, and "
            f"{each.alarms} of {each.healthy} healthy runs have a finding"
            for each in scores_of(name)
        )
        or f"rates are not measured: {why_not_scored(name)}"
    )


def _write_new(name: str | None, new: str | None, folder: Path | None, *, other_options: bool) -> None:
    from watchglass.cli.listing import print_hint
    from watchglass.cli.new_rule import write_new_rule

    if name != "new" or new is None or other_options:
        raise InvalidValueError("to write a new rule: watchglass rules new CLASS [--folder FOLDER]")
    rule, test = write_new_rule(new, folder or Path())
    typer.echo(f"{printable(str(rule))}: the rule {new}\n{printable(str(test))}: its test")
    print_hint(
        stdout_console(),
        f"pytest {shlex.quote(str(test))}; watchglass run --rules {shlex.quote(f'{rule}:{new}')} train.py",
    )


def _print_coverage(*, as_json: bool) -> None:
    from watchglass.cli.listing import print_list
    from watchglass.rules import BUILT_IN

    reasons = {name: each.built_only for name, each in BUILT_IN.items()}
    if as_json:
        rows = [
            {"rule": name, "coverage": "built-only" if reason else "live", "reason": reason}
            for name, reason in reasons.items()
        ]
        typer.echo(json.dumps({"rules": rows}, indent=2))
        return
    console = stdout_console()
    print_list(console, ((name, f"built-only: {why}" if why else "live") for name, why in reasons.items()))
    live = sum(not reason for reason in reasons.values())
    console.print()
    console.print(
        f"{live} of {len(reasons)} rules are live: a real sick training run of the tests fires them, and its healthy "
        "twin does not.",
        style="dim",
    )
