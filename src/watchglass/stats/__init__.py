"""Pure numerics: statistics rows, histograms, their kernel and merge, robust baselines."""

from typing import TYPE_CHECKING

from watchglass.lazy_imports import lazily
from watchglass.stats import (
    native as native,
    pure as pure,
)

if TYPE_CHECKING:
    from watchglass.stats.derived_statistics import (
        column as column,
        derived as derived,
        exact_reduction as exact_reduction,
        stored_fields as stored_fields,
    )
    from watchglass.stats.durations import (
        duration_class as duration_class,
        duration_classes as duration_classes,
        last_typical_class as last_typical_class,
    )
    from watchglass.stats.elements import (
        DTYPE_CODES as DTYPE_CODES,
        RUN as RUN,
        SAMPLED_ABOVE as SAMPLED_ABOVE,
        STRATA as STRATA,
        draws as draws,
        numbers as numbers,
        sample as sample,
        sample_sizes as sample_sizes,
    )
    from watchglass.stats.histograms import (
        Histograms as Histograms,
        edges as edges,
        histograms_of as histograms_of,
        merge_histograms as merge_histograms,
        quantiles as quantiles,
    )
    from watchglass.stats.products import (
        column_correlations as column_correlations,
        inner_products as inner_products,
    )
    from watchglass.stats.robust import (
        RollingBaseline as RollingBaseline,
        median as median,
    )
    from watchglass.stats.rows import (
        Rows as Rows,
        empty as empty,
        finite_count as finite_count,
        merge as merge,
        of_array as of_array,
    )

if not TYPE_CHECKING:
    __getattr__ = lazily(__name__)
