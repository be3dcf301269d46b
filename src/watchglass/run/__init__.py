"""Reading a run: the catalog, one complete step at a time, or the whole run."""

from typing import TYPE_CHECKING

from watchglass.lazy_imports import lazily

if TYPE_CHECKING:
    from watchglass.run.catalog import Catalog as Catalog
    from watchglass.run.description import state_of as state_of
    from watchglass.run.ending import Ending as Ending, ending_of as ending_of
    from watchglass.run.histograms import Histogram as Histogram, LazyHistograms as LazyHistograms
    from watchglass.run.history import History as History, Phase as Phase
    from watchglass.run.lineage import Seam as Seam
    from watchglass.run.model_views import ModelViews as ModelViews
    from watchglass.run.moments import (
        AttemptEnd as AttemptEnd,
        Between as Between,
        JointStep as JointStep,
        Moment as Moment,
        Tick as Tick,
        Window as Window,
        Written as Written,
    )
    from watchglass.run.news import Cursor as Cursor, News as News
    from watchglass.run.raw_tensors import MOST_RAW_BYTES as MOST_RAW_BYTES, RawTensors as RawTensors
    from watchglass.run.reading import Journal as Journal
    from watchglass.run.recorded_step import RecordedStep as RecordedStep
    from watchglass.run.run import Run as Run, open_run as open_run
    from watchglass.run.runs import ListedRun as ListedRun, Runs as Runs, open_runs as open_runs
    from watchglass.run.search import RunSearch as RunSearch
    from watchglass.run.selection import Selection as Selection
    from watchglass.run.statistics import REDUCTIONS as REDUCTIONS, Statistics as Statistics
    from watchglass.run.stored import StatisticsRows as StatisticsRows
    from watchglass.run.streams import Streams as Streams
    from watchglass.run.summaries import (
        SAME_LOSS as SAME_LOSS,
        SAME_LOSS_NEAR_ZERO as SAME_LOSS_NEAR_ZERO,
        count_steps as count_steps,
        leaders_of as leaders_of,
    )
    from watchglass.run.table import Table as Table
    from watchglass.run.tables import RawPlace as RawPlace, WorkerTables as WorkerTables
    from watchglass.run.tabular import RunTables as RunTables
    from watchglass.run.tensor import Tensor as Tensor
    from watchglass.run.view import StepRecords as StepRecords, StepView as StepView
    from watchglass.run.worker import Worker as Worker

_HOMES = {
    "catalog": ("Catalog",),
    "description": ("state_of",),
    "ending": ("Ending", "ending_of"),
    "histograms": ("Histogram", "LazyHistograms"),
    "history": ("History", "Phase"),
    "lineage": ("Seam",),
    "model_views": ("ModelViews",),
    "moments": ("AttemptEnd", "Between", "JointStep", "Moment", "Tick", "Window", "Written"),
    "news": ("Cursor", "News"),
    "raw_tensors": ("MOST_RAW_BYTES", "RawTensors"),
    "reading": ("Journal",),
    "recorded_step": ("RecordedStep",),
    "run": ("Run", "open_run"),
    "runs": ("ListedRun", "Runs", "open_runs"),
    "search": ("RunSearch",),
    "selection": ("Selection",),
    "statistics": ("REDUCTIONS", "Statistics"),
    "stored": ("StatisticsRows",),
    "streams": ("Streams",),
    "summaries": ("SAME_LOSS", "SAME_LOSS_NEAR_ZERO", "count_steps", "leaders_of"),
    "table": ("Table",),
    "tabular": ("RunTables",),
    "tables": ("RawPlace", "WorkerTables"),
    "tensor": ("Tensor",),
    "view": ("StepRecords", "StepView"),
    "worker": ("Worker",),
}  # fmt: skip


if not TYPE_CHECKING:
    __getattr__ = lazily(__name__, _HOMES)
