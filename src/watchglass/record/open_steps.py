"""Records of steps while they are open. :mod:`watchglass.record.step_clock` decides which step a record belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from watchglass.records import Fact, GivenUp, Mode, Reduction, Role, UnitKind
from watchglass.store import RawTensor, is_absent


class Readback(Protocol):
    """Numbers that a device has not delivered yet."""

    def resolve(self) -> Any:
        """The numbers as a NumPy float64 array; waits for the device. Called on the recorder's thread."""


def no_rows_lost() -> dict[str, int]:
    """A count of zero for each sort of rows that may be given up."""
    return {each.name.lower(): 0 for each in GivenUp if each is not GivenUp.NEVER}


class Captured(NamedTuple):
    """Statistics of some tensors, read together.

    Attributes:
        ids: Tensor ids, n of them.
        values: Rows of statistics, float64[n, statistics], or a :class:`Readback` of them.
        sampled: Whether the rows are of a fixed sample of the tensors' elements.
        histograms: A :class:`~watchglass.stats.Histograms` of n rows, a :class:`Readback` of one, or None.
    """

    ids: list[int]
    values: Any
    sampled: bool = False
    histograms: Any = None


@dataclass(slots=True)
class CapturedRecords:
    """The captures of one step or one forward, in order.

    Attributes:
        scalars: ``(tensor_id, weight, value)``; values of one tensor are averaged by weight. A value may be a
            :class:`Readback` of one number.
        statistics: What was read of tensors; rows of one tensor (micro-batches, calls) are merged in this order.
        reductions: ``(tensor_id, reduction, value)``: exact numbers that were requested.
        units: ``(tensor_id, kind, flags)`` with one boolean per unit, or a :class:`Readback` of them.
        facts: ``(kind, source, data)``; data may be a :class:`Readback` of them, or of None for no fact after all.
        raw: Tensors to be kept whole.
        series: ``(name, role, weight, value)``: scalars of the model that the step turns out to belong to.
        if_evaluated: As ``series``, recorded if the step turns out to be an evaluation, which they do not show.
        saved: As ``scalars``, by the script: they count instead of what is recorded of the same tensors.
        phases: Nanoseconds by :class:`~watchglass.records.StepPhase`; several of a step are added up.
        pauses: ``(pause, nanoseconds)``, each a part of the time of the phases.
        loads: ``(loader, loader_worker, batches, fetch_ns, collate_ns, queued_ns, transfer_ns)``, see
            :class:`~watchglass.records.LoaderBatches`; ``fetch_ns`` is -1 where it is unknown.
    """

    scalars: list[tuple[int, float, Any]] = field(default_factory=list)
    statistics: list[Captured] = field(default_factory=list)
    reductions: list[tuple[int, Reduction, float]] = field(default_factory=list)
    units: list[tuple[int, UnitKind, Any]] = field(default_factory=list)
    facts: list[tuple[str, str, Any]] = field(default_factory=list)
    raw: list[RawTensor] = field(default_factory=list)
    series: list[tuple[str, Role, float, Any]] = field(default_factory=list)
    if_evaluated: list[tuple[str, Role, float, Any]] = field(default_factory=list)
    saved: list[tuple[int, float, Any]] = field(default_factory=list)
    phases: list[tuple[int, ...]] = field(default_factory=list)
    pauses: list[tuple[int, int]] = field(default_factory=list)
    loads: list[tuple[int, ...]] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        """Whether nothing was captured."""
        return not (
            self.scalars or self.saved or self.facts or self.statistics or self.raw
            or self.reductions or self.units or self.series or self.phases or self.pauses or self.loads
        )  # fmt: skip

    def take_saved(self) -> None:
        """Let the numbers that the script saved count instead of those that were recorded."""
        if self.saved:
            by_script = {row[0] for row in self.saved}
            self.scalars = [row for row in self.scalars if row[0] not in by_script] + self.saved
            self.saved = []

    def forget_tensors(self) -> None:
        """Leave out what was captured of tensors."""
        self.statistics, self.reductions, self.units, self.raw = [], [], [], []

    def absorb(self, other: CapturedRecords) -> None:
        """Append everything of another."""
        self.scalars += other.scalars
        self.saved += other.saved
        self.facts += other.facts
        self.series += other.series
        self.phases += other.phases
        self.pauses += other.pauses
        self.loads += other.loads
        if other.statistics or other.units or other.raw or other.reductions:
            self.statistics += other.statistics
            self.reductions += other.reductions
            self.units += other.units
            self.raw += other.raw


