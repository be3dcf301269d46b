"""Reading a run: the catalog, one complete step at a time, or the whole run."""

from watchglass.run.catalog import Catalog
from watchglass.run.histograms import Histogram, LazyHistograms
from watchglass.run.history import History, Phase
from watchglass.run.run import Run, open_run
from watchglass.run.statistics import REDUCTIONS, Statistics
from watchglass.run.stored import StatisticsRows
from watchglass.run.tables import RawPlace, WorkerTables
from watchglass.run.tensor import Tensor
from watchglass.run.view import StepRecords, StepView

__all__ = [
    "REDUCTIONS", "Catalog", "Histogram", "History", "LazyHistograms", "Phase", "RawPlace", "Run", "Statistics",
    "StatisticsRows", "StepRecords", "StepView", "Tensor", "WorkerTables", "open_run",
]  # fmt: skip
