"""The columns of compacted statistics: their names, types and encodings, and the inverse of each encoding.

docs/run-format.md has them as a table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from watchglass.records import COUNT_FIELDS, STATISTIC_FIELDS, STATISTICS
from watchglass.store.encoding.rows import dtype_of
from watchglass.store.encoding.statistics_batch import KEYS as KEYS_OF_ROWS

#: The columns of a row in addition to its statistics, with their dtypes in a batch; first the columns of the sort
#: order.
KEYS: tuple[tuple[str, Any], ...] = tuple(
    (name, dtype_of(STATISTICS)[name]) for name in dict.fromkeys(("tensor_id", *KEYS_OF_ROWS))
)
#: Stored instead of ``l2``, which other columns give up to rounding.
L2_DIFFERENCE = "l2_difference"
SEEN, STEPS, HISTOGRAM_KEYS, PLANES = "histogram_seen", "histogram_steps", "histogram_keys", "histogram_planes"
HISTOGRAM = (SEEN, STEPS, HISTOGRAM_KEYS, PLANES)
#: The columns from which ``l2`` is restored.
OF_L2 = ("count", "nan", "posinf", "neginf", "sum", "m2", L2_DIFFERENCE)

Column: TypeAlias = NDArray[np.float64]
#: The statistics that are stored unchanged.
PLAIN = tuple(name for name in STATISTIC_FIELDS if name != "l2")
#: Every column, in the order of the file.
NAMES = (*(name for name, _ in KEYS), *PLAIN, L2_DIFFERENCE, *HISTOGRAM)


def schema() -> Any:
    """The Arrow schema of a file; no column has nulls."""
    import pyarrow as pa

    kinds = {name: pa.from_numpy_dtype(dtype_of(STATISTICS)[name]) for name in (*dict(KEYS), *PLAIN)} | {
        L2_DIFFERENCE: pa.int64(), SEEN: pa.uint64(), STEPS: pa.uint32(), HISTOGRAM_KEYS: pa.binary(),
        PLANES: pa.binary(),
    }  # fmt: skip
    return pa.schema([pa.field(name, kinds[name], nullable=False) for name in NAMES])


def encodings() -> dict[str, str]:
    """Parquet's encoding of each column but ``sampled``, whose type has only one."""
    floats = {name: "BYTE_STREAM_SPLIT" for name in PLAIN if name not in COUNT_FIELDS}
    blobs = dict.fromkeys((HISTOGRAM_KEYS, PLANES), "DELTA_LENGTH_BYTE_ARRAY")
    numbers = {name: "DELTA_BINARY_PACKED" for name in NAMES if name not in (*floats, *blobs, "sampled")}
    return floats | blobs | numbers


def l2_difference(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """The difference between the bits of ``l2`` and of the value that the other statistics give, int64[n].

    Args:
        values: float64[n, 11].
    """
    expected = _expected_l2(*(values[:, STATISTIC_FIELDS.index(name)] for name in OF_L2[:-1]))
    return np.asarray(values[:, STATISTIC_FIELDS.index("l2")].copy().view(np.int64) - expected.view(np.int64))


def restored_l2(columns: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
    """The column ``l2`` from those of :data:`OF_L2`: the inverse of :func:`l2_difference`."""
    expected = _expected_l2(*(columns[name].astype(np.float64, copy=False) for name in OF_L2[:-1]))
    return np.asarray((expected.view(np.int64) + columns[L2_DIFFERENCE]).view(np.float64))


def _expected_l2(
    count: Column, nan: Column, posinf: Column, neginf: Column, total: Column, m2: Column
) -> NDArray[np.float64]:
    """``sqrt(m2 + sum * sum / n)``, 0 where that is not finite; each operation rounds once, as in IEEE 754."""
    with np.errstate(all="ignore"):
        expected = np.sqrt(m2 + total * total / (count - nan - posinf - neginf))
    return np.where(np.isfinite(expected), expected, 0.0)
