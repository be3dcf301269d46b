"""Whether rows with similar inputs have similar targets, and whether a model errs on them in the same way.

Neither needs a model of the data. Where neighbours have similar targets, the inputs carry information about the
targets. Where the errors of neighbours are alike too, the model does not use all of this information; the errors of a
model that uses all of it are noise.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from watchglass.records import facts
from watchglass.stats import inner_products

#: Rows of inputs that are compared at most, and their elements; rows from which on they are compared.
MOST_COMPARED, MOST_COLUMNS, LEAST_ROWS = 128, 256, 8

Values = NDArray[np.float64]


def alike(inputs: Values, targets: Values, errors: Values) -> facts.Neighbours | None:
    """How alike targets and errors of neighbours are, as for :func:`_agreement`.

    Args:
        inputs: float64[rows, elements].
        targets: float64[rows, units].
        errors: float64[rows, units].

    Returns:
        None for fewer than :data:`LEAST_ROWS` rows that have a neighbour, or targets that do not vary.
    """
    finite = np.isfinite(inputs).all(axis=1) & np.isfinite(targets).all(axis=1) & np.isfinite(errors).all(axis=1)
    inputs, targets, errors = inputs[finite], targets[finite], errors[finite]
    if len(inputs) < LEAST_ROWS:
        return None
    rows, nearest = _nearest(inputs)
    of_targets, of_errors = _agreement(targets, rows, nearest), _agreement(errors, rows, nearest)
    if len(rows) < LEAST_ROWS or of_targets is None or of_errors is None:
        return None
    return facts.Neighbours(of_targets, of_errors, len(rows))


def _nearest(inputs: Values) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows that have a neighbour, and the nearest one of each.

    A row with the same inputs is no neighbour: it may be the same sample, drawn twice. Columns count by their spread,
    since features of one table may have any units.
    """
    spread = inputs.std(axis=0)
    scaled = inputs[:, spread > 0] / spread[spread > 0]
    squares = np.sum(scaled**2, axis=1)
    distances = squares[:, None] + squares[None, :] - 2 * inner_products(scaled, scaled)
    distances[distances < 1e-9 * max(float(squares.max(initial=0.0)), 1e-300)] = np.inf
    nearest = distances.argmin(axis=1)
    rows = np.flatnonzero(np.isfinite(distances[np.arange(len(inputs)), nearest]))
    return rows, nearest[rows]


def _agreement(values: Values, rows: NDArray[np.int64], nearest: NDArray[np.int64]) -> float | None:
    """Mean product of a row's deviation from the mean with its neighbour's, over the mean square of deviations.

    1 where neighbours are equal, about 0 where they have nothing in common (Moran's I with one neighbour).
    """
    apart = values - values.mean(axis=0)
    square = float(np.mean(np.sum(apart**2, axis=1)))
    return float(np.mean(np.sum(apart[rows] * apart[nearest], axis=1))) / square if square > 0 else None
