"""Write docs/rules/NAME.md for each built-in rule, and draw the figures that are missing: `make rule-pages`.

python tools/rule_pages.py                    all pages, and the figures of rules without one
python tools/rule_pages.py --redraw DeadRelu  also the figures of these rules, again
python tools/rule_pages.py --redraw all       also all figures, again; takes minutes
"""

from __future__ import annotations

import argparse
import html
import multiprocessing
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from watchglass.cli.listing import as_sentences
from watchglass.config import ParameterInfo
from watchglass.rules import (
    RuleDocumentation,
    documentation,
    find_rule,
    load_knowledge,
    rule_names,
    scored_commit,
    scores_of,
    why_not_scored,
)

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "docs" / "rules"
FIGURES = PAGES / "figures"
LIST = ROOT / "docs" / "rules.md"
SLOW = ROOT / "docs" / "slow-programs.md"
#: What docs/rules.md has between the list of links and the text after it.
BEGIN, END = "<!-- pages, by make rule-pages -->\n", "<!-- end of pages -->"

#: Limit of drawing one figure, which takes seconds.
_LONGEST_S = 600


def _figure_of(name: str) -> Path:
    return FIGURES / f"{name}.svg"


def page(name: str) -> str:
    """The page of a rule, as Markdown."""
    rule = documentation(find_rule(name))
    parts = [
        "<!-- Written by make rule-pages from the docstring of the rule. -->\n",
        f"# {name}\n",
        _text(rule.summary) + "\n",
        _sets(rule),
        _figure(name, rule.built_only),
        *(f"## {title}\n\n{_text(text)}\n" for title, text in rule.sections.items()),
        _parameters(rule.parameters),
        *(_calibration(rule, calibration) for calibration in rule.calibrations),
        _causes(rule.symptoms),
        _scores(name, rule.symptoms),
        _example(name, rule.built_only),
    ]
    return "\n".join(parts)


def list_of_pages(text: str) -> str:
    """``docs/rules.md`` with a link to each page, in its place between two comments."""
    before, _, rest = text.partition(BEGIN)
    links = ",\n".join(f"[{name}](rules/{name}.md)" for name in sorted(rule_names()))
    return f"{before}{BEGIN}{links}.\n{END}{rest.partition(END)[2]}"


def _sets(rule: RuleDocumentation) -> str:
    sets = [f"`{each}`" for each in (*rule.sets, "all")]
    others = f"Sets: {', '.join(sets)}. [All rules](../rules.md)"
    if "default" in rule.sets:
        return f"Evaluated by default. {others}\n"
    return f"Not evaluated by default; `watchglass run --rules default,{rule.name} train.py` adds it. {others}\n"


def _figure(name: str, built_only: str) -> str:
    path = _figure_of(name)
    if not path.is_file():
        return ""
    found = re.search(r"<desc>(.*?)</desc>", path.read_text(encoding="utf-8"), re.DOTALL)
    if found is None:
        raise SystemExit(
            f"rule_pages: {path.relative_to(ROOT)} has no <desc>; run make rule-pages with --redraw {name}"
        )
    when, _, message = html.unescape(found[1]).partition(": ")
    when = {"Samples": "Of the run as a whole"}.get(when, when.replace("Step", "At step"))
    titles = re.findall(r'font-weight="bold">(.*?)<', path.read_text(encoding="utf-8"))
    shown = {"loss": "Losses"}.get(titles[0], titles[0])
    runs = "A sick run and its healthy twin, both made of numbers" if built_only else "A sick run and its healthy twin"
    return (
        f"![{shown} of a sick run and of its healthy twin, and where {name} reports](figures/{name}.svg)\n\n"
        f"{runs}. {when} the rule reports: *{_escaped(message)}*.\n"
    )


def _parameters(parameters: Sequence[ParameterInfo]) -> str:
    if not parameters:
        return "## Parameters\n\nNone.\n"
    rows = [
        (f"`{each.name}`", _kind(each.type), f"`{_plain(each.default)}`", each.limits, each.unit, each.help)
        for each in parameters
    ]
    return "## Parameters\n\n" + _table(("parameter", "type", "default", "limits", "unit", "meaning"), rows)


def _calibration(rule: RuleDocumentation, name: str) -> str:
    values = ", ".join(f"`{key}={_plain(value)}`" for key, value in rule.calibrations[name].items()) or "no parameters"
    if name not in rule.algorithms:
        return f"With `--calibration {name}`: {values}.\n"
    text = rule.algorithms[name]
    return f"With `--calibration {name}` the rule is another one, with {values}. It fires when: {_text(text)}\n"


def _causes(symptoms: Iterable[str]) -> str:
    """The symptoms of a rule, each with its likeliest causes, most likely first."""
    knowledge = load_knowledge()
    rows = [
        (
            knowledge.symptoms[each].means,
            "; ".join(knowledge.cause(cause).title for cause in knowledge.likely([each])) or "-",
        )
        for each in symptoms
    ]
    if not rows:
        return "## Causes that it leads to\n\nNone: its findings stand for themselves.\n"
    head = "## Causes that it leads to\n\nA diagnosis weighs the symptoms of all findings.\n\n"
    return head + _table(("symptom", "likely causes, most likely first"), rows)


