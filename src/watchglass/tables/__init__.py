"""The data that rules read: the catalog, tables of workers and streams, statistics, histories, views, moments."""

from typing import TYPE_CHECKING

from watchglass.lazy_imports import lazily

if TYPE_CHECKING:
    from watchglass.tables.catalog import Catalog as Catalog
    from watchglass.tables.histograms import Histogram as Histogram, LazyHistograms as LazyHistograms
    from watchglass.tables.history import (
        SAME_LOSS as SAME_LOSS,
        SAME_LOSS_NEAR_ZERO as SAME_LOSS_NEAR_ZERO,
        History as History,
        Stretch as Stretch,
        StretchTracker as StretchTracker,
    )
    from watchglass.tables.model_views import THINNED as THINNED, ModelViews as ModelViews
    from watchglass.tables.moments import (
        AttemptEnd as AttemptEnd,
        Between as Between,
        JointStep as JointStep,
        Moment as Moment,
        Tick as Tick,
        Window as Window,
        Written as Written,
    )
    from watchglass.tables.payloads import limit_decoded as limit_decoded
    from watchglass.tables.raw_tensors import (
        MOST_RAW_BYTES as MOST_RAW_BYTES,
        RawTensors as RawTensors,
        as_array as as_array,
        stored_tensor as stored_tensor,
    )
    from watchglass.tables.row_log import RowLog as RowLog
    from watchglass.tables.samples import (
        MetricSeries as MetricSeries,
        as_float64 as as_float64,
        layouts_of as layouts_of,
        metrics_in as metrics_in,
        read_layout as read_layout,
        series_of as series_of,
    )
    from watchglass.tables.selection import Selection as Selection
    from watchglass.tables.step_statistics import (
        EXACT as EXACT,
        REDUCTIONS as REDUCTIONS,
        Readable as Readable,
        Statistics as Statistics,
        check_reduction as check_reduction,
        exact_of as exact_of,
    )
    from watchglass.tables.step_view import StepRecords as StepRecords, StepView as StepView
    from watchglass.tables.stored_statistics import (
        StatisticsRows as StatisticsRows,
        last_index_of_each as last_index_of_each,
    )
    from watchglass.tables.stream_rows import StreamRows as StreamRows
    from watchglass.tables.streams import StreamPart as StreamPart, Streams as Streams
    from watchglass.tables.worker_tables import WorkerTables as WorkerTables

if not TYPE_CHECKING:
    __getattr__ = lazily(__name__)
