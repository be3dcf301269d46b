"""Pure numerics: statistics rows, histograms, their kernel and merge, robust baselines."""

from watchglass.stats import native, pure
from watchglass.stats.derived_statistics import column, derived, exact_reduction, stored_fields
from watchglass.stats.durations import duration_class, duration_classes, last_typical_class
from watchglass.stats.elements import DTYPE_CODES, numbers, sample, sample_sizes
from watchglass.stats.histograms import Histograms, edges, histograms_of, merge_histograms, quantiles
from watchglass.stats.products import column_correlations, inner_products
from watchglass.stats.robust import RollingBaseline, median
from watchglass.stats.rows import Rows, empty, finite_count, merge, of_array

__all__ = [
    "DTYPE_CODES", "Histograms", "RollingBaseline", "Rows", "column", "column_correlations", "derived",
    "duration_class", "duration_classes", "edges", "empty", "exact_reduction", "finite_count", "histograms_of",
    "inner_products", "last_typical_class", "median", "merge", "merge_histograms", "native", "numbers",
    "of_array", "pure", "quantiles", "sample", "sample_sizes", "stored_fields",
]  # fmt: skip
