"""How many elements a sample looks at is known without drawing it."""

from __future__ import annotations

import numpy as np
import pytest

from watchglass.stats import sample, sample_sizes


@pytest.mark.parametrize("seed", [0, 1, 2, 3, 99, 2**40])
def test_agrees_with_the_samples(seed: int) -> None:
    counts = np.array([0, 1, 65536, 65537, 65552, 70_001, 81_919, 99_999, 262_145, 1_000_003, 16_777_217])
    drawn = [sample(int(count), seed) for count in counts]
    expected = [count if indices is None else len(indices) for count, indices in zip(counts, drawn, strict=True)]
    assert sample_sizes(counts, seed).tolist() == expected


def test_sees_runs_that_end_early() -> None:
    """Where the last run that is drawn is the tensor's last, which is shorter."""
    count = 1024 * 4 * 16 + 3
    sizes = {int(sample_sizes(np.array([count]), seed)[0]) for seed in range(200)}
    assert len(sizes) > 1
    for seed in range(200):
        indices = sample(count, seed)
        assert indices is not None
        assert sample_sizes(np.array([count]), seed)[0] == len(indices)
