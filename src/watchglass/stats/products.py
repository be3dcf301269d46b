"""Sums of products without BLAS.

Threads of watchglass beside the script's use no BLAS: OpenBLAS ends its own threads before the process forks, as a data
loader does, and waits for ever if another thread computes with them at this time (seen with the OpenBLAS 0.3 in NumPy's
packages for Linux). The arrays here are samples, so that speed is no reason.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def inner_products(one: NDArray[Any], other: NDArray[Any]) -> NDArray[np.float64]:
    """The inner products of all rows of two tables.

    Args:
        one: float64[n, k].
        other: float64[m, k].

    Returns:
        float64[n, m], like ``one @ other.T`` up to rounding. NaN and infinities spread as in a sum.
    """
    # Not optimized, which would call BLAS.
    products: NDArray[np.float64] = np.einsum("ik,jk->ij", one, other, optimize=False)
    return products


def column_correlations(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Pearson's correlation coefficients of the columns of a table, all of which vary.

    Args:
        rows: float64[n, k], finite.

    Returns:
        float64[k, k], from -1 to 1.
    """
    deviations = np.ascontiguousarray((rows - rows.mean(axis=0)).T)
    deviations /= np.sqrt(np.sum(np.square(deviations), axis=1, keepdims=True))
    return np.clip(inner_products(deviations, deviations), -1.0, 1.0)
