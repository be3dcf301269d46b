"""The module and the figures that a traceback shows of an exception in a model."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import watchglass.capture.pytorch  # noqa: F401  only adapters in use are asked
from watchglass.capture import failure_from


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(100, 8)
        self.body = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 10))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.body(self.tokens(inputs).mean(1) if inputs.dtype is torch.long else inputs)  # type: ignore[no-any-return]


TOKENS = torch.arange(40).reshape(8, 5)


@pytest.mark.parametrize(("call", "module", "figures"), [
    (lambda model: model(TOKENS + 80), "tokens (Embedding)", "indices go from 80 to 119, the table has 100 rows"),
    (lambda model: F.cross_entropy(model(TOKENS), torch.arange(5, 13)), "",
     "targets go from 5 to 12, the output has 10 classes"),
    (lambda model: nn.CrossEntropyLoss()(model(TOKENS), torch.arange(5, 13)), "CrossEntropyLoss",
     "targets go from 5 to 12, the output has 10 classes"),
    (lambda model: model(torch.zeros(8, 12)), "body.0 (Linear)",
     "an input of shape (8, 12) and dtype float32, a weight of shape (16, 8) and dtype float32"),
    (lambda model: F.binary_cross_entropy(torch.zeros(4, 2), torch.zeros(4, 1)), "",
     "predictions of shape (4, 2) and dtype float32, targets of shape (4, 1) and dtype float32"),
    (lambda model: int("x"), "", ""),
])  # fmt: skip
def test_what_a_traceback_shows(call, module: str, figures: str) -> None:
    try:
        call(Model())
    except (IndexError, RuntimeError, ValueError) as error:
        failure = failure_from(error)
    assert failure is not None
    assert (failure.module, failure.figures) == (module, figures)


def test_a_module_that_raises_in_its_attributes_changes_nothing() -> None:
    class Odd(nn.Module):
        @property
        def weight(self) -> Tensor:
            raise SystemError("no weight")

        def forward(self, input: Tensor) -> Tensor:  # noqa: A002
            raise ValueError("bad batch")

    try:
        Odd()(torch.zeros(2))
    except ValueError as error:
        failure = failure_from(error)
    assert failure is not None
    assert (failure.type, failure.message, failure.module) == ("ValueError", "bad batch", "")
