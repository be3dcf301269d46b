"""Layers that take time by a clock that a test moves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from clocks import Now


class BurnsBackward(torch.autograd.Function):
    """Calls a function in its backward."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, burn: Callable[[], object]) -> Tensor:
        ctx.burn = burn
        return value * 1

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        ctx.burn()
        return gradient, None


class Takes(nn.Module):
    """Takes seconds forward, and twice as many backward; returns its inputs."""

    def __init__(self, clock: Now, seconds: float) -> None:
        super().__init__()
        self.clock, self.seconds = clock, seconds

    def forward(self, inputs: Tensor) -> Tensor:
        self.clock.advance(self.seconds)
        return BurnsBackward.apply(inputs, self._backward)

    def _backward(self) -> None:
        self.clock.advance(2 * self.seconds)
