"""Verdicts as JSON. ``assets/check-1.json`` is the schema: each new key must be added there too."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from watchglass.records import (
    Diagnosis,
    Failure,
    Finding,
    ModelSummary,
    RankedCause,
    Verdict,
    facts,
)
from watchglass.view.conclusion import Terms, outcome
from watchglass.view.failure import failure_sentence
from watchglass.view.formats import Judged
from watchglass.view.text import harmless_json
from watchglass.view.verdict_sentences import headline

#: Identifier of the schema; its number rises when a key changes its meaning or goes.
SCHEMA = "urn:watchglass:schema:check:1"
#: Rises when a key is added.
VERSION = "1.2"

#: Keys of a finding in the JSON, in this order.
_FINDING_KEYS = (
    "id", "rule", "severity", "step", "last_step", "count", "mode", "worker", "tensors", "value", "limit", "message",
    "causes", "try", "attempt", "global_step", "model",
)  # fmt: skip


def json_document(judged: Judged) -> str:
    """One JSON object: of one run, or of many an object with all ``runs``."""
    head = {"$schema": SCHEMA, "version": VERSION}
    found = [_verdict(verdict, judged.terms) for verdict in judged.verdicts]
    whole = {**head, "runs": found} if judged.many else {**head, **found[0]}
    return strict_json(whole)


@cache
def json_schema() -> str:
    """The JSON Schema (draft 2020-12) of the output of :func:`json_document`."""
    return Path(__file__).with_name("assets").joinpath("check-1.json").read_text(encoding="utf-8")


def _verdict(verdict: Verdict, terms: Terms) -> dict[str, Any]:
    return {
        "run": verdict.run,
        "status": verdict.status,
        "outcome": outcome(verdict, terms),
        "headline": headline(verdict),
        "diagnoses": [diagnosis_to_json(diagnosis) for diagnosis in verdict.diagnoses],
        "findings": [finding_to_json(finding) for finding in verdict.findings],
        "rules": [status.to_json() for status in verdict.statuses],
        "metrics": verdict.metrics,
        "script": verdict.script or None,
        "models": [_model(summary) for summary in verdict.models],
        "train_steps": verdict.train_steps,
        "examined": asdict(verdict.examined) if verdict.examined is not None else None,
        "planned_train_steps": verdict.planned_train_steps,
        "seconds": verdict.seconds,
        "stop_reason": verdict.stop_reason or None,
        "saved": {
            "steps": verdict.steps_saved,
            "seconds": verdict.seconds_saved,
            "cost": verdict.cost_saved,
            "price_per_hour": verdict.price_per_hour,
        },
        "problems": list(verdict.problems),
        "records_missing": verdict.records_missing,
        "capture": verdict.capture,
        "failure": failure_to_json(verdict.failure) if verdict.failure is not None else None,
        "ended_early": [failure_to_json(failure) for failure in verdict.ended_early],
        "bypassed": [_bypassed(past) for past in verdict.bypassed],
        "unjudged": verdict.unjudged or None,
    }


def failure_to_json(failure: Failure) -> dict[str, Any]:
    """A failure as JSON."""
    return {
        "kind": failure.kind,
        "sentence": failure_sentence(failure),
        "type": failure.type or None,
        "message": failure.message or None,
        "file": failure.file or None,
        "line": failure.line or None,
        "source": failure.source or None,
        "module": failure.module or None,
        "figures": failure.figures or None,
        "exit_status": failure.exit_status,
        "worker": failure.worker or None,
    }


def _bypassed(past: facts.BypassedUpdates) -> dict[str, Any]:
    return {"worker": past.worker or None, "since": past.since, "steps": past.steps, "reason": past.reason}


def _model(summary: ModelSummary) -> dict[str, Any]:
    return {
        "model": summary.model,
        "name": summary.name,
        "variable": summary.variable or None,
        "type": summary.type or None,
        "worker": summary.worker or None,
        "train_steps": summary.train_steps,
        "examined_steps": summary.examined_steps,
        "first_step": summary.first_step,
        "training_loss": summary.training_loss,
        "validation_loss": summary.validation_loss,
        "best_validation_loss": summary.best_validation_loss,
        "accuracy": summary.accuracy,
        "accuracy_share": summary.accuracy_share,
        "findings": summary.findings,
        "worst": summary.worst.value if summary.worst is not None else None,
    }


def diagnosis_to_json(diagnosis: Diagnosis) -> dict[str, Any]:
    """A diagnosis as JSON."""
    return {
        "headline": diagnosis.headline,
        "severity": diagnosis.severity.value,
        "step": diagnosis.step,
        "subject": diagnosis.subject,
        "workers": list(diagnosis.workers),
        "models": list(diagnosis.models),
        "causes": [_cause(ranked) for ranked in diagnosis.causes],
        "findings": list(diagnosis.findings),
        "try": list(diagnosis.what_to_try),
        "checkpoint": diagnosis.checkpoint.to_data() if diagnosis.checkpoint is not None else None,
    }


def _cause(ranked: RankedCause) -> dict[str, Any]:
    return {
        "id": ranked.cause.id,
        "title": ranked.cause.title,
        "score": ranked.score,
        "step": ranked.step,
        "explanation": ranked.cause.explanation,
        "evidence": list(ranked.evidence),
        "against": list(ranked.against),
        "try": list(ranked.what_to_try),
    }


def finding_to_json(finding: Finding) -> dict[str, Any]:
    """A finding as JSON."""
    data = finding.to_json()
    return {key: data[key] for key in _FINDING_KEYS}


def strict_json(value: Any) -> str:
    """A document with strings for numbers that JSON does not have; values from a file may contain any."""
    plain = json.loads(json.dumps(value), parse_constant=str)
    return harmless_json(json.dumps(plain, allow_nan=False, indent=2)) + "\n"
