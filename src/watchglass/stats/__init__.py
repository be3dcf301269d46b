"""Pure numerics: statistics rows, histograms, their kernel and merge, bitmaps over units, robust baselines."""

from watchglass.stats import native, pure
from watchglass.stats.columns import DERIVED, column, exact_reduction
from watchglass.stats.elements import DTYPE_CODES, numbers, sample, sample_sizes
from watchglass.stats.histograms import Histograms, edges, histograms_of, merge_histograms, quantiles
from watchglass.stats.robust import RollingBaseline, median
from watchglass.stats.rows import Rows, empty, finite_count, merge, of_array
from watchglass.stats.units import and_units, pack_units, unpack_units

__all__ = [
    "DERIVED", "DTYPE_CODES", "Histograms", "RollingBaseline", "Rows", "and_units", "column", "edges", "empty",
    "exact_reduction", "finite_count", "histograms_of", "median", "merge", "merge_histograms", "native", "numbers",
    "of_array", "pack_units", "pure", "quantiles", "sample", "sample_sizes", "unpack_units",
]  # fmt: skip