def _scores(name: str, symptoms: Iterable[str]) -> str:
    title = "## Recall and false alarms\n\n"
    scores = scores_of(name)
    if not scores:
        return f"{title}Rates are not measured: {why_not_scored(name)}.\n{_slow_programs(symptoms)}"
    rows = [(each.half, f"{each.found} of {each.sick}", f"{each.alarms} of {each.healthy}") for each in scores]
    return (
        f"{title}Measured by the [scoring](../scoreboard.md) at `{scored_commit()}`. The sick runs have faults of all "
        "classes; this rule looks for a few of them.\n\n"
        + _table(("half of the zoo", "sick runs with a finding", "healthy runs with a finding"), rows)
    )


def _slow_programs(symptoms: Iterable[str]) -> str:
    """The slow programs whose cause was named first by what this rule finds; "" for none."""
    likeliest = {cause for each in symptoms for cause in load_knowledge().likely([each])[:1]}
    lines = [line.strip("|").split("|") for line in SLOW.read_text(encoding="utf-8").splitlines() if line[:1] == "|"]
    heads, _, *rows = [tuple(cell.strip() for cell in line) for line in lines]
    found = [row for row in rows if row[1] in likeliest]
    if not found:
        return ""
    head = f"\nThe verdicts on these [slow programs](../{SLOW.name}) begin with a cause that it finds:\n\n"
    return head + _table(heads, found)


def _example(name: str, built_only: str) -> str:
    does = "makes a sick run of numbers" if built_only else "trains a sick run"
    return (
        f"## Example\n\nIn a checkout, after `make setup-dev`, this {does} and prints the verdict:\n\n"
        f"```console\n$ .venv/bin/python examples/rules.py {name}\n"
        f"$ .venv/bin/python examples/rules.py {name} --healthy    # its healthy twin\n```\n"
    )


def _kind(type_: str) -> str:
    return type_.replace("|", "\\|")


def _plain(value: object) -> str:
    value = getattr(value, "value", value)
    if isinstance(value, (tuple, list)):
        return ",".join(map(_plain, value)) or "none"
    return "none" if value is None or value == "" else str(value)


def _text(text: str) -> str:
    """Text of a docstring as Markdown: its lists are lists, and nothing else has a meaning there."""
    made: list[str] = []
    for line in as_sentences(text.replace("``", "`")).split("\n"):
        item = line.startswith("* ")
        if item and made and not made[-1].startswith("- "):
            made.append("")
        made.append("- " + _escaped(line[2:]) if item else _escaped(line))
    return "\n".join(made)


def _escaped(text: str) -> str:
    """What is not code, without marks of Markdown."""
    return "".join(
        part if part.startswith("`") else re.sub(r"([*_<\\])", r"\\\1", part) for part in re.split(r"(`[^`]*`)", text)
    )


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _draw(names: Sequence[str]) -> int:
    """Draw figures, each in a process of its own: what one run leaves behind must not change another."""
    if not names:
        return 0
    sys.path.append(str(ROOT / "tests"))
    import rule_figures  # it imports PyTorch, once for all processes

    def draw(name: str) -> None:
        _figure_of(name).write_text(rule_figures.draw(name), encoding="utf-8")

    failed = 0
    for name in names:
        print(f"drawing {name}", flush=True)
        process = multiprocessing.get_context("fork").Process(target=draw, args=(name,))
        process.start()
        process.join(_LONGEST_S)
        if process.is_alive():
            process.kill()
            process.join()
            print(f"rule_pages: {name} has no figure: drawing took more than {_LONGEST_S} s", file=sys.stderr)
        failed |= process.exitcode != 0
    return failed


def main() -> int:
    """Entry point.

    Returns:
        Exit status: 0, or another one where a figure could not be drawn.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text-only", action="store_true", help="draw no figure; a page without one has none")
    parser.add_argument("--redraw", nargs="+", default=[], metavar="NAME", help="rules whose figures are drawn again")
    options = parser.parse_args()
    names = rule_names()
    if unknown := set(options.redraw) - {*names, "all"}:
        parser.error(f"--redraw must name built-in rules or all but got {', '.join(sorted(unknown))}")
    FIGURES.mkdir(parents=True, exist_ok=True)
    for old in (*PAGES.glob("*.md"), *FIGURES.glob("*.svg")):
        if old.stem not in names:
            old.unlink()
    again = {"all"} & set(options.redraw)
    missing = [name for name in names if again or name in options.redraw or not _figure_of(name).is_file()]
    failed = 0 if options.text_only else _draw(missing)
    for name in names:
        (PAGES / f"{name}.md").write_text(page(name), encoding="utf-8")
    LIST.write_text(list_of_pages(LIST.read_text(encoding="utf-8")), encoding="utf-8")
    return failed


if __name__ == "__main__":
    sys.exit(main())
