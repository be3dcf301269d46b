"""``watchglass explain``: the verdict on a run, with its causes and all evidence."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from watchglass import diagnose, view
from watchglass.cli.declaring import argument, option
from watchglass.cli.evaluator_options import Calibration, Causes, Rules, evaluator_config
from watchglass.cli.failure import print_warning
from watchglass.cli.shared_options import AsJson, PricePerHour, format_of, price_of
from watchglass.cli.terminal import print_rows, stdout_console
from watchglass.errors import InvalidValueError
from watchglass.records import Verdict
from watchglass.view import TextRow

if TYPE_CHECKING:
    from watchglass.rules import Knowledge, RuleDocumentation
    from watchglass.run import Run

RunToExplain = Annotated[
    str | None,
    argument("RUN", "Location of the run: runs/train-20250101-120000, s3://BUCKET/PATH.", show_default=False),
]
FindingToExplain = Annotated[
    str | None,
    argument(
        "FINDING",
        "A finding, by its id or the beginning of it, or all findings of a rule, by the name of the rule.",
        show_default=False,
    ),
]


def explain(
    run: RunToExplain = None,
    finding: FindingToExplain = None,
    rules: Rules = None,
    calibration: Calibration = "default",
    causes: Causes = None,
    price_per_hour: PricePerHour = None,
    output: Annotated[str, option("--format text|json", "Format of the output: for people or for programs.")] = "text",
    as_json: AsJson = False,
    list_causes: Annotated[bool, option("--list-causes", "List all known causes; needs no RUN.")] = False,
) -> None:
    """Explain the diagnoses of a run, or one finding, with all evidence.

    A diagnosis comes with its likely causes, the evidence for and against each, the chain of symptoms, what to try, and
    the sources. A finding comes with the inputs and the condition of its rule, the measured values, and the causes
    that they suggest. The findings are those of the run's evaluator; --rules or --calibration evaluates the run again.
    """
    output = format_of(output, as_json, ("text", "json"))
    from watchglass.rules import load_knowledge

    knowledge = load_knowledge(causes or ())
    if list_causes:
        if run is not None:
            raise InvalidValueError("--list-causes takes no RUN; omit one of the two")
        _list_causes(knowledge, as_json=output == "json")
        return
    if run is None:
        raise InvalidValueError(
            "RUN is missing; usage: watchglass explain RUN [FINDING], or watchglass explain --list-causes"
        )
    opened, verdict, documented = _judged(run, rules, calibration, causes, price_per_hour)
    _print(verdict, finding, knowledge, documented, as_json=output == "json")
    for problem in opened.problems:
        print_warning(str(problem))


def _judged(
    run: str, rules: list[str] | None, calibration: str, causes: list[str] | None, price_per_hour: str | None
) -> tuple[Run, Verdict, dict[str, RuleDocumentation]]:
    """The run, the verdict on it, and the documentation of its rules, as far as it is available."""
    from watchglass.cli.verdicts import judged, replayed
    from watchglass.rules import rule_names

    if rules is None and calibration == "default":
        opened, verdict = judged(run, causes=causes or (), price_per_hour=price_of(price_per_hour))
        # A journal may name any file as a rule, and looking it up there would execute the file.
        return opened, verdict, _documented([each.rule for each in verdict.statuses if each.rule in rule_names()])
    config = evaluator_config(
        run=run, rules=rules, calibration=calibration, causes=causes, price_per_hour=price_per_hour
    )
    opened, verdict = replayed(config)
    return opened, verdict, _documented([spec.name for spec in config.rules])


def _documented(names: Sequence[str]) -> dict[str, RuleDocumentation]:
    from watchglass.rules import documentation, find_rule

    return {rule.name: rule for rule in (documentation(find_rule(name)) for name in names)}


def _print(
    verdict: Verdict,
    finding: str | None,
    knowledge: Knowledge,
    documented: dict[str, RuleDocumentation],
    *,
    as_json: bool,
) -> None:
    explained = None
    if finding is not None:
        explained = [
            diagnose.explain(each, verdict, knowledge, documented) for each in diagnose.find_findings(verdict, finding)
        ]
    if as_json:
        typer.echo(view.explanation_json(verdict, explained), nl=False)
        return
    if explained is None:
        rows = view.explain_verdict(verdict)
    elif explained:
        rows = view.explain_findings(explained, verdict)
    else:
        (status,) = [status for status in verdict.statuses if status.rule.lower() == str(finding).lower()][:1]
        reason = f": {status.reason}" if status.reason else ""
        rows = [TextRow(f"{status.rule} found nothing: {status.status.value}{reason}")]
    print_rows(stdout_console(), rows)


def _list_causes(knowledge: Knowledge, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"causes": [_cause_json(knowledge, name) for name in knowledge.causes]}, indent=2))
        return
    rows: list[TextRow] = []
    for cause in knowledge.causes.values():
        rows += [TextRow(cause.id), TextRow(f"{cause.title[:1].upper()}{cause.title[1:]}. {cause.explanation}", "what")]
        links = sorted(
            (link for link in knowledge.all_links() if link.cause == cause.id), key=lambda each: -each.weight
        )
        for label, chosen in (
            ("for", [link for link in links if link.weight > 0]),
            ("against", [link for link in links if link.weight < 0]),
        ):
            rows += [
                TextRow(
                    f"{link.weight:>5.2f}  {link.symptom}: {knowledge.symptoms[link.symptom].means}",
                    label if link is chosen[0] else "",
                )
                for link in chosen
            ]
        rows += [TextRow(", ".join(sorted(seen)), "seen by")] if (seen := knowledge.seen_by.get(cause.id)) else []
        rows += [TextRow(text, "" if position else "try") for position, text in enumerate(cause.what_to_try)]
        rows += [TextRow(cause.source, "source")] if cause.source else []
        rows.append(TextRow(""))
    console = stdout_console()
    console.file.write(view.rows_text(rows[:-1], width=console.width))


def _cause_json(knowledge: Knowledge, name: str) -> dict[str, object]:
    cause = knowledge.causes[name]
    return {
        "id": name,
        "title": cause.title,
        "explanation": cause.explanation,
        "symptoms": {link.symptom: link.weight for link in knowledge.all_links() if link.cause == name},
        "leads_to": sorted(knowledge.consequences.get(name, ())),
        "seen_by": sorted(knowledge.seen_by.get(name, ())),
        "advice": [template.text for template in knowledge.advice.get(name, ())],
        "try": list(cause.what_to_try),
        "source": cause.source,
    }
