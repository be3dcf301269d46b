"""The view of a rule: one complete, frozen step of one model on one worker, and the history before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar, overload

import numpy as np
import numpy.typing as npt

from watchglass.errors import InvalidValueError
from watchglass.records import (
    SCALARS,
    DeclaredFact,
    Fact,
    GivenUp,
    Mode,
    ModuleKind,
    Observation,
    Role,
    RowKey,
    RowKind,
    RowsHaving,
    StepEnd,
    count,
    model_name,
    series_name,
)
from watchglass.stats import RollingBaseline, column as column_of
from watchglass.tables.catalog import Catalog
from watchglass.tables.history import BaselineKey, History, Stretch
from watchglass.tables.raw_tensors import RawTensors
from watchglass.tables.selection import Selection
from watchglass.tables.step_statistics import Readable, Statistics, exact_of
from watchglass.tables.stored_statistics import StatisticsRows
from watchglass.tables.stream_rows import StreamRows

Kind = TypeVar("Kind", bound=DeclaredFact)


@dataclass(frozen=True)
class StepRecords:
    """Everything one worker recorded of one step, as the follower or a test provides it."""

    end: StepEnd  #: The step.
    catalog: Catalog  #: The catalog as it was when the step ended.
    #: Rows by kind as :attr:`~watchglass.records.RowKind.shown`, of kinds that no method of a view shows in another
    #: form. Those that are about no tensor are left out where another model leads the step.
    rows: Mapping[RowKind, Sequence[Any]] = field(default_factory=dict)
    #: The rows of planned captures, with the columns of ``readable.fields``.
    statistics: StatisticsRows = field(default_factory=StatisticsRows.none)
    facts: Sequence[Fact] = ()  #: Facts of this step, and facts of the run that were recorded since the step before.
    raw: RawTensors | None = None  #: The tensors that were recorded whole; None for none.
    readable: Readable = field(default_factory=Readable)  #: Which columns there are, and which of them a rule may read.

    @property
    def scalars(self) -> Sequence[Any]:
        """Its rows of :data:`~watchglass.records.SCALARS`."""
        return self.rows.get(SCALARS, ())


@dataclass(frozen=True)
class StepView:
    """The part of one complete step of one worker that is about one model.

    It holds the tensors and series of that model, and those without a model. Series have the names that a single
    model's would have: ``loss`` is the loss of this model, without its prefix in the run. Made by :meth:`after`; valid
    until the next view of the same history is made.

    Attributes:
        run_id: Identifier of the run.
        attempt: Attempt of the run.
        worker: Worker, ``"worker_0"``.
        records: The records of the step.
        history: Everything up to and including this step.
        stretches: The stretches that ended just before this step.
        observed: Observations of the evaluator since the step before.
        others: The same step of other runs, by the parameter of the rule that names the run.
        model: Number of the model, 0 for the first or only one.
        streams: For each stream that has not ended, its recent rows: those of its last whole window and all later ones
            up to ``end_ns``, the watermark that ended this window. The journal notes this watermark before the step.
            A rule sets kinds and length of windows in :attr:`Rule.streams`. Empty in :meth:`Rule.finish`, and in views
            of other runs.
        covers: How many steps it stands for: 1, but where steps are too short to record each also those since the step
            of its mode before, which were not recorded. Rules that count steps add this number.
    """

    run_id: str
    attempt: int
    worker: str
    records: StepRecords
    history: History
    stretches: tuple[Stretch, ...] = ()
    observed: tuple[Observation, ...] = ()
    others: Mapping[str, StepView | None] = field(default_factory=dict)
    model: int = 0
    streams: tuple[StreamRows, ...] = ()
    covers: int = 1
    #: Several rules read the same rows of a step.
    _selected: dict[Any, Statistics] = field(default_factory=dict, init=False, repr=False, compare=False)

    @classmethod
    def after(
        cls, history: History, records: StepRecords, *, run_id: str = "", attempt: int = 0, worker: str = "worker_0",
        previous: StepView | None = None, model: int = 0, covers: int = 1,
    ) -> StepView:  # fmt: skip
        """The view of the next step; adds ``records`` to ``history``.

        Args:
            history: The history of the model on the worker so far.
            records: The next step in canonical order.
            run_id: Identifier of the run.
            attempt: Attempt of the run.
            worker: Name of the worker.
            previous: The view before this one; its values enter the baselines now.
            model: Number of the model; ``records`` are about no other model.
            covers: How many steps it stands for.
        """
        if previous is not None:
            previous._settle()
        stretches = history.stretches.enter(records.end, records.scalars)
        for info, _, value in records.scalars:
            history.add_scalar(records.end, info.name, value)
        history.add_facts(records.facts)
        return cls(run_id, attempt, worker, records, history, stretches, model=model, covers=covers)

    def finished(self) -> StepView:
        """This last training step of a run again, with the stretches that ended with the run; for `Rule.finish`."""
        return replace(self, stretches=self.history.stretches.finish())

    def __repr__(self) -> str:
        whose = f" of {self.model_name}" if self.several else ""
        step = f"{self.mode.name} step {self.mode_step}{whose}"
        return f"StepView({self.worker}, {step}, {count(len(self.records.statistics.ids), 'tensor')} captured)"

    @property
    def mode(self) -> Mode:
        """TRAIN, EVAL or PREDICT."""
        return self.records.end.mode

    @property
    def mode_step(self) -> int:
        """Number of the step among those of its mode."""
        return self.records.end.mode_step

    @property
    def model_step(self) -> int:
        """Number of the step among those of its mode that are about this model.

        Where a training run was resumed, the steps before it count as those of the first model.
        """
        return self.records.end.mode_step - self.history.others.get(self.mode, 0)

    @property
    def model_name(self) -> str:
        """Name of the model: ``"model"``, ``"model_2"``."""
        return model_name(self.model)

    @property
    def several(self) -> bool:
        """Whether the worker has had more than one model up to this step."""
        return self.history.several

    @property
    def in_turns(self) -> bool:
        """Whether other models are trained between the TRAIN steps of this one, or at them."""
        return self.history.in_turns

    @property
    def stage(self) -> int:
        """Number of the stage of the training of this model, from 0.

        Another one begins where other parameters are trained, or another optimizer trains them: a new head, a part that
        is unfrozen, a second loop of the script. :meth:`series` and :meth:`baseline` begin with it.
        """
        return self.history.stage

    @property
    def task(self) -> int:
        """Number of the stage among those whose loss did not go on from that of the stage before, from 0."""
        return self.history.task

    @property
    def leads(self) -> bool:
        """Whether the step belongs to this model first: each step is led by one model."""
        return self.model == self.records.end.model

    @property
    def global_step(self) -> int:
        """Number of the step among all of the worker."""
        return self.records.end.global_step

    @property
    def train_step(self) -> int:
        """The TRAIN step itself, or the last one begun before this step; -1 for none."""
        return self.records.end.train_step

    @property
    def order(self) -> tuple[int, int, int]:
        """:attr:`StepEnd.order` of the step."""
        return self.records.end.order

    @property
    def start_ns(self) -> int:
        """Worker's monotonic clock when the step began."""
        return self.records.end.start_ns

    @property
    def end_ns(self) -> int:
        """Worker's monotonic clock when the step ended."""
        return self.records.end.end_ns

    @property
    def catalog(self) -> Catalog:
        """The meaning of the tensor ids."""
        return self.records.catalog

    @property
    def captured(self) -> int:
        """Number of tensors with statistics at this step; 0 where the step was not due."""
        self.records.readable.check("ids")
        return len(self.records.statistics.ids)

    @cached_property
    def is_plain(self) -> bool:
        """Whether it has nothing but scalars and times: no capture, fact, end of an evaluation or observation."""
        records = self.records
        return not (
            len(records.statistics.ids) or records.facts or self.stretches or self.observed or self.streams
            or self.others or any(kind.given_up <= GivenUp.STATISTICS for kind in records.rows)
        )  # fmt: skip

    @property
    def has_capture(self) -> bool:
        """Whether tensors were captured at this step, for rules that need none of them: phases have that work too."""
        return self.records.end.captures > 0

    def scalar(self, name: str) -> float | None:
        """The value of a scalar at this step, or None when it was not recorded. May be NaN or infinite."""
        for info, _, value in self.records.scalars:
            if info.name == name:
                return float(value)
        return None

    def scalars(self, role: Role | None = None) -> dict[str, float]:
        """All scalars of this step by name; only those of a role if given."""
        return {info.name: value for info, _, value in self.records.scalars if role is None or info.role is role}

    def recorded_name(self, name: str) -> str:
        """The name in the run of a series of this view: ``"model_2/loss"`` for ``"loss"`` of the second model."""
        if not self.model:
            return name
        info = self.catalog.by_name(name)
        is_series = info is not None and info.model == self.model and info.role in (Role.LOSS, Role.METRIC)
        return series_name(name, self.model) if is_series else name

    def statistics(
        self,
        role: Role | None = None,
        *,
        module_kinds: Sequence[ModuleKind] = (),
        name_regex: str | None = None,
        collection: str | None = None,
        min_dims: int = 0,
    ) -> Statistics:
        """Statistics of the tensors captured at this step that match; empty when the step was not due.

        Args:
            role: Only this role.
            module_kinds: Only tensors of modules of one of these kinds.
            name_regex: Only names in which this regular expression is found (``re.search``).
            collection: Only tensors of this collection, one of the user or a built-in one.
            min_dims: Least number of axes; 2 selects the weight matrices and kernels.

        Raises:
            InvalidValueError: The rule has declared needs, but none of statistics. The returned columns raise it for a
                column that the rule has not declared.
        """
        self.records.readable.check("ids")
        key = (role, tuple(module_kinds), name_regex, collection, min_dims)
        if key not in self._selected:
            self._selected[key] = self._select(*key)
        return self._selected[key]

    def _select(
        self, role: Role | None, module_kinds: tuple[ModuleKind, ...], name_regex: str | None, collection: str | None,
        min_dims: int,
    ) -> Statistics:  # fmt: skip
        records = self.records
        if role is None and not module_kinds and name_regex is None and collection is None and not min_dims:
            return Statistics(self.catalog, *records.statistics, exact_of(records.rows), records.readable)
        return self.statistics().select(
            Selection(role, regex=name_regex, collection=collection, module_kinds=module_kinds, min_dims=min_dims)
        )

    def value(self, name: str) -> npt.NDArray[Any] | None:
        """The elements of a tensor that was recorded whole at this step, read from the store; None where it was not.

        For rules that declare ``Needs(raw=True)``. One rule may read 64 MiB at one step. The array has the shape and
        dtype of the tensor, but float32 for bfloat16 and float8, and may hold NaN and infinities. It is not kept.

        Args:
            name: Name of the tensor, as this view calls it.

        Raises:
            InvalidValueError: The rule has not declared this need, or reads too much at this step.
            StepNotRecordedError: The tensor was removed from the run since.
            DamagedDataError, StoreError: Its file is damaged, or the store refused.
        """
        info, raw = self.catalog.by_name(name), self.records.raw
        if info is None or raw is None or info.tensor_id not in raw:
            return None
        return raw.read(info)

    def whole(self, role: Role | None = None) -> list[str]:
        """Names of the tensors that were recorded whole at this step; only those of a role if given."""
        ids = sorted(self.records.raw.ids) if self.records.raw is not None else []
        known = [info for tensor_id in ids if (info := self.catalog.get(tensor_id)) is not None]
        return [info.name for info in known if role is None or info.role is role]

    def rows(self, kind: RowKind | RowsHaving, /) -> Sequence[Any]:
        """The rows of a kind at this step, such as :data:`~watchglass.records.PHASES`; empty where it has none.

        Rows that are about a tensor are those of the tensors of this view. Others are about the whole step, and shown
        with the model that leads it.

        Args:
            kind: The kind, or some rows of it, such as :data:`~watchglass.records.INACTIVE_UNITS`.

        Returns:
            Named tuples of the kind's own fields, with the :class:`TensorInfo` as ``tensor`` in place of ``tensor_id``.

        Raises:
            InvalidValueError: Rows of this kind belong to no step, or views show them in another form.
        """
        if isinstance(kind, RowsHaving):
            return [row for row in self.rows(kind.kind) if getattr(row, kind.field) == kind.value]
        if kind.shown_by or kind.key is not RowKey.STEP:
            how = f"{kind.shown_by}()" if kind.shown_by else "streams"
            raise InvalidValueError(f"rows() needs a kind that views show as rows but got {kind}; see view.{how}")
        return self.records.rows.get(kind, ())

    @overload
    def facts(self, kind: type[Kind]) -> list[Kind]: ...

    @overload
    def facts(self, kind: str | None = None) -> list[Fact]: ...

    def facts(self, kind: type[Kind] | str | None = None) -> list[Kind] | list[Fact]:
        """Facts of this step; facts of the run come with the first step after them.

        Args:
            kind: A declared kind, :class:`watchglass.records.facts.Membership`; the name of another kind gives the
                facts as they are stored, and None all of them.
        """
        facts = self.records.facts
        if not facts or kind is None:
            return list(facts)
        if isinstance(kind, str):
            return [fact for fact in facts if fact.kind == kind]
        return [read for fact in facts if (read := fact.read(kind)) is not None]

    def observations(self, kind: str | None = None) -> list[Observation]:
        """Observations of the evaluator since the step before: ``"worker_lost"``, ``"worker_returned"``."""
        return [seen for seen in self.observed if kind is None or seen.kind == kind]

    def reference(self, parameter: str) -> StepView | None:
        """The same mode step of a reference run, of the same worker or else of the first one; None where it has none.

        Args:
            parameter: The parameter of the rule that names the run, one of its ``compares``.
        """
        return self.others.get(parameter)

    @overload
    def latest_fact(self, kind: type[Kind]) -> Kind | None: ...

    @overload
    def latest_fact(self, kind: str) -> Fact | None: ...

    def latest_fact(self, kind: type[Kind] | str) -> Kind | Fact | None:
        """The latest fact of a kind, see :meth:`facts`, at this step or before it; None when there was none."""
        if isinstance(kind, str):
            return self.history.latest_fact(kind)
        fact = self.history.latest_fact(kind.KIND)
        return None if fact is None else fact.read(kind)

    def baseline(self, key: BaselineKey) -> RollingBaseline:
        """Rolling baseline of a TRAIN series before this step, shared by all rules that ask for it.

        Args:
            key: ``("scalar", "loss")`` or ``("statistic", "rms", "gradient/fc1.weight")``, with a stored or derived
                column.

        Raises:
            InvalidValueError: Something else, or a column that the rule has not declared.
        """
        if key[:1] == ("statistic",) and len(key) == 3:
            self.records.readable.check(key[1])
        return self.history.baseline(key)

    def series(self, name: str, mode: Mode | str | None = None, last: int | None = None) -> npt.NDArray[np.float64]:
        """The values of a scalar up to and including this step, oldest first; at most the last 4096.

        Args:
            name: Name of the scalar.
            mode: Mode of the steps; this step's if None.
            last: Number of the latest ones to return; all if None.
        """
        return self.history.series(self.mode if mode is None else Mode.of(mode), name, last)

    def series_steps(self, name: str, mode: Mode | str | None = None) -> npt.NDArray[np.int64]:
        """The steps of all values of :meth:`series`, which are numbers of steps in that mode."""
        return self.history.steps(self.mode if mode is None else Mode.of(mode), name)

    def _settle(self) -> None:
        """Feeds the baselines with this step's values, once the next step begins."""
        if self.mode is not Mode.TRAIN:
            return
        for key in self.history.baseline_keys:
            value = self.scalar(key[1]) if key[0] == "scalar" else self._statistic(key[1], key[2])
            if value is not None:
                self.history.baseline(key).update(value)

    def _statistic(self, column: str, name: str) -> float | None:
        info = self.catalog.by_name(name)
        statistics, fields = self.records.statistics, self.records.readable.fields
        rows = np.flatnonzero(statistics.ids == info.tensor_id) if info is not None else np.zeros(0, np.intp)
        return float(column_of(statistics.values[rows[0]], column, fields or ())) if len(rows) else None
