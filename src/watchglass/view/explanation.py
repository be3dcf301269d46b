"""Explanations for people and programs: complete diagnoses, and single findings with all their evidence."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from watchglass.records import Diagnosis, ExplainedFinding, Finding, Verdict, count
from watchglass.view.json_format import diagnosis_to_json, finding_to_json, strict_json
from watchglass.view.text import number, percent, printable
from watchglass.view.verdict import STYLES, TextRow, beginning, diagnosis_row, heading, unexplained
from watchglass.view.verdict_sentences import alike, chain_link, closing, findings_of, headline, workers_named

#: Evidence that a rule keeps for diagnoses, shown elsewhere.
_SHOWN_ELSEWHERE = {"symptoms", "subject"}
#: Most names of tensors, and most elements of a list, that are shown.
_TENSORS, _ELEMENTS = 8, 12

_TITLE = "bold"


def explain_verdict(verdict: Verdict) -> list[TextRow]:
    """Every diagnosis with its causes, their evidence, the chain of symptoms, what to try and the sources."""
    rows = heading(verdict)
    for position, diagnosis in enumerate(verdict.diagnoses, 1):
        rows.append(TextRow(""))
        rows += _diagnosis(position, diagnosis, verdict)
    rows += unexplained(verdict, most=50)
    rows.append(TextRow(""))
    return rows + [TextRow(text) for text in closing(verdict)]


def _diagnosis(position: int, diagnosis: Diagnosis, verdict: Verdict) -> Iterator[TextRow]:
    yield diagnosis_row(position, diagnosis)
    yield from beginning(diagnosis, verdict)
    for rank, ranked in enumerate(diagnosis.causes, 1):
        yield TextRow("", "")
        yield TextRow(f"{printable(ranked.cause.title)}: {percent(ranked.score)}", f"cause {rank}", _TITLE)
        yield TextRow(f"first at step {ranked.step}", "")
        if ranked.cause.explanation:
            yield TextRow(printable(ranked.cause.explanation), "", "dim")
        yield from _labelled("for it", ranked.evidence)
        yield from _labelled("against", ranked.against)
        if rank > 1:
            yield from _labelled("if so", ranked.what_to_try[:1])
        if ranked.cause.source:
            yield TextRow(printable(ranked.cause.source), "source", "dim")
    yield TextRow("", "")
    links = alike(findings_of(diagnosis, verdict))
    yield from _labelled("chain", [f"{chain_link(group)} [{group[0].id}]" for group in links])
    yield TextRow("", "")
    yield from _labelled("try", diagnosis.what_to_try)


def explain_findings(explained: Sequence[ExplainedFinding], verdict: Verdict) -> list[TextRow]:
    """Everything about findings, one after the other."""
    rows: list[TextRow] = []
    for position, each in enumerate(explained):
        rows += [TextRow("")] if position else []
        rows += _finding(each, verdict)
    return rows


def _finding(explained: ExplainedFinding, verdict: Verdict) -> Iterator[TextRow]:
    finding = explained.finding
    severity = finding.severity.value
    name = f"{printable(finding.id)}  "
    sentence = f"{printable(finding.rule)}, {severity}: {printable(finding.message)}"
    yield TextRow(name + sentence, style=STYLES[severity], hang=len(name))
    yield TextRow(_seen(finding), "seen")
    if finding.tensors:
        more = f" and {len(finding.tensors) - _TENSORS} more" if len(finding.tensors) > _TENSORS else ""
        yield TextRow(printable(", ".join(finding.tensors[:_TENSORS])) + more, "in")
    if finding.value is not None:
        yield TextRow(number(finding.value), "measured", _TITLE)
    if finding.limit is not None:
        yield TextRow(number(finding.limit), "limit")
    if explained.looks_at:
        yield TextRow("", "")
        yield TextRow(printable(explained.looks_at), "looks at")
        yield TextRow(printable(explained.fires_when), "fires if")
        yield TextRow(printable(explained.source), "source", "dim")
    evidence = [
        f"{printable(name)}: {_value(value)}"
        for name, value in finding.evidence.items()
        if name not in _SHOWN_ELSEWHERE and value not in ("", [])
    ]
    if evidence:
        yield TextRow("", "")
        yield from _labelled("evidence", evidence)
    for reading in explained.symptoms:
        yield TextRow("", "")
        means = f": {printable(reading.means)}" if reading.means else ", which no file of causes knows"
        yield TextRow(f"{printable(reading.symptom)}{means}", "symptom")
        causes = [(f"{printable(cause.title)} ({weight:.2g})", weight) for cause, weight in reading.links]
        yield from _labelled("for", [cause for cause, weight in causes if weight > 0])
        yield from _labelled("against", [cause for cause, weight in causes if weight < 0])
    yield TextRow("", "")
    if explained.diagnosis is None:
        has_none = ": findings of severity info have none" if severity == "info" else ""
        yield TextRow("no diagnosis" + has_none, "part of")
        yield from _labelled("try", explained.what_to_try)
    else:
        diagnosis = verdict.diagnoses[explained.diagnosis]
        yield TextRow(f"{explained.diagnosis + 1}. {printable(diagnosis.headline)}", "part of")
        yield from _labelled("try", diagnosis.what_to_try)


def _seen(finding: Finding) -> str:
    steps = f"step {finding.step}" if finding.count == 1 else f"steps {finding.step} to {finding.last_step}"
    times = f", {count(finding.count, 'time')}" if finding.count > 1 else ""
    attempt = f", attempt {finding.attempt}" if finding.attempt else ""
    return f"{steps} of {finding.mode.name} on {workers_named((finding.worker,))}{attempt}{times}"


def _value(value: Any) -> str:
    if isinstance(value, float):
        return number(value)
    if isinstance(value, (list, tuple)):
        shown = ", ".join(_value(each) for each in value[:_ELEMENTS])
        return shown + (f" and {len(value) - _ELEMENTS} more" if len(value) > _ELEMENTS else "")
    return printable(value if isinstance(value, str) else json.dumps(value))


def _labelled(label: str, sentences: Sequence[str]) -> Iterator[TextRow]:
    for position, sentence in enumerate(sentences):
        yield TextRow(printable(sentence), label if position == 0 else "")


def explanation_json(verdict: Verdict, explained: Sequence[ExplainedFinding] | None = None) -> str:
    """One JSON object: the diagnoses of a run, or with ``explained`` everything about these findings."""
    whole: dict[str, Any] = {"run": verdict.run, "status": verdict.status, "headline": headline(verdict)}
    if explained is None:
        whole["diagnoses"] = [
            {**diagnosis_to_json(diagnosis), "sources": [each.cause.source for each in diagnosis.causes]}
            for diagnosis in verdict.diagnoses
        ]
    else:
        whole["findings"] = [_explained_json(each, verdict) for each in explained]
    return strict_json(whole)


def _explained_json(explained: ExplainedFinding, verdict: Verdict) -> dict[str, Any]:
    place = explained.diagnosis
    return {
        **finding_to_json(explained.finding),
        "evidence": {k: v for k, v in explained.finding.evidence.items() if k not in _SHOWN_ELSEWHERE},
        "looks_at": explained.looks_at,
        "fires_when": explained.fires_when,
        "source": explained.source,
        "symptoms": [
            {
                "id": reading.symptom,
                "means": reading.means,
                "causes": {cause.id: weight for cause, weight in reading.links},
            }
            for reading in explained.symptoms
        ],
        "diagnosis": diagnosis_to_json(verdict.diagnoses[place]) if place is not None else None,
    }
