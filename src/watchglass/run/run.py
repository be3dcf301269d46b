"""A run for people and programs: names, steps, scalars, tensors, statistics, findings."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import Any, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from watchglass.config import suggest
from watchglass.errors import UnknownNameError
from watchglass.lazy_imports import named
from watchglass.records import DeclaredFact, Fact, Mode, ModelSummary, Role, Verdict, count, judged, read_facts
from watchglass.run.ending import state_of
from watchglass.run.loader_workers import LoaderWorkers, loader_workers_of
from watchglass.run.markup import page
from watchglass.run.module_times import ModuleTimes, module_times_of
from watchglass.run.numbering.course import STORED_MODES
from watchglass.run.numbering.steps import Range, half_open
from watchglass.run.operators import Operators, operators_in
from watchglass.run.profiled_windows import windows_of
from watchglass.run.profiling import ProfileRequest, change_profiler, request_profile, request_python_profile
from watchglass.run.python_profiles import PythonProfile, python_profiles_in
from watchglass.run.recorded_step import RecordedStep
from watchglass.run.run_records import RunRecords
from watchglass.run.samples import Moment, Samples, overview, samples_of
from watchglass.run.stages import Stages, stages_of
from watchglass.run.statistics_query import StatisticsQuery
from watchglass.run.step_phases import Phases, phases_of
from watchglass.run.summaries import count_steps, models_of
from watchglass.run.table import Table, run_query
from watchglass.run.tensor import Tensor
from watchglass.run.waiting import locate, reading_again, wait_for
from watchglass.store import (
    Problem,
    open_store,
)
from watchglass.tables import Selection, StatisticsRows, Stretch

Kind = TypeVar("Kind", bound=DeclaredFact)
#: Scalars that the page of a run shows in a notebook; a search over a hundred models has a thousand.
_MOST_ROWS = 100


def open_run(
    path: str | os.PathLike[str],
    *,
    attempt: int | None = None,
    steps: Range | None = None,
    workers: Collection[str] | None = None,
) -> Run:
    """The run at a path, with everything read that was written so far; :meth:`Run.refresh` reads on.

    Args:
        path: Folder of the run, or its address in an object store.
        attempt: Read one attempt alone, in its own numbers; None for the steps that count over all attempts.
        steps: Open only these TRAIN steps, and the evaluations that followed them; bounds time and memory. Where the
            run was resumed within them, evaluations are counted from the first opened one.
        workers: Read only these workers, as if there were no others; bounds time and memory.

    Raises:
        MissingFileError: There is nothing at the path.
        NotARunError: It is not a run.
        FormatVersionError: It was written in another major version of the format.
        UnknownNameError: There is no such attempt.
        InvalidValueError: The steps are not a range.
    """
    return Run(open_store(os.fspath(path)), attempt=attempt, steps=steps, workers=workers)


class Run(RunRecords):
    """A run over all its attempts, or one of them. For one thread, except a :meth:`snapshot`. Only :meth:`profile`
    writes. Damaged parts are omitted, see ``problems``.

    The records of a step are shown once the step is complete. Steps count from 0 within their mode. In a resumed run
    the numbers continue, and a repeated step appears once, from the newest attempt. ``worker`` arguments are names such
    as ``"worker_1"``; None is the worker with the lowest rank.

    Methods that take a step raise :class:`StepNotReadyError` for a step that is still to come, :class:`EndOfRunError`
    for one after the end of the run, and :class:`StepNotRecordedError` for one that was not recorded. All three are
    :class:`UnknownNameError`. Its attributes are those of :class:`~watchglass.run.run_records.RunRecords`.
    """  # noqa: D205

    #: Of a snapshot, whose records never change.
    _models: tuple[ModelSummary, ...] | None = None

    def wait_for_steps(
        self,
        steps: int | Iterable[int],
        *,
        mode: Mode | str = Mode.TRAIN,
        worker: str | None = None,
        timeout_s: float | None = None,
        poll_s: float | None = None,
    ) -> None:
        """Refresh until steps are complete: every worker has ended them, is past them or has left.

        Args:
            steps: One or several.
            mode: Mode of the steps.
            worker: Wait for this worker only; for all if None.
            timeout_s: The longest time to wait; no limit if None. 0 refreshes once.
            poll_s: Time between two refreshes; chosen for the store if None.

        Raises:
            StepNotReadyError: The time is over; the message names the steps that are complete.
            EndOfRunError: The run ended, or all its workers died, before that step.
            StepNotRecordedError: It was not recorded: later steps are complete.
            UnknownNameError: There is no such worker.
        """
        wait_for(self, steps, Mode.of(mode), worker, timeout_s, poll_s)

    # Steps

    def steps(self, mode: Mode | str = Mode.TRAIN, worker: str | None = None) -> list[int]:
        """Complete recorded steps of a mode, ascending; for ``Mode.GLOBAL`` the worker's steps over all modes.

        Of training steps too short to record each, only some are among them; the numbers are those of the script.
        """
        return list(self.worker(worker).numbers(Mode.of(mode)))

    def global_step(self, step: int, mode: Mode | str = Mode.TRAIN, worker: str | None = None) -> int:
        """The number among the worker's steps over all modes of a complete step of a mode."""
        source = self.worker(worker)
        return source.end_at(locate(self, source, step, Mode.of(mode))).global_step

    def mode_step(self, global_step: int, worker: str | None = None) -> tuple[Mode, int]:
        """The mode of a complete step, and its number among those of that mode."""
        source = self.worker(worker)
        found = source.end_at(locate(self, source, global_step, Mode.GLOBAL))
        return found.mode, found.mode_step

    def step(self, step: int, mode: Mode | str = Mode.TRAIN, worker: str | None = None) -> RecordedStep:
        """Everything recorded at a complete step, frozen."""

        def read() -> RecordedStep:
            source = self.worker(worker)
            place = locate(self, source, step, Mode.of(mode))
            tables, end = source.attempts[place.attempt], source.end_at(place)

            def again() -> StatisticsRows:
                self.refresh(again=True)
                return self.worker(source.name).attempts[place.attempt].statistics.at(place.global_step)

            return RecordedStep.of(self.store, source.name, tables, end, place, None if self.is_snapshot else again)

        return reading_again(self, read)

    # Tensors and scalars

    def tensor_names(
        self,
        *,
        step: int | None = None,
        mode: Mode | str | None = None,
        regex: str | None = None,
        role: Role | str | None = None,
        module: str | None = None,
        collection: str | None = None,
        worker: str | None = None,
    ) -> list[str]:
        """Names of the tensors that match every condition given, in the order in which they were first seen.

        Args:
            step: Something of it was recorded at this complete step, of ``mode`` or else of TRAIN.
            mode: Something of it was recorded at a complete step of this mode.
            regex: The name contains a match of this regular expression.
            role: What the tensor is.
            module: Path of the module that owns it, or of one that contains that module.
            collection: This collection holds it, one of the user or a built-in one.
            worker: Whose tensors.

        Raises:
            InvalidValueError: The regular expression is invalid, or the role is unknown.
            StepNotReadyError, StepNotRecordedError, EndOfRunError: There is no such complete step.
        """
        source = self.worker(worker)
        matches = Selection(role, module=module, regex=regex, collection=collection).matcher()
        rows = [row for row in source.infos().values() if matches(row)]
        if step is not None:
            recorded = frozenset(self.step(step, Mode.TRAIN if mode is None else mode, worker).names)
            return [row.name for row in rows if row.name in recorded]
        if mode is not None:
            of = Mode.of(mode)
            recorded = reading_again(self, lambda: self.worker(worker).names_of(of))
            return [row.name for row in rows if row.name in recorded]
        return [row.name for row in rows]

    def tensor(self, name: str) -> Tensor:
        """The tensor with a name.

        Raises:
            UnknownNameError: No worker has it; the message names the nearest one.
        """
        team = [self.worker(worker) for worker in self.workers]
        if not any(worker.has(name) for worker in team):
            known = dict.fromkeys(each for worker in team for each in worker.infos())
            raise UnknownNameError(
                f"{self.location} has no tensor {name!r}{suggest(name, list(known))}; see tensor_names()"
            )
        return Tensor(self, name)

    def scalars(
        self, name: str, mode: Mode | str = Mode.TRAIN, worker: str | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The course of a scalar such as ``"loss"``: steps int64[n], ascending, and values float64[n].

        One value for each step that has one: a scalar that was saved several times in a step is the mean of these.
        ``table("scalars")`` has all of them.

        Raises:
            UnknownNameError: There is no such name; the message names the nearest one.
        """
        source = self.worker(worker)
        if not source.has(name):
            known = list(source.infos())
            raise UnknownNameError(f"{self.location} has no scalar {name!r}{suggest(name, known)}; see tensor_names()")
        return source.scalars(name, Mode.of(mode))

    # Metrics of the machines

    @overload
    def samples(self) -> Table: ...

    @overload
    def samples(
        self, name: str, *, stream: str | None = None, start: Moment | None = None, stop: Moment | None = None
    ) -> Samples: ...

    def samples(
        self,
        name: str | None = None,
        *,
        stream: str | None = None,
        start: Moment | None = None,
        stop: Moment | None = None,
    ) -> Samples | Table:
        """The course of a system metric such as ``"cpu.utilization"``; without a name, a table of all metrics.

        The columns of that table are ``stream, metric, unit, instances, times, mean, p95, max``. Only the samples of
        the range are read, so a page of a long run takes little time.

        Args:
            name: Name of a metric.
            stream: The stream of a machine, ``"system"`` for the first one; by default the first that has the metric.
            start: The first time: a datetime with a time zone, a datetime64 in UTC, or ns of the monotonic clock.
            stop: The time after the last one.

        Raises:
            UnknownNameError: No such stream, or no samples of that metric; the message names the nearest one.
            InvalidValueError: A time without a time zone.
        """
        if name is None:
            return overview(self)
        return samples_of(self, name, stream, start, stop)

    def phases(self, mode: Mode | str = Mode.TRAIN, worker: str | None = None) -> Phases:
        """Where the time of the steps of a mode went: data, prepare, copy, forward and so on, in seconds.

        Without rows if phases were not recorded.

        Args:
            mode: ``Mode.TRAIN`` or ``Mode.EVAL``; ``Mode.GLOBAL`` for both, by global step.
            worker: Whose steps.

        Raises:
            UnknownNameError: There is no such worker.
        """
        return phases_of(self.worker(worker), Mode.of(mode))

    def stages(self, worker: str | None = None) -> Stages:
        """When a worker was initialized, trained, evaluated and finalized.

        Args:
            worker: Whose stages.

        Raises:
            UnknownNameError: There is no such worker.
        """
        return stages_of(self.worker(worker))

    def operators(self, worker: str | None = None) -> list[Operators]:
        """The operators of each profiled window of training steps, by first step; an empty list if none was profiled.

        Args:
            worker: Whose windows.

        Raises:
            UnknownNameError: There is no such worker.
        """
        return windows_of(self.worker(worker), operators_in)

    def python_profiles(self, worker: str | None = None) -> list[PythonProfile]:
        """The Python functions of each profiled window of training steps, by first step; empty if none was profiled.

        Args:
            worker: Whose windows.

        Raises:
            UnknownNameError: There is no such worker.
        """
        return windows_of(self.worker(worker), python_profiles_in)

    def module_times(self, worker: str | None = None) -> ModuleTimes:
        """The time of each module, forward and backward, in the training steps in which it was measured.

        Without rows if it was not measured; its ``untimed`` names models that cannot be timed, such as compiled ones.

        Args:
            worker: Whose modules.

        Raises:
            UnknownNameError: There is no such worker.
        """
        return module_times_of(self.worker(worker))

    def loader_workers(self, worker: str | None = None) -> LoaderWorkers:
        """The mean times of the batches of data loaders: to fetch samples, to collate them, until the script had them.

        By the processes that made the batches. Without rows if phases were not recorded.

        Args:
            worker: Whose loaders.

        Raises:
            UnknownNameError: There is no such worker.
        """
        return loader_workers_of(self.worker(worker))

    # Tables

    def profile(self, steps: int = 5, *, start: int | None = None) -> ProfileRequest[Operators]:
        """Ask the running job to profile the operators of its next training steps; does not wait.

        ``run.profile(5).wait()`` has the operators. The workers begin at one step if they read the request in time, and
        otherwise with their next one.

        Args:
            steps: How many.
            start: The first one, from 1 on; None for the next ones.

        Raises:
            InvalidValueError: Another number; a start that is over; steps that overlap those of another request.
            EndOfRunError: The run has ended, or the attempt that it was opened with.
            StoreError: The store refused.
        """
        return request_profile(self, steps, start)

    def profile_python(
        self, steps: int = 5, *, start: int | None = None, profiler: str = "cprofile"
    ) -> ProfileRequest[PythonProfile]:
        """Ask the running job to profile the Python functions of its next training steps; else as :meth:`profile`.

        Args:
            steps: How many.
            start: The first one, from 1 on; None for the next ones.
            profiler: ``"cprofile"``, or ``"pyinstrument"``, which the job must have installed.

        Raises:
            InvalidValueError: Another profiler; else as for :meth:`profile`.
            EndOfRunError: The run has ended, or the attempt that it was opened with.
            StoreError: The store refused.
        """
        return request_python_profile(self, steps, start, profiler)

    def change_profiler(self, **settings: Any) -> int:
        """Change settings of the profiler while the job runs; does not wait. Returns the step from which they hold.

        A worker reads them within 0.2 s, and notes them as the fact ``profiler_changed``; a sampler within a second. On
        an object store both take 5 to 60 s.

        Args:
            **settings: ``enabled`` (False pauses the sampler and refuses windows, True goes on), ``sample_interval_s``
                (seconds, 0.1 to 60) and ``module_times`` of :class:`~watchglass.ProfilerConfig`.

        Raises:
            InvalidValueError: Another setting or value, or a run without a sampler.
            EndOfRunError: The run has ended, or the attempt that it was opened with.
            StoreError: The store refused.
        """
        return change_profiler(self, settings)

    def statistics(
        self,
        role: Role | str | None = None,
        *,
        module: str | None = None,
        regex: str | None = None,
        names: Sequence[str] = (),
        collection: str | None = None,
        mode: Mode | str = Mode.TRAIN,
        steps: Range | None = None,
        worker: str | None = None,
        merged: bool = False,
        histograms: bool = False,
        fields: Sequence[str] | None = None,
    ) -> Table:
        """Statistics of tensors over steps as a table, one row per worker, step and tensor, read on demand.

        Columns: ``attempt, worker, mode, step, global_step, tensor, role, module, module_type, layer_index, calls,
        sampled``, then the fields.

        Args:
            role: Only this role.
            module: Only tensors of this module, or of one within it.
            regex: Only names that contain a match of this regular expression.
            names: Only these names.
            collection: Only tensors of this collection.
            mode: Mode of the steps; ``Mode.GLOBAL`` for all modes.
            steps: Only these steps of the mode, as ``range(0, 100)`` or ``(0, 100)``.
            worker: Name of the worker; ``"all"`` for all of them.
            merged: One row per step and tensor over all workers: the statistics of their parts of the tensor, or of
                their different data, are merged, see :mod:`watchglass.run.merged`.
            histograms: Add the columns ``histogram_seen, histogram_low, histogram_high, histogram_counts``.
            fields: Some of :data:`~watchglass.tables.REDUCTIONS`; all stored and the usual derived ones if None.

        Raises:
            InvalidValueError: A role, regular expression, field or range is invalid.
            UnknownNameError: There is no such worker.
        """
        selection = Selection(role, tuple(names), module, regex, collection)
        query = StatisticsQuery(
            selection, Mode.of(mode), half_open(steps), worker, merged=merged, histograms=histograms,
            fields=None if fields is None else tuple(fields),
        )  # fmt: skip
        query.team(self)  # refuses a wrong name now
        return Table("statistics", lambda: reading_again(self, lambda: query.read(query.team(self))))

    def table(self, name: str) -> Table:
        """One of the tables of :meth:`sql` as a whole, over all workers and modes.

        Args:
            name: ``steps``, ``tensors``, ``scalars``, ``statistics``, ``reductions``, ``units``, ``raw``, ``facts``,
                ``phases``, ``pauses``, ``loader_workers``, ``samples``, ``notes``, ``findings``, ``operators``,
                ``module_operators``, ``memory_categories`` or ``functions``.

        Raises:
            UnknownNameError: There is no such table.
        """
        from watchglass.run.arrow_tables import table_of  # with Arrow, which costs a fifth of a second

        return table_of(self, name)

    def sql(self, query: str) -> Table:
        """The result of a query by DuckDB over the tables that :meth:`table` names.

        Only tables that the query names are read, and only those columns of statistics. The query reaches neither files
        nor the network.

        Raises:
            InvalidValueError: The query is invalid.
            MissingExtraError: DuckDB is not installed.
        """
        from watchglass.run.arrow_tables import fields_named, table_names, table_of

        named = fields_named(query)
        return run_query(query, {name: table_of(self, name, named).to_arrow for name in table_names()})

    def stretches(self, mode: Mode | str = Mode.EVAL, worker: str | None = None) -> list[Stretch]:
        """Stretches of steps of one mode with the mean of each scalar, weighted by batch size, in order.

        An EVAL stretch is one evaluation; a TRAIN stretch, the steps between two evaluations. If an evaluation goes
        through batches of the training data and through others, ``means`` are those of the others, and
        ``training_means`` those of the training data.
        """
        return self.worker(worker).stretches(mode)

    @property
    def models(self) -> tuple[ModelSummary, ...]:
        """The results of each model that the first worker trained or evaluated: steps, losses, accuracy, findings.

        Where workers train separately, as processes of a pool do, the models of all of them. In the order in which they
        were first trained or evaluated. Series of the first are called ``loss``, ``accuracy``; those of the second
        ``model_2/loss``, ``model_2/accuracy``.
        """
        found = self._models
        if found is None:
            found = judged(reading_again(self, lambda: models_of(self)), self.journal.findings)
            self._models = found if self.is_snapshot else None
        return found

    @overload
    def facts(self, kind: type[Kind], worker: str | None = None) -> list[Kind]: ...

    @overload
    def facts(self, kind: str | None = None, worker: str | None = None) -> list[Fact]: ...

    def facts(self, kind: type[Kind] | str | None = None, worker: str | None = None) -> list[Kind] | list[Fact]:
        """Facts of a worker in the order of their steps, those of the run (step -1) first.

        Args:
            kind: The name of a kind, for the facts as they are stored; or its declaration, such as
                :class:`watchglass.records.facts.Membership`, for objects of this class. None for all facts.
            worker: Name of the worker; the first one if None.
        """
        found = self.worker(worker)
        return read_facts(found.facts(kind.KIND), kind) if isinstance(kind, type) else found.facts(kind)

    def verdict(self) -> Verdict:
        """The verdict on the run: diagnoses with causes and their evidence, findings, statuses of rules, metrics.

        It is that of the run's evaluator, if that has evaluated all of the run, else of the default rules, evaluated
        now; nothing is written. Printed it is the text of ``watchglass check``; a notebook shows all evidence.

        Raises:
            WatchglassError: The run cannot be read any more.
        """
        found: Verdict = named("watchglass.evaluate:judge_run")(self)
        return found

    @property
    def plot(self) -> Any:
        """Figures for a notebook: ``run.plot.losses()``; see :class:`watchglass.view.Plots`.

        Raises:
            MissingExtraError: plotly is not installed.
        """
        return named("watchglass.view:Plots")(self)

    @property
    def problems(self) -> list[Problem]:
        """The unreadable parts of the run, each with file, offset and reason; also the torn end of a killed writer.

        It decodes all that was read; a snapshot has those that were found so far.
        """
        found = reading_again(self, lambda: self.reading.problems)
        return found + (self.reading.unfinished() if self.finished or self.lost else [])

    def __repr__(self) -> str:
        return f"Run({self.location!r}: {', '.join(self._summary())})"

    def _repr_html_(self) -> str:
        """The verdict by what the evaluator has written, and first and last scalars; no rule is evaluated."""
        card = named("watchglass.view:run_card")(self, named("watchglass.diagnose:verdict")(self))
        return f"{card}{self._scalars_html()}"

    def _scalars_html(self) -> str:
        created = datetime.fromtimestamp(self.manifest.created_ns / 1e9).strftime("%Y-%m-%d %H:%M")
        rows: list[tuple[Any, ...]] = []
        for role in (Role.LOSS, Role.METRIC):
            for name in self.tensor_names(role=role):
                for mode in self.modes:
                    steps, values = self.scalars(name, mode)
                    if len(steps):
                        rows.append((name, mode.name, float(values[0]), float(values[-1]), int(steps[-1])))
        left = [f"and {len(rows) - _MOST_ROWS:,} more rows"] if len(rows) > _MOST_ROWS else []
        more = "; ".join([*left, *(str(seam) for seam in self.seams)])
        note = f"{', '.join(self._summary())}; begun {created}"
        return page(self.location, note, ("scalar", "mode", "first", "last", "at step"), rows[:_MOST_ROWS], more)

    def _summary(self) -> list[str]:
        """What the run holds, in a few words each."""
        modes = [(count_steps(self, mode), mode.name) for mode in STORED_MODES]
        steps = " and ".join(f"{number} {name}" for number, name in modes if number) or "no"
        parts = [
            count(len(self.workers), "worker"),
            f"{steps} {'step' if sum(number for number, _ in modes) == 1 else 'steps'}",
            count(len(self.worker().infos()), "tensor"),
        ]
        if len(self.attempts) > 1:
            alone = len(self.worker().attempts) == 1
            parts.insert(0, f"attempt {self.attempt}" if alone else count(len(self.attempts), "attempt"))
        if self.journal.findings:
            parts.append(count(len(self.journal.findings), "finding"))
        replaced = self.attempt < max(self.attempts, default=0)
        return [*parts, "replaced by a later attempt" if replaced else state_of(self)]
