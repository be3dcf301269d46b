"""Reading a run: the catalog, one complete step at a time, or the whole run."""

from watchglass.run.catalog import Catalog
from watchglass.run.history import History, Phase
from watchglass.run.statistics import Statistics
from watchglass.run.tables import RawPlace, StatisticsRows, WorkerTables
from watchglass.run.view import StepRecords, StepView

__all__ = ["Catalog", "History", "Phase", "RawPlace", "Statistics", "StatisticsRows", "StepRecords", "StepView", "WorkerTables"]
