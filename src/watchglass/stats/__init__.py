"""Pure numerics: statistics rows and their merge, bitmaps over units, robust baselines."""

from watchglass.stats import native
from watchglass.stats.robust import RollingBaseline
from watchglass.stats.rows import DERIVED, Rows, column, empty, finite_count, merge, of_array
from watchglass.stats.units import and_units, pack_units, unpack_units

__all__ = [
    "DERIVED", "RollingBaseline", "Rows", "and_units", "column", "empty", "finite_count", "merge", "native", "of_array",
    "pack_units", "unpack_units",
]  # fmt: skip
