"""Records of steps while they are open. :mod:`watchglass.record.step_clock` decides which step a record belongs to."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from watchglass.record.deferred_facts import DeferredFact
from watchglass.records import FACTS, SCALARS, DeclaredFact, GivenUp, Mode, Role, RowKind


class Readback(Protocol):
    """Numbers that a device has not delivered yet."""

    def resolve(self) -> Any:
        """The numbers as a NumPy float64 array; waits for the device. Called on the recorder's thread."""


def no_rows_lost() -> dict[str, int]:
    """A count of zero for each sort of rows that may be given up."""
    return {each.name.lower(): 0 for each in GivenUp if each is not GivenUp.NEVER}


class Captured(NamedTuple):
    """Statistics of some tensors, read together: what is recorded in place of rows of a kind with such an encoding."""

    ids: list[int]  #: Tensor ids, n of them.
    values: Any  #: Rows of statistics, float64[n, statistics], or a :class:`Readback` of them.
    sampled: bool = False  #: Whether the rows are of a fixed sample of the tensors' elements.
    histograms: Any = None  #: A :class:`~watchglass.stats.Histograms` of n rows, a :class:`Readback` of one, or None.


@dataclass(slots=True)
class CapturedRecords:
    """The captures of one step or one forward, in order."""

    #: By kind, the values of the fields that the kind declares. The last value may be a :class:`Readback`; if it
    #: resolves to None, the row is left out. Statistics are :class:`Captured`, and kinds that are written to files hold
    #: the tensors. Rows of a step with the same key are joined as their kind declares.
    rows: defaultdict[RowKind, list[Any]] = field(default_factory=lambda: defaultdict(list))
    #: ``(name, role, weight, value)``: scalars of the model that the step turns out to belong to.
    series: list[tuple[str, Role, float, Any]] = field(default_factory=list)
    #: As ``series``, recorded if the step turns out to be an evaluation, which they do not show.
    if_evaluated: list[tuple[str, Role, float, Any]] = field(default_factory=list)
    #: Rows by the script; its numbers count instead of what is recorded of the same tensors.
    saved: dict[RowKind, list[Any]] = field(default_factory=dict)

    @property
    def facts(self) -> list[Any]:
        """Rows of facts, as :meth:`add_fact` records them."""
        return self.rows[FACTS]

    @property
    def is_empty(self) -> bool:
        """Whether nothing was captured."""
        return not (self.saved or self.series or (self.rows and any(self.rows.values())))

    def add_fact(self, fact: DeclaredFact | DeferredFact[Any], source: str) -> None:
        """Record a fact of the step; ``source`` is what observed it."""
        self.facts.append((fact.KIND, source, fact))

    def take_saved(self) -> None:
        """Add what the script saved; its numbers count instead of those that were recorded."""
        for kind, rows in self.saved.items():
            recorded = self.rows[kind]
            if kind is SCALARS:
                by_script = {row[0] for row in rows}
                recorded = [row for row in recorded if row[0] not in by_script]
            self.rows[kind] = recorded + rows
        self.saved = {}

    def give_up(self, most: GivenUp) -> Counter[GivenUp]:
        """Leave out all rows that are given up first, up to this order; returns how many they were."""
        lost: Counter[GivenUp] = Counter()
        for kind in [kind for kind in self.rows if kind.given_up <= most]:
            rows = self.rows.pop(kind)
            lost[kind.given_up] += sum(len(each.ids) if isinstance(each, Captured) else 1 for each in rows)
        return lost

    def absorb(self, other: CapturedRecords) -> None:
        """Append everything of another."""
        for kind, rows in other.saved.items():
            self.saved.setdefault(kind, []).extend(rows)
        self.series += other.series
        for kind, rows in other.rows.items():
            self.rows[kind] += rows


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


@dataclass(slots=True)
class OpenStep:
    """A step with its records, from its first event until the recorder has written it."""

    global_step: int  #: As in :class:`~watchglass.records.StepEnd`.
    mode: Mode  #: The same.
    mode_step: int  #: The same.
    train_step: int  #: The same.
    start_ns: int  #: Worker's monotonic clock when it began.
    due: bool = False  #: Whether statistics are to be captured at it.
    updated: bool = False  #: Whether an optimizer has changed parameters in it.
    by_hand: bool = False  #: Whether it lasts until the script ends it, or the loop that drives.
    #: Whether it was due, and is not until its update, because no backward runs through its many forwards.
    paused: bool = False
    model: int = 0  #: Number of the model that it trains or evaluates.
    queued_bytes: int = 0  #: Its size in the recorder's queue in addition to its raw tensors.
    queued_raw_bytes: int = 0  #: What its raw tensors count there.
    end_ns: int = 0  #: The same clock when it ended; 0 while it is open.
    optimizers: set[int] = field(default_factory=set)  #: Numbers of the optimizers that have stepped in it.
    models: set[int] = field(default_factory=set)  #: Which of several models it has updated.
    #: Of a TRAIN step, the models that were called without gradients ahead of it to help with it; None for one of whose
    #: call there are records.
    helpers: tuple[int | None, ...] = ()
    forwards: list[Forward] = field(default_factory=list)  #: Its forwards, in order; empty once it is closed.
    records: CapturedRecords = field(default_factory=CapturedRecords)  #: What was captured at it.

    @property
    def is_plain(self) -> bool:
        """Whether nothing was captured at it but times."""
        records = self.records
        others = any(rows and not kind.of_steps for kind, rows in records.rows.items())
        return not (self.due or records.series or records.saved or others)

    def unpause(self) -> None:
        """Capture it again, if that was paused."""
        if self.paused:
            self.due, self.paused = True, False

    def move(self, updates: int) -> None:
        """So many more updates were made before it than was known when it opened."""
        self.train_step += updates
        if self.mode is Mode.TRAIN:
            self.mode_step += updates
