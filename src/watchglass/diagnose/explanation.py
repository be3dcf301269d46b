"""Why a finding is one, and what it says of causes: everything about it in one record. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from watchglass.config import suggest
from watchglass.errors import UnknownNameError
from watchglass.records import ExplainedFinding, Finding, SymptomReading, Verdict
from watchglass.rules import Knowledge, RuleDocumentation

#: Findings that an error names.
_NAMED = 5


def find_findings(verdict: Verdict, text: str) -> tuple[Finding, ...]:
    """The findings that a text names.

    Args:
        verdict: Where they are.
        text: The id of one, the beginning of an id, or the name of a rule, for all of its findings.

    Returns:
        None only where a rule is named that found nothing.

    Raises:
        UnknownNameError: No finding or rule is called so, or several ids begin so; the message has near ones.
    """
    for finding in verdict.findings:
        if finding.id == text.lower():
            return (finding,)
    rules = [status.rule for status in verdict.statuses] + [finding.rule for finding in verdict.findings]
    rule = next((name for name in rules if name.lower() == text.lower()), None)
    if rule is not None:
        return tuple(sorted((f for f in verdict.findings if f.rule == rule), key=lambda f: (f.attempt, f.global_step)))
    begin_so = [finding for finding in verdict.findings if text and finding.id.startswith(text.lower())]
    if len(begin_so) == 1:
        return (begin_so[0],)
    if begin_so:
        raise UnknownNameError(f'{len(begin_so)} findings have an id that begins with "{text}": {_listed(begin_so)}')
    near = suggest(text, [*dict.fromkeys(rules), *(finding.id for finding in verdict.findings)])
    there_are = f"; there are {_listed(verdict.findings)}" if verdict.findings else "; nothing was found"
    raise UnknownNameError(f'no finding or rule of this run is called "{text}"{near}{"" if near else there_are}')


def _listed(findings: tuple[Finding, ...] | list[Finding]) -> str:
    named = ", ".join(f"{finding.id} ({finding.rule})" for finding in findings[:_NAMED])
    return named + (f" and {len(findings) - _NAMED:,} more" if len(findings) > _NAMED else "")


def explain(
    finding: Finding, verdict: Verdict, knowledge: Knowledge, documented: Mapping[str, RuleDocumentation]
) -> ExplainedFinding:
    """All that is known of one finding.

    Args:
        finding: One of the verdict's.
        verdict: The verdict, for the diagnosis that it belongs to.
        knowledge: What its symptoms say of causes.
        documented: What rules say of themselves, by name, as far as they are at hand.
    """
    rule = documented.get(finding.rule)
    sections = rule.sections if rule is not None else {}
    diagnosis = next((n for n, each in enumerate(verdict.diagnoses) if finding.id in each.findings), None)
    return ExplainedFinding(
        finding=finding,
        looks_at=sections.get("Looks at", ""),
        fires_when=sections.get("Fires when", ""),
        source=sections.get("Source", ""),
        diagnosis=diagnosis,
        symptoms=tuple(_reading(name, knowledge) for name in finding.symptoms),
        what_to_try=finding.what_to_try,
    )


def _reading(symptom: str, knowledge: Knowledge) -> SymptomReading:
    known = knowledge.symptoms.get(symptom)
    links = sorted(knowledge.links.get(symptom, {}).items(), key=lambda link: -link[1])
    return SymptomReading(
        symptom, known.means if known else "", tuple((knowledge.cause(cause), weight) for cause, weight in links)
    )
