"""Reading a run: the catalog, one complete step at a time, or the whole run."""

from typing import TYPE_CHECKING

from watchglass.lazy_imports import lazily

if TYPE_CHECKING:
    from watchglass.run.catalog import Catalog
    from watchglass.run.description import state_of
    from watchglass.run.ending import Ending, ending_of
    from watchglass.run.histograms import Histogram, LazyHistograms
    from watchglass.run.history import History, Phase
    from watchglass.run.lineage import Seam
    from watchglass.run.model_views import ModelViews
    from watchglass.run.moments import AttemptEnd, Between, JointStep, Moment, Tick, Window, Written
    from watchglass.run.news import Cursor, News
    from watchglass.run.raw_tensors import MOST_RAW_BYTES, RawTensors
    from watchglass.run.reading import Journal
    from watchglass.run.recorded_step import RecordedStep
    from watchglass.run.run import Run, open_run
    from watchglass.run.runs import ListedRun, Runs, open_runs
    from watchglass.run.search import RunSearch
    from watchglass.run.selection import Selection
    from watchglass.run.statistics import REDUCTIONS, Statistics
    from watchglass.run.stored import StatisticsRows
    from watchglass.run.streams import Streams
    from watchglass.run.summaries import SAME_LOSS, SAME_LOSS_NEAR_ZERO, count_steps, leaders_of
    from watchglass.run.table import Table
    from watchglass.run.tables import RawPlace, WorkerTables
    from watchglass.run.tabular import RunTables
    from watchglass.run.tensor import Tensor
    from watchglass.run.view import StepRecords, StepView
    from watchglass.run.worker import Worker

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

__all__ = [
    "MOST_RAW_BYTES", "REDUCTIONS", "SAME_LOSS", "SAME_LOSS_NEAR_ZERO", "AttemptEnd", "Between", "Catalog", "Cursor",
    "Ending",
    "Histogram", "History", "JointStep", "Journal", "LazyHistograms", "ListedRun", "ModelViews", "Moment", "News",
    "Phase", "RawPlace", "RawTensors", "RecordedStep", "Run", "RunSearch", "RunTables", "Runs", "Seam", "Selection",
    "Statistics", "StatisticsRows", "StepRecords", "StepView", "Streams", "Table", "Tensor", "Tick", "Window",
    "Worker", "WorkerTables",    "Written",
    "count_steps", "ending_of", "leaders_of", "open_run", "open_runs", "state_of",
]  # fmt: skip

if not TYPE_CHECKING:
    __getattr__ = lazily(__name__, _HOMES)
