"""Tensors, and what is known of their statistics, for tests of capture on devices."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from watchglass.capture.cost import Memory
from watchglass.capture.pytorch.device import device_statistics as device
from watchglass.capture.pytorch.device.device_statistics import DeviceStatistics
from watchglass.records import STATISTIC_FIELDS
from watchglass.stats import DTYPE_CODES, Histograms, pure

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
#: What sums may be off by, as shares of the sum of magnitudes and of the spread.
BOUNDS = {"blocks": (1e-13, 1e-10), "triton": (2e-6, 1e-5)}
DTYPES = [name for name in DTYPE_CODES if hasattr(torch, name)]


@dataclass
class Account:
    memory: Memory = field(default_factory=Memory)
    device_ns: int = 0


def use_triton(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Compute with Triton's interpreter, in small pieces, so that small tensors have many; returns the module."""
    from watchglass.capture.pytorch.device import triton_statistics

    monkeypatch.setattr(device, "_has_triton", lambda device: True)
    for name, size in (("_TILE", 64), ("_WIDE_TILE", 32), ("_SHARES", 4)):
        monkeypatch.setattr(triton_statistics, name, size)
    return triton_statistics


def found(
    tensors: list[torch.Tensor], *others: Any, account: Account | None = None, **settings: Any
) -> tuple[np.ndarray, Histograms]:
    statistics = DeviceStatistics(account or Account())
    rows, histograms = statistics.summaries(tensors, *others, **settings)
    statistics.send()
    assert not statistics._failed
    return rows.resolve(), histograms.resolve()


def reference(
    tensors: list[torch.Tensor], before: list[torch.Tensor] | None = None, scale: float | None = None, seed: int = 0
) -> tuple[np.ndarray, Histograms]:
    kept = [tensor.contiguous() for tensor in tensors], [tensor.contiguous() for tensor in before or []]
    rows, histograms = pure.summaries(
        [tensor.data_ptr() for tensor in kept[0]],
        [tensor.numel() for tensor in tensors],
        [DTYPE_CODES[str(tensor.dtype).removeprefix("torch.")] for tensor in tensors],
        before=None if before is None else [tensor.data_ptr() for tensor in kept[1]],
        scale=scale,
        seed=seed,
    )
    assert histograms is not None
    return rows, histograms


def assert_alike(result: tuple[np.ndarray, Histograms], expected: tuple[np.ndarray, Histograms], path: str) -> None:
    rows, wanted = result[0], expected[0]
    assert rows.shape == wanted.shape
    np.testing.assert_array_equal(rows[:, :7], wanted[:, :7])  # counts, minimum, maximum
    of_sums, of_spread = BOUNDS[path]
    total, absolute, spread, norm = (STATISTIC_FIELDS.index(name) for name in ("sum", "abs_sum", "m2", "l2"))
    for column, unit in ((total, absolute), (absolute, absolute), (norm, norm)):
        with np.errstate(invalid="ignore"):
            off = np.abs(rows[:, column] - wanted[:, column])
        np.testing.assert_array_less(off[np.isfinite(off)], (of_sums * wanted[:, unit] + 1e-320)[np.isfinite(off)])
        np.testing.assert_array_equal(np.isfinite(rows[:, column]), np.isfinite(wanted[:, column]))
    with np.errstate(invalid="ignore"):
        off = np.abs(rows[:, spread] - wanted[:, spread])
    limit = of_spread * wanted[:, spread] + 1e-14 * wanted[:, norm] ** 2 + 1e-320
    np.testing.assert_array_less(off[np.isfinite(off)], limit[np.isfinite(off)])
    np.testing.assert_array_equal(np.isfinite(rows[:, spread]), np.isfinite(wanted[:, spread]))
    assert_same_histograms(result[1], expected[1])


def assert_same_histograms(found: Histograms, expected: Histograms) -> None:
    for name in ("seen", "offsets", "keys", "counts"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), err_msg=name)


def values(dtype: str, count: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(count, generator=generator, dtype=torch.float64)
    kind = getattr(torch, dtype)
    if dtype.startswith("complex"):
        return torch.complex(drawn, drawn.flip(0)).to(kind)
    if dtype == "bool":
        return drawn > 0
    if not kind.is_floating_point:
        return (drawn * (30 if kind.itemsize == 1 else 1e4)).abs().to(torch.int64).to(kind)
    drawn *= torch.exp2(torch.randint(-8, 5, (count,), generator=generator))
    return drawn.to(kind)
