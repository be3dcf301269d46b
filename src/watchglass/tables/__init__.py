"""What rules read: the catalog, tables of what workers and streams recorded, statistics, histories, views, moments."""

from typing import TYPE_CHECKING

from watchglass.lazy_imports import lazily

if TYPE_CHECKING:
    from watchglass.tables.catalog import Catalog as Catalog
    from watchglass.tables.histograms import Histogram as Histogram, LazyHistograms as LazyHistograms
    from watchglass.tables.history import (
        SAME_LOSS as SAME_LOSS,
        SAME_LOSS_NEAR_ZERO as SAME_LOSS_NEAR_ZERO,
        History as History,
        Phase as Phase,
        PhaseTracker as PhaseTracker,
    )
    from watchglass.tables.model_views import ModelViews as ModelViews
    from watchglass.tables.moments import (
        AttemptEnd as AttemptEnd,
        Between as Between,
        JointStep as JointStep,
        Moment as Moment,
        Tick as Tick,
        Window as Window,
        Written as Written,
    )
    from watchglass.tables.raw_tensors import (
        MOST_RAW_BYTES as MOST_RAW_BYTES,
        RawTensors as RawTensors,
        as_array as as_array,
        stored_tensor as stored_tensor,
    )
    from watchglass.tables.row_log import RowLog as RowLog
    from watchglass.tables.selection import Selection as Selection
    from watchglass.tables.step_statistics import (
        EXACT as EXACT,
        REDUCTIONS as REDUCTIONS,
        Readable as Readable,
        Statistics as Statistics,
        check_reduction as check_reduction,
    )
    from watchglass.tables.step_view import StepRecords as StepRecords, StepView as StepView
    from watchglass.tables.stored_statistics import (
        StatisticsRows as StatisticsRows,
        last_index_of_each as last_index_of_each,
    )
    from watchglass.tables.streams import Streams as Streams
    from watchglass.tables.worker_tables import RawPlace as RawPlace, WorkerTables as WorkerTables

_HOMES = {
    "catalog": ("Catalog",),
    "histograms": ("Histogram", "LazyHistograms"),
    "history": ("SAME_LOSS", "SAME_LOSS_NEAR_ZERO", "History", "Phase", "PhaseTracker"),
    "model_views": ("ModelViews",),
    "moments": ("AttemptEnd", "Between", "JointStep", "Moment", "Tick", "Window", "Written"),
    "raw_tensors": ("MOST_RAW_BYTES", "RawTensors", "as_array", "stored_tensor"),
    "row_log": ("RowLog",),
    "selection": ("Selection",),
    "step_statistics": ("EXACT", "REDUCTIONS", "Readable", "Statistics", "check_reduction"),
    "step_view": ("StepRecords", "StepView"),
    "stored_statistics": ("StatisticsRows", "last_index_of_each"),
    "streams": ("Streams",),
    "worker_tables": ("RawPlace", "WorkerTables"),
}  # fmt: skip


if not TYPE_CHECKING:
    __getattr__ = lazily(__name__, _HOMES)
