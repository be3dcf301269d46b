"""The read API for people: a run with its steps, tensors, tables and journal, and many runs."""

from typing import TYPE_CHECKING

from watchglass.lazy_imports import lazily

if TYPE_CHECKING:
    from watchglass.run.arrow_tables import WINDOW_TABLES as WINDOW_TABLES, RunTables as RunTables
    from watchglass.run.clocks import wall_times as wall_times
    from watchglass.run.ending import (
        Ending as Ending,
        ending_of as ending_of,
        may_go_on as may_go_on,
        sighting_of as sighting_of,
        state_of as state_of,
    )
    from watchglass.run.judged import is_judged as is_judged, judged_attempt as judged_attempt
    from watchglass.run.loader_workers import LoaderWorker as LoaderWorker, LoaderWorkers as LoaderWorkers
    from watchglass.run.module_times import ModuleTime as ModuleTime, ModuleTimes as ModuleTimes
    from watchglass.run.news import Cursor as Cursor, News as News
    from watchglass.run.numbering.lineage import Seam as Seam
    from watchglass.run.numbering.steps import Range as Range, half_open as half_open
    from watchglass.run.operators import Operators as Operators
    from watchglass.run.profiling import ProfileRequest as ProfileRequest, request_profile as request_profile
    from watchglass.run.python_profiles import PythonProfile as PythonProfile
    from watchglass.run.reading import Journal as Journal
    from watchglass.run.recorded_step import RecordedStep as RecordedStep
    from watchglass.run.run import Run as Run, open_run as open_run
    from watchglass.run.runs import (
        ListedRun as ListedRun,
        Runs as Runs,
        identifier_of as identifier_of,
        open_runs as open_runs,
        runs_of as runs_of,
    )
    from watchglass.run.samples import (
        MetricLevel as MetricLevel,
        Samples as Samples,
        Usage as Usage,
        levels_of as levels_of,
        sampled_after as sampled_after,
        usage_of as usage_of,
    )
    from watchglass.run.search import RunSearch as RunSearch
    from watchglass.run.stages import Stage as Stage, Stages as Stages
    from watchglass.run.statistics_query import spans as spans
    from watchglass.run.step_phases import Phases as Phases
    from watchglass.run.stopping import request_stop as request_stop, stop_reason as stop_reason
    from watchglass.run.summaries import (
        count_steps as count_steps,
        count_steps_of as count_steps_of,
        examined_steps as examined_steps,
        leaders_of as leaders_of,
    )
    from watchglass.run.table import Table as Table
    from watchglass.run.tensor import Tensor as Tensor
    from watchglass.run.timeline import StepTimes as StepTimes, last_step_ns as last_step_ns, step_times as step_times
    from watchglass.run.worker import Worker as Worker

if not TYPE_CHECKING:
    __getattr__ = lazily(__name__)
