"""NLPSequenceRatio: sequences that consist mostly of one token."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from real_runs import RealRuns, Watch, update
from sketches_of import given
from watchglass.config import RuleSpec
from watchglass.errors import InvalidValueError
from watchglass.evaluate import replay
from watchglass.records import Severity
from watchglass.rules import build_rule, find_rule
from watchglass.testing import Step, build_run
from watchglass.testing.rule_suite import RuleSuite

RULE = "NLPSequenceRatio"


def padded(token: int, length: int, number: int = 20) -> list[Step]:
    random, made = np.random.default_rng(0), []
    for _ in range(number):
        tokens = random.integers(2, 50, (16, 40))
        tokens[:, length:] = token
        made.append(Step(scalars={"loss": 1.0}, facts=given(tokens, into=("embedding",))))
    return made


class TestNLPSequenceRatio(RuleSuite):
    rule = find_rule(RULE)
    parameters: ClassVar[dict[str, Any]] = {"token_values": ("1", "7")}

    def sick(self) -> Sequence[Step]:
        return padded(1, 10)

    def healthy(self) -> Sequence[Step]:
        return padded(1, 30)


def test_padding_is_an_info_by_default(tmp_path: Path) -> None:
    for length, found in ((10, ["token 1 is 75 % of the tokens of 208 sequences"]), (30, [])):
        run = build_run(tmp_path / str(length), padded(1, length))
        findings = replay(run, [RuleSpec(RULE)]).findings
        assert [finding.message for finding in findings if finding.severity is Severity.INFO] == found


@pytest.mark.parametrize(("token", "length", "fires"), [(0, 10, True), (0, 25, False), (1, 10, False)])
def test_calibration_sagemaker_counts_zeros(tmp_path: Path, token: int, length: int, fires: bool) -> None:
    run = build_run(tmp_path / "run", padded(token, length, 1))
    found = replay(run, [RuleSpec(RULE)], calibration="sagemaker").findings
    assert bool([one for one in found if one.severity is Severity.WARNING]) == fires


def test_tokens_are_numbers() -> None:
    with pytest.raises(InvalidValueError, match="token_values must be numbers but got 'pad'"):
        build_rule(RuleSpec(RULE, {"token_values": "pad"}))


class TestNLPSequenceRatioInRealRuns(RealRuns):
    rule = "NLPSequenceRatio"
    cause = "padding_not_masked"

    def rules(self) -> list[RuleSpec]:
        """With the parameters of calibration sagemaker: by default it is an info."""
        given = RuleSpec(self.rule, {"token_values": "0"})
        return [*[spec for spec in super().rules() if spec.name != self.rule], given]

    def train(self, watch: Watch, *, sick: bool) -> None:
        model = nn.Sequential(nn.Embedding(50, 8), nn.Flatten(), nn.Linear(160, 4))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        watch(model)
        for _ in range(20):
            tokens = torch.randint(1, 50, (32, 20))
            if sick:
                tokens[:, 6:] = 0
            update(model, optimizer, tokens, tokens[:, 0] % 4)