class Forward:
    """One outermost forward call, until it is known whether a backward ran through it.

    Attributes:
        start_ns: Worker's monotonic clock when it began.
        training: Whether the model was in training mode.
        grad: Whether gradients can flow through it.
        backpropagated: Whether a backward ran through it.
        weight: What its loss counts when losses are averaged: samples.
        helps: Whether it is a call without gradients that is a part of a TRAIN step of other models.
        has_loss: Whether its loss as an evaluation is among the records, which it may share with others.
        has_accuracy: The same of its accuracy.
        if_evaluated: Of its model's series, what is recorded should it turn out to be an evaluation.
        marked: Whether the adapter will see it when a backward runs through this forward; else any backward counts.
        state: The adapter's data for a re-run of this forward, dropped at the update.
        model: Number of the model that was called.
        output: Where there are several models, a weak reference to what the model returned.
    """

    __slots__ = (
        "_records", "backpropagated", "grad", "has_accuracy", "has_loss", "helps", "if_evaluated", "marked", "model",
        "output", "start_ns", "state", "training", "weight",
    )  # fmt: skip

    def __init__(self, start_ns: int, training: bool, model: int = 0, *, grad: bool = True) -> None:
        self.start_ns = start_ns
        self.training = training
        self.grad = grad
        self.backpropagated = False
        self.weight = 1.0
        self._records: CapturedRecords | None = None
        self.helps = False
        self.has_loss = self.has_accuracy = False
        self.if_evaluated: Sequence[tuple[str, Role, float, Any]] = ()
        self.marked = True
        self.state: Any = None
        self.model = model
        self.output: Any = None

    @property
    def records(self) -> CapturedRecords:
        """What was captured in it."""
        if self._records is None:
            # Most forwards have none, and a step may have hundreds of them, as in reinforcement learning: a dozen lists
            # for each of them would also set off garbage collections.
            self._records = CapturedRecords()
        return self._records

    @records.setter
    def records(self, records: CapturedRecords) -> None:
        self._records = records

    @property
    def has_records(self) -> bool:
        """Whether there may be anything in :attr:`records`."""
        return self._records is not None

    def awaits(self, updated: set[int]) -> bool:
        """Whether a later step may train on it: its model was not updated, and what it returned is kept."""
        return self.output is not None and self.model not in updated and self.output() is not None


class SteadyRow(NamedTuple):
    """A TRAIN step of which only these are known, as most steps of a run.

    Attributes:
        global_step: As in :class:`~watchglass.records.StepEnd`.
        mode_step: Also its ``train_step``.
        start_ns: Worker's monotonic clock when it began.
        end_ns: The same when it ended.
        loss: The loss, a float or a :class:`Readback` of one; :data:`~watchglass.store.ABSENT` where it is not known.
        learning_rate: The one optimizer's learning rate; the same where it is not known, or the script updates.
        weight: What the loss counts when it is averaged: samples.
        data_ns: Time of a :class:`~watchglass.records.StepPhase`, and so on; all 0 where phases are not recorded.
    """

    global_step: int
    mode_step: int
    start_ns: int
    end_ns: int
    loss: Any
    learning_rate: float
    weight: float
    data_ns: int = 0
    prepare_ns: int = 0
    copy_ns: int = 0
    forward_ns: int = 0
    backward_ns: int = 0
    update_ns: int = 0
    other_ns: int = 0

    def scalars(self, loss_id: int, rate_id: int) -> list[tuple[int, float, Any]]:
        """Loss and learning rate, as :class:`CapturedRecords` has them."""
        loss = [] if type(self.loss) is float and is_absent(self.loss) else [(loss_id, self.weight, self.loss)]
        rate = [] if is_absent(self.learning_rate) else [(rate_id, 1.0, self.learning_rate)]
        return [*loss, *rate]

    def opened(self, records: CapturedRecords) -> OpenStep:
        """The same as a step with records."""
        phases = (
            self.data_ns, self.prepare_ns, self.copy_ns, self.forward_ns, self.backward_ns, self.update_ns,
            self.other_ns,
        )  # fmt: skip
        if any(phases):
            records.phases.append(phases)
        return OpenStep(
            self.global_step, Mode.TRAIN, self.mode_step, self.mode_step, self.start_ns,
            updated=True, end_ns=self.end_ns, records=records,
        )  # fmt: skip


@dataclass(slots=True)
class OpenStep:
    """A step with its records, from its first event until the recorder has written it.

    Attributes:
        global_step: As in :class:`~watchglass.records.StepEnd`.
        mode: The same.
        mode_step: The same.
        train_step: The same.
        start_ns: Worker's monotonic clock when it began.
        due: Whether statistics are to be captured at it.
        updated: Whether an optimizer has changed parameters in it.
        by_hand: Whether it lasts until the script ends it, or the loop that drives.
        paused: Whether it was due, and is not until its update, because no backward runs through its many forwards.
        model: Number of the model that it trains or evaluates.
        queued_bytes: Its size in the recorder's queue in addition to its raw tensors.
        queued_raw_bytes: What its raw tensors count there.
        end_ns: The same clock when it ended; 0 while it is open.
        optimizers: Numbers of the optimizers that have stepped in it.
        models: Which of several models it has updated.
        helpers: Of a TRAIN step, the models that were called without gradients ahead of it to help with it; None for
            one of whose call there are records.
        forwards: Its forwards, in order; empty once it is closed.
        records: What was captured at it.
    """

    global_step: int
    mode: Mode
    mode_step: int
    train_step: int
    start_ns: int
    due: bool = False
    updated: bool = False
    by_hand: bool = False
    paused: bool = False
    model: int = 0
    queued_bytes: int = 0
    queued_raw_bytes: int = 0
    end_ns: int = 0
    optimizers: set[int] = field(default_factory=set)
    models: set[int] = field(default_factory=set)
    helpers: tuple[int | None, ...] = ()
    forwards: list[Forward] = field(default_factory=list)
    records: CapturedRecords = field(default_factory=CapturedRecords)

    @property
    def is_plain(self) -> bool:
        """Whether nothing was captured at it but times."""
        records = self.records
        return not (self.due or records.series or records.facts or records.scalars or records.saved)

    def unpause(self) -> None:
        """Capture it again, if that was paused."""
        if self.paused:
            self.due, self.paused = True, False

    def move(self, updates: int) -> None:
        """So many more updates were made before it than was known when it opened."""
        self.train_step += updates
        if self.mode is Mode.TRAIN:
            self.mode_step += updates

    def facts(self) -> list[Fact]:
        """The facts of this step as records."""
        found = self.records.facts
        rows = [(kind, source, data.resolve() if hasattr(data, "resolve") else data) for kind, source, data in found]
        return [Fact(kind, self.global_step, source, data) for kind, source, data in rows if data is not None]
