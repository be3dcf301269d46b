"""LabelsNotShifted: labels that are the inputs of a language model, or that were moved twice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from real_runs import RealRuns, Watch
from small_decoders import SmallDecoder, text
from synthetic_steps import training
from watchglass.rules import find_rule
from watchglass.testing import Step
from watchglass.testing.rule_suite import RuleSuite

RULE = "LabelsNotShifted"


def labels(
    place: str, right: float | None = 1.0, *, seen: float | None = 0.0, embedded: int = 1,
    recurrent: Sequence[bool] = (), share: float = 1.0, beside: str = "",
) -> dict[str, Any]:  # fmt: skip
    """A fact of labels at a place, and attention that sees this share of the next positions."""
    losses = [
        {
            "function": "cross_entropy", "axis": 1, "length": 16, "judged": 500, "distinct": 9, "right": right,
            "agreeing": {name: share if name == each else 0.1 for name in ("same", "next", "second")},
        }
        for each in (place, beside) if each
    ]  # fmt: skip
    attention = [] if seen is None else [{"queries": 16, "keys": 16, "itself": None, "next": seen, "calls": 2}]
    return {
        "token_targets": {
            "losses": losses, "embedded": embedded, "attention": attention, "recurrent": list(recurrent),
        }
    }  # fmt: skip


def course(fact: dict[str, Any], looks: int = 3) -> Sequence[Step]:
    return training(20, facts=dict.fromkeys(range(looks), fact))


def accurate(steps: Sequence[Step], accuracy: float) -> Sequence[Step]:
    """The last steps have this accuracy, long after the last look."""
    return [
        Step(scalars={**step.scalars, **({"accuracy": accuracy} if at > 15 else {})}, facts=step.facts)
        for at, step in enumerate(steps)
    ]


class TestLabelsNotShifted(RuleSuite):
    rule = find_rule(RULE)

    def sick(self) -> Sequence[Step]:
        return course(labels("same"))

    def also_sick(self) -> Sequence[Sequence[Step]]:
        return (
            course(labels("same", seen=None, recurrent=[False])),
            course(labels("second", right=0.2)),
            accurate(course(labels("same", right=0.1)), 0.99),
            training(20, facts={0: labels("same", 0.1), 1: labels("same", 0.6), 3: labels("same", 0.98)}),
        )

    def healthy(self) -> Sequence[Step]:
        return course(labels("next"))

    def also_healthy(self) -> Sequence[Sequence[Step]]:
        return (
            course(labels("same", right=0.5)),  # a model that moves its tokens itself
            course(labels("same", right=None)),
            accurate(course(labels("same", right=0.1)), 0.95),  # but for the first of 16 positions
            accurate(course(labels("next", right=1.0)), 1.0),
            accurate(course(labels("same", beside="same", right=0.1)), 1.0),
            course(labels("same", seen=1.0)),  # an autoencoder, whose attention sees all
            course(labels("same", seen=None)),
            course(labels("same", seen=None, recurrent=[True])),  # a tagger
            course(labels("same", seen=None, recurrent=[False, False])),  # an autoencoder of two parts
            course(labels("same", embedded=2)),  # two sequences, the second of which is copied
            course(labels("same", share=0.85)),  # hidden tokens beside others
            course(labels("second", beside="next")),  # further heads that look ahead
            course(labels("same"), looks=1),
        )


class TestLabelsNotShiftedInRealRuns(RealRuns):
    rule = RULE
    cause = "labels_not_shifted"

    def train(self, watch: Watch, *, sick: bool) -> None:
        # The healthy one has its inputs as labels, too, and moves them behind a first vector.
        fit(watch, SmallDecoder(moves=not sick), lambda ids: (ids[:, 1:], ids[:, 1:]))


class TestLabelsMovedTwiceInRealRuns(RealRuns):
    rule = RULE
    cause = "labels_shifted_twice"

    def train(self, watch: Watch, *, sick: bool) -> None:
        fit(watch, SmallDecoder(), lambda ids: (ids[:, :-2], ids[:, 2 if sick else 1 :][:, : ids.shape[1] - 2]))


def fit(watch: Watch, model: nn.Module, parts: Any) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    watch(model)
    for _ in range(100):
        inputs, targets = (part.contiguous() for part in parts(text(16)))
        optimizer.zero_grad()
        loss: Tensor = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
