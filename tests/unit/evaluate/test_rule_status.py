"""What the facts of all workers and attempts come to: one status of a rule."""

from __future__ import annotations

import pytest

from watchglass.evaluate.engine.rule_status import WorkerFacts, status_of
from watchglass.records import Status


@pytest.mark.parametrize(
    ("reasons", "status"),
    [
        (["no ReLU", "no ReLU"], Status.NOT_APPLICABLE),
        (["", "it goes on with a training"], Status.NO_ISSUES_FOUND),
        (["no ReLU", ""], Status.NO_ISSUES_FOUND),
    ],
)
def test_a_rule_is_applicable_where_it_is_anywhere(reasons: list[str], status: Status) -> None:
    facts = [WorkerFacts(0, f"worker_{n}", not_applicable=reason) for n, reason in enumerate(reasons)]
    assert status_of("Rule", facts, {}, ended=True, unexamined=str).status is status
    facts = [WorkerFacts(n, "worker_0", not_applicable=reason) for n, reason in enumerate(reasons)]
    assert status_of("Rule", facts, {}, ended=True, unexamined=str).status is status
