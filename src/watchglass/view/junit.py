"""Verdicts as JUnit XML, as CI servers show it: a suite for each run, a case for each rule."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from watchglass.records import Finding, RuleStatus, Status, Verdict, count
from watchglass.view.conclusion import Terms, counted, not_answered
from watchglass.view.formats import Judged
from watchglass.view.text import harmless_xml, printable
from watchglass.view.verdict_sentences import advice, chain, headline

#: Most findings of one rule that a case lists; the rest are counted.
_MOST_FINDINGS = 50
#: The additional case: whether the records are complete.
WHOLE = "the run is whole"


def junit_document(judged: Judged) -> str:
    """One document with a ``testsuite`` for each verdict.

    Each suite also has a case :data:`WHOLE`. It is an error if the absence of findings is not a clean answer. So a
    suite passes if and only if ``check`` exits with 0.
    """
    root = ET.Element("testsuites", name="watchglass")
    suites = [_suite(root, verdict, judged.terms) for verdict in judged.verdicts]
    for name in ("tests", "failures", "errors", "skipped"):
        root.set(name, str(sum(int(suite.get(name, "0")) for suite in suites)))
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + harmless_xml(ET.tostring(root, encoding="unicode")) + "\n"


def _suite(root: ET.Element, verdict: Verdict, terms: Terms) -> ET.Element:
    name = printable(verdict.run)
    suite = ET.SubElement(root, "testsuite", name=name)
    facts = ET.SubElement(suite, "properties")
    for key, value in (("status", verdict.status), ("headline", headline(verdict))):
        ET.SubElement(facts, "property", name=key, value=printable(value))
    failing = {finding.id for finding in counted(verdict, terms)}
    rules = {status.rule: status for status in verdict.statuses}
    for finding in verdict.findings:
        rules.setdefault(finding.rule, RuleStatus(finding.rule, Status.ISSUES_FOUND))
    cases = [
        _rule_case(suite, verdict, status, [finding for finding in verdict.findings if finding.rule == rule], failing)
        for rule, status in rules.items()
    ]
    cases.append(_whole_case(suite, name, verdict, terms, answered=bool(failing)))
    for total, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(total, str(sum(case.find(tag) is not None for case in cases)))
    suite.set("tests", str(len(cases)))
    return suite


def _rule_case(
    suite: ET.Element, verdict: Verdict, status: RuleStatus, findings: list[Finding], failing: set[str]
) -> ET.Element:
    case = ET.SubElement(suite, "testcase", classname=printable(verdict.run), name=printable(status.rule))
    symptoms = chain(findings)
    text = "\n".join(symptoms[:_MOST_FINDINGS])
    if len(symptoms) > _MOST_FINDINGS:
        text += f"\nand {count(len(symptoms) - _MOST_FINDINGS, 'further finding')}"
    worst = next((finding for finding in findings if finding.id in failing), None)
    if worst is not None:
        tries = "".join(f"\ntry: {printable(each)}" for each in advice(worst, verdict))
        failure = ET.SubElement(case, "failure", message=printable(worst.message), type=worst.severity.value)
        failure.text = text + tries
        return case
    reason = printable(status.reason) or "no reason given"
    if status.status is Status.ERROR:
        ET.SubElement(case, "error", message=reason, type=status.status.value).text = reason
    elif status.status in (Status.NOT_APPLICABLE, Status.STARVED):
        ET.SubElement(case, "skipped", message=f"{status.status.value}: {reason}")
    if text:
        ET.SubElement(case, "system-out").text = text
    return case


def _whole_case(suite: ET.Element, run: str, verdict: Verdict, terms: Terms, *, answered: bool) -> ET.Element:
    case = ET.SubElement(suite, "testcase", classname=run, name=WHOLE)
    reason = printable(not_answered(verdict, terms))
    if reason and (not answered or verdict.status in ("failed", "interrupted")):
        ET.SubElement(case, "error", message=reason, type=verdict.status).text = reason
    if verdict.problems:
        ET.SubElement(case, "system-out").text = "\n".join(printable(problem) for problem in verdict.problems)
    return case
