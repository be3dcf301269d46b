"""Parts of the first rows of a batch: NumPy takes them from plain tensors of the host, PyTorch from all others."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from watchglass.capture.pytorch.facts.copies import row_sample


class Special(Tensor):
    """A tensor of another class, which PyTorch reads."""


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(512.0).reshape(64, 8),
        torch.arange(64.0, dtype=torch.float64).reshape(8, 8).t(),
        torch.arange(900).reshape(3, 300),
        torch.arange(5),
        torch.arange(70 * 243.0).reshape(70, 3, 9, 9),
        torch.arange(64.0).reshape(8, 8).bfloat16(),
        torch.arange(1200.0).reshape(6, 200).to(torch.complex64).conj(),
        torch.ones(4, 4, requires_grad=True),
        torch.ones(3, 1).expand(3, 500),
    ],
    ids=lambda tensor: f"{tensor.dtype} {tuple(tensor.shape)}",
)
def test_both_take_the_same_bytes(tensor: Tensor) -> None:
    one, other = (row_sample(each, 64, 64, 256) for each in (tensor, tensor.as_subclass(Special)))
    assert one is not None
    assert other is not None
    assert one.octets().tobytes() == other.octets().tobytes()
    assert (one.shape, one.dtype, one.total, one.size, one.rows) == (
        other.shape, other.dtype, other.total, other.size, other.rows,
    )  # fmt: skip


def test_a_sample_is_a_copy() -> None:
    batch = torch.zeros(4, 4)
    taken = row_sample(batch, 64, 64, 256)
    batch.fill_(1.0)
    assert taken is not None
    assert not taken.octets().any()
