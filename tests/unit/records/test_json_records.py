"""Records go from one process to another and come back as they were."""

from __future__ import annotations

import json
import math
from dataclasses import fields, replace

import pytest

from watchglass.records import (
    Cause,
    Diagnosis,
    Failure,
    Finding,
    Mode,
    RankedCause,
    RuleStatus,
    Severity,
    Status,
    Verdict,
    as_json,
    from_json,
)
from watchglass.records.verdict import ModelSummary

FINDING = Finding(
    id="f", rule="DeadRelu", severity=Severity.ERROR, step=3, last_step=5, count=2, mode=Mode.TRAIN, worker="worker_0",
    tensors=("fc1.output",), value=math.inf, limit=None, message="dead", evidence={"value": 0.5},
)  # fmt: skip
CAUSE = Cause("high", "the learning rate is too high", "It is.", ("Lower it",), "a book")
RANKED = RankedCause(CAUSE, 0.5, 3, ("step 3",), ("no",), ("Lower it",))
VERDICT = Verdict(
    run="runs/a",
    status="failed",
    diagnoses=(Diagnosis((RANKED,), ("f",), Severity.ERROR, 3, "fc1", "dead", ("Try",), ("worker_0",)),),
    findings=(FINDING,),
    statuses=(RuleStatus("DeadRelu", Status.ISSUES_FOUND, ""),),
    metrics={"training loss": math.inf},
    train_steps=7,
    planned_train_steps=10,
    seconds=1.5,
    capture={"interval": 4, "peak_bytes": {"cpu": 5}, "observed_extra_ns": None},
    problems=("one",),
)


def test_a_verdict_comes_back_as_it_was() -> None:
    assert from_json(Verdict, json.loads(json.dumps(as_json(VERDICT)))) == VERDICT


def test_so_do_a_failure_and_the_models_of_a_verdict() -> None:
    kinds = {field.name: field.type for field in fields(Verdict)}
    assert "Failure" in str(kinds["failure"])
    assert "ModelSummary" in str(kinds["models"])
    failure = Failure("exception", "ValueError", "no", exit_status=1)
    found = replace(
        VERDICT, failure=failure, models=(ModelSummary(0, "model"), ModelSummary(1, "model_2", worst=Severity.ERROR))
    )
    assert from_json(Verdict, json.loads(json.dumps(as_json(found)))) == found


def test_what_is_not_a_number_stays_so() -> None:
    found = replace(VERDICT, metrics={"x": math.nan})
    (value,) = from_json(Verdict, json.loads(json.dumps(as_json(found)))).metrics.values()
    assert math.isnan(value)


@pytest.mark.parametrize("change", [{"title": 7}, {"what_to_try": "Lower it"}, {"what_to_try": [1]}, {"source": None}])
def test_values_of_another_type_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(TypeError):
        from_json(Cause, {**as_json(CAUSE), **change})


def test_missing_fields_have_their_defaults_where_there_are_any() -> None:
    written = as_json(CAUSE)
    del written["source"]
    assert from_json(Cause, {**written, "newer": 1}) == replace(CAUSE, source="")
    del written["title"]
    with pytest.raises(KeyError, match="title"):
        from_json(Cause, written)
