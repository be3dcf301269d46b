"""Calling the native kernel and its fallback with arrays, and what may differ between them."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from watchglass.records import STATISTIC_FIELDS
from watchglass.stats import Histograms, native
from watchglass.stats.elements import DTYPE_CODES

_ABS_SUM, _M2, _L2 = (STATISTIC_FIELDS.index(name) for name in ("abs_sum", "m2", "l2"))
#: Columns that are the same bits: counts, minimum, maximum.
_EXACT = slice(0, 7)

Summaries = tuple[NDArray[np.float64], Histograms | None]


def stored(values: NDArray[np.float64], dtype: str) -> NDArray[Any]:
    """Numbers as a tensor of this dtype holds them, NumPy's or not; some are zero, some not finite."""
    with np.errstate(all="ignore"):
        if dtype == "bfloat16":
            return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        if dtype.startswith("float8"):
            return (np.abs(values * 1000) % 256).astype(np.uint8)
        if dtype.startswith("complex"):
            return (values + 1j * np.roll(values, 1)).astype(dtype)
        if dtype.startswith("uint"):
            values = np.abs(values)
        return np.trunc(values).astype(dtype) if "float" not in dtype else values.astype(dtype)


def summaries(
    arrays: Sequence[NDArray[Any]],
    dtype: str,
    *,
    kernel: ModuleType = native,
    before: NDArray[Any] | Sequence[NDArray[Any]] | None = None,
    **options: Any,
) -> Any:
    """Rows and histograms of arrays by one of the two kernels; ``before`` is one array or one for each."""
    if before is not None:
        older = [before] if isinstance(before, np.ndarray) else before
        options["before"] = [array.ctypes.data for array in older]
    pointers, counts = [array.ctypes.data for array in arrays], [array.size for array in arrays]
    return kernel.summaries(pointers, counts, [DTYPE_CODES[dtype]] * len(arrays), **options)


def bound_of_sums(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """By how much ``sum, abs_sum, m2, l2`` of two computations may differ, float64[..., 4]; see stats/native."""
    with np.errstate(over="ignore", invalid="ignore"):
        relative = (rows[..., 0] / 65536 + 200) * 2.0**-53
        absolute, m2, l2 = rows[..., _ABS_SUM], rows[..., _M2], rows[..., _L2]
        bounds = np.stack([relative * absolute, relative * absolute, 1e-10 * m2 + 1e-17 * l2 * l2, relative * l2], -1)
    return np.asarray(bounds)


def assert_same(found: Summaries, expected: Summaries) -> None:
    """Counts, extremes and histograms are equal, sums within their bounds."""
    rows, reference = found[0], expected[0]
    np.testing.assert_array_equal(rows[:, _EXACT], reference[:, _EXACT])
    with np.errstate(invalid="ignore"):
        close = np.abs(rows - reference)[:, 7:] <= bound_of_sums(reference)
    close |= (rows == reference)[:, 7:]
    assert close.all(), (rows[:, 7:], reference[:, 7:])
    _assert_same_histograms(found[1], expected[1])


def assert_same_bits(found: Summaries, expected: Summaries) -> None:
    """Everything is equal, every bit of it."""
    assert found[0].tobytes() == expected[0].tobytes()
    _assert_same_histograms(found[1], expected[1])


def _assert_same_histograms(found: Histograms | None, expected: Histograms | None) -> None:
    if found is None or expected is None:
        assert found is expected is None
        return
    for name in ("seen", "offsets", "keys", "counts"):
        a, b = getattr(found, name), getattr(expected, name)
        assert a.dtype == b.dtype, name
        np.testing.assert_array_equal(a, b, name)
