"""Verdicts as SARIF 2.1.0, the exchange format of static analysis that code scanning services read.

Source: OASIS Standard "Static Analysis Results Interchange Format (SARIF) Version 2.1.0"; further requirements of
GitHub are in its documentation, "SARIF support for code scanning".
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any
from urllib.parse import quote

from watchglass.records import Finding, Severity, Status, Verdict, count, number_to_json
from watchglass.version import __version__
from watchglass.view.conclusion import Terms, failed_rules, not_answered, outcome
from watchglass.view.formats import Judged, RuleText
from watchglass.view.text import harmless_json, printable
from watchglass.view.verdict_sentences import advice, headline

_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}

#: Results of one run; GitHub refuses more than 25,000 and shows 5,000.
MOST_RESULTS = 5_000
#: Characters that GitHub allows for a description of a rule, and for one line that names it.
_LONG, _SHORT = 1024, 255
#: What has a meaning in messages, as plain text.
_ESCAPED = {"{": "{{", "}": "}}", "\\": "\\\\", "[": "\\[", "]": "\\]"}


def sarif_document(judged: Judged) -> str:
    """One SARIF log with a ``run`` for each verdict. An invocation without an answer is unsuccessful."""
    texts = judged.rules()
    log = {
        "$schema": _SCHEMA,
        "version": "2.1.0",
        "runs": [_run(verdict, judged.terms, texts) for verdict in judged.verdicts],
    }
    return harmless_json(json.dumps(log, allow_nan=False, indent=2)) + "\n"


def _run(verdict: Verdict, terms: Terms, rules: Mapping[str, RuleText]) -> dict[str, Any]:
    shown = verdict.findings[:MOST_RESULTS]
    names = list(dict.fromkeys([status.rule for status in verdict.statuses] + [finding.rule for finding in shown]))
    described = {name: _rule(name, rules.get(name), shown) for name in names}
    position = {name: index for index, name in enumerate(names)}
    return {
        "tool": {
            "driver": {"name": "watchglass", "version": __version__, "rules": list(described.values())},
        },
        # Services distinguish several runs of one tool in one file by this id.
        "automationDetails": {"id": f"watchglass/{printable(verdict.run)}/"},
        "invocations": [
            {
                "executionSuccessful": outcome(verdict, terms) != "no answer",
                "toolExecutionNotifications": _notifications(verdict, terms, position, len(shown)),
            }
        ],
        "columnKind": "utf16CodeUnits",
        "results": [
            _result(finding, position[finding.rule], mark, verdict)
            for finding, mark in zip(shown, _marks(shown), strict=True)
        ],
        "properties": {
            "run": verdict.run,
            "status": verdict.status,
            "headline": headline(verdict),
            "trainSteps": verdict.train_steps,
            "recordsMissing": verdict.records_missing,
        },
    }


def _rule(name: str, text: RuleText | None, findings: Sequence[Finding]) -> dict[str, Any]:
    severities = [finding.severity for finding in findings if finding.rule == name]
    worst = max(severities, key=lambda severity: severity.rank, default=Severity.WARNING)
    summary = text.summary if text is not None and text.summary else f"What the rule {name} found."
    sections = dict(text.sections) if text is not None else {}
    plain = "\n\n".join([summary, *(f"{title}: {section}" for title, section in sections.items())])
    marked = "\n\n".join([summary, *(f"**{title}**\n\n{section}" for title, section in sections.items())])
    return {
        "id": name,
        "name": name,
        "shortDescription": {"text": _message(summary, _SHORT)},
        "fullDescription": {"text": _message(plain, _LONG)},
        "help": {"text": _message(plain), "markdown": marked},
        "defaultConfiguration": {"level": _LEVELS[worst]},
        "properties": {"tags": ["training"], "precision": "high"},
    }


def _marks(findings: Sequence[Finding]) -> Iterator[str]:
    """The fingerprint that a finding keeps in the next run of the same script; unique within a run."""
    seen: Counter[str] = Counter()
    for finding in findings:
        about = "\0".join((finding.rule, *finding.tensors[:1], finding.mode.name, finding.worker))
        digest = hashlib.sha256(about.encode("utf-8", "replace")).hexdigest()[:16]
        seen[digest] += 1
        yield f"{digest}:{seen[digest]}"


def _result(finding: Finding, rule: int, mark: str, verdict: Verdict) -> dict[str, Any]:
    return {
        "ruleId": finding.rule,
        "ruleIndex": rule,
        "level": _LEVELS[finding.severity],
        "message": {"text": _message(_sentence(finding, advice(finding, verdict)))},
        "locations": [_location(finding, verdict)],
        "fingerprints": {"watchglass/finding/v1": finding.id},
        "partialFingerprints": {"primaryLocationLineHash": mark},
        "occurrenceCount": max(1, finding.count),
        "properties": {
            "id": finding.id,
            "severity": finding.severity.value,
            "step": finding.step,
            "lastStep": finding.last_step,
            "mode": finding.mode.name,
            "worker": finding.worker,
            "attempt": finding.attempt,
            "tensors": list(finding.tensors),
            "value": number_to_json(finding.value),
            "limit": number_to_json(finding.limit),
            "causes": list(finding.causes),
        },
    }


def _sentence(finding: Finding, tries: Sequence[str]) -> str:
    text = f"{printable(finding.message)} (step {finding.step}, {printable(finding.worker) or 'all workers'})."
    return text + "".join(f" Try: {printable(each)}." for each in tries[:1])


def _location(finding: Finding, verdict: Verdict) -> dict[str, Any]:
    location: dict[str, Any] = {
        "physicalLocation": {"artifactLocation": _artifact(verdict), "region": {"startLine": 1}},
    }
    if finding.tensors:
        location["logicalLocations"] = [
            {"name": printable(name), "fullyQualifiedName": printable(name), "kind": "variable"}
            for name in finding.tensors[:1]
        ]
    return location


def _artifact(verdict: Verdict) -> dict[str, Any]:
    """The script if it is known, else the manifest of the run: services need a file of the repository."""
    path = verdict.script or f"{verdict.run.rstrip('/')}/run.json"
    if path.startswith("/"):
        return {"uri": "file://" + quote(path, errors="replace")}
    scheme, separator, rest = path.partition("://")
    # GitHub takes relative references and file: only, so an object is named by bucket and key.
    relative = (rest if separator and scheme.isalnum() else path).removeprefix("./")
    return {"uri": quote(relative.lstrip("/"), safe="/", errors="replace"), "uriBaseId": "%SRCROOT%"}


def _notifications(verdict: Verdict, terms: Terms, position: Mapping[str, int], shown: int) -> list[dict[str, Any]]:
    reason = not_answered(verdict, terms)
    notes = [_notification("error", text) for text in (*([reason] if reason else []), *failed_rules(verdict))]
    notes += [_notification("warning", text) for text in verdict.problems]
    if shown < len(verdict.findings):
        notes.append(_notification("warning", f"{count(len(verdict.findings) - shown, 'further finding')} omitted"))
    for status in verdict.statuses:
        if status.status is Status.STARVED:
            text = f"rule {status.rule} could not be evaluated: {status.reason or 'no reason given'}"
            rule = {"associatedRule": {"id": status.rule, "index": position[status.rule]}}
            notes.append({**_notification("note", text), **rule})
    return notes


def _notification(level: str, text: str) -> dict[str, Any]:
    return {"level": level, "message": {"text": _message(printable(text))}}


def _message(text: str, longest: int | None = None) -> str:
    """Plain text for a message, in which braces are placeholders and brackets links unless they are escaped."""
    escaped = [_ESCAPED.get(character, character) for character in text]
    if longest is not None:
        escaped = [part for part, end in zip(escaped, accumulate(map(len, escaped)), strict=True) if end <= longest]
    return "".join(escaped)
