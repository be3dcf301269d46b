"""What a capture looks at is counted without watchglass."""

from __future__ import annotations

import pytest
import torch

from limits import bandwidth, captured
from workloads import mlp, transformer

PARAMETERS = 784 * 512 + 512 + 512 * 512 + 512 + 512 * 10 + 10
OUTPUTS = 64 * (4 * 512 + 10)


@pytest.mark.parametrize(
    ("kinds", "tensors", "size"),
    [
        ((), 0, 0),
        (("parameters",), 6, 4 * PARAMETERS),
        (("gradients",), 6, 4 * PARAMETERS),
        (("outputs",), 5, 4 * OUTPUTS),  # the last layer's output, which the whole model hands on, counts once
        (("parameters", "gradients", "updates", "outputs"), 23, 4 * (3 * PARAMETERS + OUTPUTS)),
    ],
)
def test_counts_every_captured_byte_once(kinds: tuple[str, ...], tensors: int, size: int) -> None:
    found = captured(mlp(), kinds)
    assert (found.tensors, found.size) == (tensors, size)


def test_leaves_no_hook_behind() -> None:
    training = transformer()
    captured(training, ("outputs",))
    assert not torch.nn.modules.module._global_forward_hooks


def test_bandwidth_is_bytes_over_seconds() -> None:
    assert 1e6 < bandwidth(size=1 << 20) < 1e15
