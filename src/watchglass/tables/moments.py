"""Moments that rules see in addition to the steps of one worker: steps of all workers, windows of streams, ticks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from numpy.typing import NDArray

from watchglass.records import Mode, Observation, facts
from watchglass.tables.step_view import StepView
from watchglass.tables.stream_rows import StreamRows

#: The step of an instance that has seen no step yet.
_NO_STEP = (-1, 0, -1)


@dataclass(frozen=True)
class JointStep:
    """One step of all workers that train together, or of one that trains separately."""

    #: The step of each worker, in rank order; with several models, a view for each model of the step.
    views: tuple[StepView, ...]
    worker: str = ""  #: ``""`` for the ranks of a training run, else the worker that trains separately.
    observed: tuple[Observation, ...] = ()  #: Observations of the evaluator since the step before.
    streams: tuple[StreamRows, ...] = ()  #: See :attr:`StepView.streams`.

    @property
    def by_model(self) -> tuple[JointStep, ...]:
        """The step of each model that it belongs to, by number."""
        return self._parts or (self,)

    @cached_property
    def _parts(self) -> tuple[JointStep, ...]:
        """The same where there are several models, else (): a step that held itself would live on with its views."""
        models = sorted({view.model for view in self.views})
        if len(models) <= 1:
            return ()
        return tuple(replace(self, views=tuple(v for v in self.views if v.model == m)) for m in models)

    def showing(self, streams: tuple[StreamRows, ...]) -> JointStep:
        """The same step with the recent rows of streams."""
        return replace(self, views=tuple(replace(v, streams=streams) for v in self.views), streams=streams)

    @property
    def first(self) -> StepView:
        """The view of the lowest rank that took part in the step."""
        return self.views[0]

    @property
    def run_id(self) -> str:
        """Identifier of the run."""
        return self.first.run_id

    @property
    def attempt(self) -> int:
        """Attempt of the run."""
        return self.first.attempt

    @property
    def order(self) -> tuple[int, int, int]:
        """:attr:`StepEnd.order`, the same for all workers."""
        return self.first.order

    @property
    def mode(self) -> Mode:
        """TRAIN, EVAL or PREDICT."""
        return self.first.mode

    @property
    def mode_step(self) -> int:
        """Number of the step among those of its mode."""
        return self.first.mode_step

    @property
    def global_step(self) -> int:
        """Number of the step among all of the first worker."""
        return self.first.global_step

    @property
    def model(self) -> int:
        """Number of the model, 0 for the first or only one."""
        return self.first.model

    def observations(self, kind: str | None = None) -> list[Observation]:
        """Observations of the evaluator since the step before: ``"worker_lost"``, ``"worker_returned"``."""
        return [seen for seen in self.observed if kind is None or seen.kind == kind]

    def __repr__(self) -> str:
        return f"JointStep({self.mode.name} step {self.mode_step} of {len(self.views)} views)"


@dataclass(frozen=True, kw_only=True)
class Between:
    """A moment between two steps; abstract.

    Attributes:
        run_id: Identifier of the run.
        attempt: Attempt of the run.
        worker: ``""`` for the ranks of a training run, else the worker that trains separately.
        last: The step that this instance of a rule saw last, a :class:`StepView` or a :class:`JointStep`; None before
            the first. An instance that sees all windows of an attempt has the newest step of any worker.
        number: How many of its kind this instance saw before.
    """

    run_id: str
    attempt: int
    worker: str = ""
    last: StepView | JointStep | None = None
    number: int = 0

    @property
    def order(self) -> tuple[int, int, int]:
        """:attr:`StepEnd.order` of the last step."""
        return _NO_STEP if self.last is None else self.last.order


@dataclass(frozen=True, kw_only=True)
class Tick(Between):
    """No step was completed for a while, although some worker may still end one."""

    #: For each worker that is waited for, the seconds since its last complete step was read; before its first step,
    #: since it was first seen.
    seconds: Mapping[str, float] = field(default_factory=dict)
    living: frozenset[str] = frozenset()  #: Workers whose process is known to live.
    #: Latest stacks of workers, where they came since their last step and no tick before has shown them.
    stacks: Mapping[str, facts.Stacks] = field(default_factory=dict)

    @property
    def silent_s(self) -> float:
        """Seconds since the last complete step of the worker that is waited for the longest."""
        return max(self.seconds.values(), default=0.0)


@dataclass(frozen=True, kw_only=True)
class Window(Between, StreamRows):
    """A stretch of time, with the rows that a stream wrote in it."""


@dataclass(frozen=True)
class Written:
    """The rows of a stream since the last watermark that was shown. Windows are cut from them."""

    attempt: int  #: Attempt of the run.
    stream: str  #: Name of the stream.
    clock: int  #: See :attr:`Window.clock`.
    until_ns: int  #: The watermark: all earlier rows were shown.
    rows: Mapping[str, NDArray[Any]] = field(default_factory=dict)  #: The rows by kind, unordered.
    lost: bool = False  #: Whether the stream has ended by this clock.


@dataclass(frozen=True)
class AttemptEnd:
    """An attempt has ended; the run with it where ``attempt`` is None."""

    attempt: int | None = None


#: One place in the sequence that rules are shown.
Moment = JointStep | Written | Observation | AttemptEnd
