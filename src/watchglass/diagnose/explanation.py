"""One finding with its rule, its symptoms and their causes, in one record. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping

from watchglass.config import suggest
from watchglass.errors import UnknownNameError
from watchglass.records import ExplainedFinding, Finding, SymptomReading, Verdict
from watchglass.rules import Knowledge, RuleDocumentation

#: Most findings that an error names.
_NAMED = 5


def find_findings(verdict: Verdict, text: str) -> tuple[Finding, ...]:
    """The findings that a text names.

    Args:
        verdict: The verdict with the findings.
        text: The id of one, the beginning of an id, or the name of a rule, for all of its findings.

    Returns:
        Empty only for the name of a rule without findings.

    Raises:
        UnknownNameError: No finding or rule has this name, or several ids begin with it; the message suggests others.
    """
    for finding in verdict.findings:
        if finding.id == text.lower():
            return (finding,)
    rules = [status.rule for status in verdict.statuses] + [finding.rule for finding in verdict.findings]
    rule = next((name for name in rules if name.lower() == text.lower()), None)
    if rule is not None:
        return tuple(sorted((f for f in verdict.findings if f.rule == rule), key=lambda f: (f.attempt, f.global_step)))
    hits = [finding for finding in verdict.findings if text and finding.id.startswith(text.lower())]
    if len(hits) == 1:
        return (hits[0],)
    if hits:
        raise UnknownNameError(f'{len(hits)} findings have an id that begins with "{text}": {_listed(hits)}')
    near = suggest(text, [*dict.fromkeys(rules), *(finding.id for finding in verdict.findings)])
    there_are = f"; there are {_listed(verdict.findings)}" if verdict.findings else "; nothing was found"
    raise UnknownNameError(f'no finding or rule of this run is called "{text}"{near}{"" if near else there_are}')


def _listed(findings: tuple[Finding, ...] | list[Finding]) -> str:
    named = ", ".join(f"{finding.id} ({finding.rule})" for finding in findings[:_NAMED])
    return named + (f" and {len(findings) - _NAMED:,} more" if len(findings) > _NAMED else "")


def explain(
    finding: Finding, verdict: Verdict, knowledge: Knowledge, documented: Mapping[str, RuleDocumentation]
) -> ExplainedFinding:
    """All that is known about one finding.

    Args:
        finding: One of the verdict's.
        verdict: The verdict, for the diagnosis that it belongs to.
        knowledge: Links of symptoms to causes.
        documented: Documentation of rules by name, as far as available.
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
