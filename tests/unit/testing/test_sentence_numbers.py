"""A number in the sentence of a finding that was not measured is found."""

from __future__ import annotations

from typing import Any

import pytest

from watchglass.config import parameter
from watchglass.records import Finding, Mode, Severity
from watchglass.rules import Rule, state
from watchglass.testing.sentence_numbers import unmeasured_numbers


class Seen(Rule):
    """A rule with a parameter and state."""

    window: int = parameter(64, help="losses")
    best: dict[str, float] = state(dict)
    long: list[float] = state(list)

    def check(self, view: Any) -> Any:
        """Nothing."""
        return ()


def about(message: str, **more: Any) -> Finding:
    given = {"value": 0.4321, "limit": 0.5, "tensors": ("fc1.weight",), "evidence": {}, **more}
    return Finding(
        id="a", rule="Seen", severity=Severity.WARNING, step=17, last_step=17, count=1, mode=Mode.TRAIN,
        worker="worker_0", message=message, global_step=21, **given,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("message", "unmeasured"),
    [
        ("the loss is 0.432 at step 17, above 0.5", []),
        ("the loss is 0.433 at step 17", ["0.433"]),
        ("the loss is 0.43 at step 18", ["18"]),
        ("43 % of the loss", []),
        ("44 % of the loss", ["44 %"]),
        ("fc1.weight, a float16 of 10^-3, has not changed for 1 step of 0", []),
        ("over 64 losses", []),
        ("over 65 losses", ["65"]),
        ("it was -2.5 at best", []),
        ("it was 2,048 before", ["2,048"]),
        ("a number of a long history is 3.25", ["3.25"]),
    ],
)
def test_numbers_of_a_sentence(message: str, unmeasured: list[str]) -> None:
    rule = Seen()
    rule.best["loss"] = -2.5
    rule.long = [3.25] * 40
    assert unmeasured_numbers(about(message), rule) == unmeasured


@pytest.mark.parametrize(
    ("message", "evidence", "unmeasured"),
    [
        ("4 micro-batches act as a learning rate of 0.3", {"micro_batches": 16, "acts_as": 1.6}, ["4", "0.3"]),
        ("16 micro-batches act as a learning rate of 1.6", {"micro_batches": 16, "acts_as": 1.6}, []),
        ("30 ms of 2.00 GB", {"seconds": 0.03, "bytes": 2_000_000_000}, []),
        ("30 ms of 7.00 GB", {"seconds": 0.3, "bytes": 7_000_000}, ["30 ms", "7.00 GB"]),
        ("2.14e+06 and 1,234 and 12,345.6", {"all": [2_141_000, 1234, {"x": 12345.6}]}, []),
        ("shape [32, 16] of 3 entries", {"shape": "[32, 16]", "all": [0.0] * 3}, []),
        ("0.62 times as long", {"time": 0.625}, []),
        ("-0.992 to 5", {"range": [-0.9919, 5]}, []),
    ],
)
def test_numbers_in_evidence(message: str, evidence: dict[str, Any], unmeasured: list[str]) -> None:
    assert unmeasured_numbers(about(message, evidence=evidence), Seen()) == unmeasured
