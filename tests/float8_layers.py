"""A linear layer in float8 as scripts write it, with a fixed scale for each direction."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class _ScaledProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, scale: float, gradient_scale: float) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        ctx.gradient_scale = gradient_scale
        narrow = (inputs * scale).clamp(-448, 448).to(torch.float8_e4m3fn)
        return (narrow.to(inputs.dtype) / scale) @ weight.T

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        inputs, weight = ctx.saved_tensors
        scale = ctx.gradient_scale or 57344 / gradients[0].abs().max()
        wide = (gradients[0] * scale).to(dtype=torch.float8_e5m2).to(inputs.dtype) / scale
        return wide @ weight, wide.T @ inputs, None, None


class Linear8(nn.Linear):
    """The layer. A ``gradient_scale`` of 0 takes the one that fits the largest gradient."""

    def __init__(self, size: int, scale: float, gradient_scale: float = 1.0, *, bias: bool = False) -> None:
        super().__init__(size, size, bias=bias)
        self.scale, self.gradient_scale = scale, gradient_scale

    def forward(self, inputs: Tensor) -> Tensor:
        product: Tensor = _ScaledProduct.apply(inputs, self.weight, self.scale, self.gradient_scale)
        return product if self.bias is None else product + self.bias
