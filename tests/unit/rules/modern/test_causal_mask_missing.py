"""CausalMaskMissing: attention that sees the next token, which is the label."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from real_runs import RealRuns, Watch
from small_decoders import SmallDecoder, text
from synthetic_steps import training
from watchglass.rules import find_rule
from watchglass.testing import Step
from watchglass.testing.rule_suite import RuleSuite

RULE = "CausalMaskMissing"


def looked(
    *attention: tuple[float | None, bool | None], following: float = 1.0, same: float = 0.1, embedded: int = 1,
    recurrent: Sequence[bool] = (), judged: int = 500, keys: int = 16,
) -> dict[str, Any]:  # fmt: skip
    """A fact: calls of attention with the share that sees the next position, and whether it is of one tensor."""
    loss = {
        "function": "cross_entropy", "agreeing": {"same": same, "next": following, "second": 0.1}, "axis": 1,
        "length": 16, "judged": judged, "distinct": 9, "right": 0.5,
    }  # fmt: skip
    calls = [{"queries": 16, "keys": keys, "itself": itself, "next": share, "calls": 2} for share, itself in attention]
    return {
        "token_targets": {
            "losses": [loss], "embedded": embedded, "attention": calls, "recurrent": list(recurrent),
        }
    }  # fmt: skip


def course(fact: dict[str, Any], looks: int = 3) -> Sequence[Step]:
    return training(20, facts=dict.fromkeys(range(looks), fact))


class TestCausalMaskMissing(RuleSuite):
    rule = find_rule(RULE)

    def sick(self) -> Sequence[Step]:
        return course(looked((1.0, None)))

    def also_sick(self) -> Sequence[Sequence[Step]]:
        # The decoder of two sequences, whose attention is known to be of one tensor.
        return (course(looked((1.0, True), (1.0, False), embedded=2)),)

    def healthy(self) -> Sequence[Step]:
        return course(looked((0.0, None)))

    def also_healthy(self) -> Sequence[Sequence[Step]]:
        return (
            course(looked((1.0, None), following=0.1, same=1.0)),  # an encoder
            course(looked((1.0, None), following=0.9)),  # tokens that are hidden in part
            course(looked((1.0, True), (0.0, True), (1.0, False), embedded=2)),  # encoder and decoder
            course(looked((1.0, None), embedded=2)),  # a recurrent decoder that attends to an encoder
            course(looked((1.0, None), recurrent=[False])),
            course(looked((0.4, None))),  # a prefix that is seen by all
            course(looked((1.0, None), (None, None))),  # what happens to the weights of a call is unknown
            course(looked((1.0, None), keys=40)),  # attention to something else
            course(looked((1.0, False))),
            course(looked()),
            course(looked((1.0, None), judged=10)),
            course(looked((1.0, None)), looks=1),
        )


class TestCausalMaskMissingInRealRuns(RealRuns):
    rule = RULE
    cause = "causal_mask_missing"

    def train(self, watch: Watch, *, sick: bool) -> None:
        model = SmallDecoder(masked=not sick)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        watch(model)
        for _ in range(60):
            ids = text(16)
            optimizer.zero_grad()
            F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()).backward()
            optimizer.step()
