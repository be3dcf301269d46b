"""Tensors, and what is known of their statistics, for tests of capture on devices."""

from __future__ import annotations

import logging
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from watchglass.capture.planning.cost import Memory
from watchglass.capture.pytorch.device.device_statistics import DeviceStatistics
from watchglass.capture.pytorch.device.sizes import DeviceSizes
from watchglass.records import STATISTIC_FIELDS
from watchglass.stats import DTYPE_CODES, Histograms, pure

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DTYPES = [name for name in DTYPE_CODES if hasattr(torch, name)]


#: Small pieces, so that small tensors have many.
SMALL = DeviceSizes(block=64, blocks=4, tile=64, wide_tile=32, shares=4)


class Ledger(Memory):
    """Also keeps the bytes that are held now, and every change."""

    def __init__(self) -> None:
        super().__init__()
        self.held: defaultdict[str, int] = defaultdict(int)
        self.changes: list[int] = []

    def hold(self, device: str, size: int) -> None:
        super().hold(device, size)
        self.held[device] += size
        self.changes.append(size)


@dataclass
class Account:
    memory: Ledger = field(default_factory=Ledger)
    device_ns: int = 0


def with_triton(device: torch.device) -> Any:
    """Triton's kernels, for a device that is none of its own."""
    from watchglass.capture.pytorch.device import triton_statistics

    return triton_statistics


class _Refusing(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        raise AssertionError(record.getMessage())


@contextmanager
def without_warnings() -> Iterator[None]:
    """Statistics that fall back to another way of computing log it; here that is an error."""
    handler = _Refusing(logging.WARNING)
    logger = logging.getLogger("watchglass")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


@dataclass(frozen=True)
class Way:
    """One way of computing statistics on a device, and what its sums may be off by.

    Attributes:
        bounds: Shares of the sum of magnitudes, and of the spread.
        sizes: Sizes of pieces.
        device: Where it is computed.
        settings: Further arguments of ``DeviceStatistics``.
    """

    bounds: tuple[float, float]
    sizes: DeviceSizes = SMALL
    settings: Mapping[str, Any] = field(default_factory=dict)
    device: str = "cpu"

    def statistics(self, account: Account | None = None) -> DeviceStatistics:
        return DeviceStatistics(account or Account(), self.sizes, **self.settings)

    def found(
        self, tensors: list[torch.Tensor], *others: Any, account: Account | None = None, **settings: Any
    ) -> tuple[np.ndarray, Histograms]:
        statistics = self.statistics(account)
        placed, *rest = (self.placed(part) for part in (tensors, *others))
        with without_warnings():
            rows, histograms = statistics.summaries(placed, *rest, **settings)
            statistics.send()
        return rows.resolve(), histograms.resolve()

    def placed(self, part: Any) -> Any:
        """Tensors with the same elements at the same places of a memory on the device."""
        if isinstance(part, list):
            return [self.placed(each) for each in part]
        if not isinstance(part, torch.Tensor) or self.device == "cpu":
            return part
        memory = torch.empty(0, dtype=part.dtype).set_(part.untyped_storage()).to(self.device)  # type: ignore[call-overload]
        return memory.as_strided(part.shape, part.stride(), part.storage_offset())


BLOCKS = Way((1e-13, 1e-10))
TRITON = Way((2e-6, 1e-5), settings={"triton": with_triton})
#: The ways that a GPU has.
ON_GPU = {
    "blocks on a GPU": replace(BLOCKS, settings={"triton": lambda device: None}, device="cuda"),
    "triton on a GPU": replace(TRITON, settings={}, device="cuda"),
}
#: The ways that this process has.
WAYS = {
    "blocks": BLOCKS,
    **({"triton": TRITON} if INTERPRETED else ON_GPU if torch.cuda.is_available() else {}),
}


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


def assert_alike(
    result: tuple[np.ndarray, Histograms],
    expected: tuple[np.ndarray, Histograms],
    way: Way,
    *,
    magnitudes: bool = False,
) -> None:
    """Statistics are those of the reference: counts exactly, and sums within the bounds of the way.

    Args:
        result: What was found.
        expected: The reference.
        way: How it was found.
        magnitudes: Whether the values are magnitudes of complex numbers. NumPy and PyTorch round these differently on
            some processors (AVX-512), so minimum and maximum may then differ by two units in the last place.
    """
    rows, wanted = result[0], expected[0]
    assert rows.shape == wanted.shape
    np.testing.assert_array_equal(rows[:, :5], wanted[:, :5])  # counts
    np.testing.assert_allclose(rows[:, 5:7], wanted[:, 5:7], rtol=5e-16 if magnitudes else 0)  # minimum, maximum
    of_sums, of_spread = way.bounds
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
