"""The history of one model on one worker: scalar series, stretches, baselines and the latest facts.

:meth:`StepView.after` adds one step at a time, in canonical order, live and in replay alike. A history never depends on
the time at which data arrived.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from watchglass.errors import InvalidValueError
from watchglass.records import DERIVED_FIELDS, SEEN_ROWS, STATISTIC_FIELDS, Fact, Mode, StepEnd, TensorInfo
from watchglass.stats import RollingBaseline, median
from watchglass.tables.seen_batches import seen_block

#: Values of a scalar that a view can look back on. Bounds the evaluator's memory for runs of any length.
SERIES_LIMIT = 4096
#: Last losses of a stage whose median is its level, and how far from it the first loss of the next stage may lie if
#: the task is the same: as a share of it, and in standard deviations (house).
_LEVEL, _SAME_LEVEL, _SAME_SPREADS = 16, 0.5, 4.0
#: Ratio of the standard deviation to the median absolute deviation of a normal distribution.
_SIGMA = 1.4826

#: Two losses are the same where they differ by no more than this, relatively or near zero. A penalty on the weights
#: below this limit changes nothing.
SAME_LOSS, SAME_LOSS_NEAR_ZERO = 0.02, 1e-9

#: Maximum number of pieces into which the batches of an evaluation are divided; even, since a longer evaluation joins
#: its pieces in pairs.
_MOST_PIECES = 1024

#: ("scalar", name) or ("statistic", column, tensor name): a series that the engine keeps a baseline of.
BaselineKey = tuple[str, ...]


@dataclass(frozen=True)
class Stretch:
    """Steps of one mode in a row, with the means of their scalars.

    An EVAL stretch is the evaluation after one TRAIN step; a TRAIN stretch, the steps between two evaluations.
    """

    mode: Mode  #: TRAIN or EVAL.
    train_step: int  #: Last TRAIN step begun before the stretch ended; -1 when there was none.
    first_step: int  #: First mode step of the stretch.
    last_step: int  #: Last mode step of the stretch.
    #: Mean of each scalar over the stretch, weighted by batch size. NaN when any of its values is NaN. Of an evaluation
    #: that has batches of the training data before or after those of other data, the means over the other data. A step
    #: of several short batches that may have both counts for neither.
    means: dict[str, float]
    #: Of such an evaluation, the means over the batches of the training data; else empty.
    training_means: dict[str, float] = field(default_factory=dict)
    #: Of each mean, the share of the steps of the stretch, or of those over other data, that have a value, 0 to 1.
    covered: dict[str, float] = field(default_factory=dict)


class Series:
    """The last values of one scalar, appended in constant time and read as one contiguous slice."""

    def __init__(self, limit: int = SERIES_LIMIT) -> None:
        self._limit = limit
        # Of many models, or names, most have few values.
        self._buffer: npt.NDArray[np.float64] = np.empty(min(64, 2 * limit))
        self._steps: npt.NDArray[np.int64] = np.empty(len(self._buffer), np.int64)
        self._end = 0
        #: Global step of the last value, and this value.
        self.newest = (-1, 0.0)

    def append(self, value: float, step: StepEnd) -> None:
        """Adds the value of a step and forgets the oldest beyond the limit."""
        self.newest = step.global_step, value
        if self._end == 2 * self._limit:
            for buffer in (self._buffer, self._steps):
                buffer[: self._limit] = buffer[self._limit :]
            self._end = self._limit
        elif self._end == len(self._buffer):
            size = min(2 * self._end, 2 * self._limit)
            self._buffer, self._steps = np.resize(self._buffer, size), np.resize(self._steps, size)
        self._buffer[self._end], self._steps[self._end] = value, step.mode_step
        self._end += 1

    def last(self, count: int | None = None) -> npt.NDArray[np.float64]:
        """A copy of the last ``count`` values, oldest first; of all that are kept when None."""
        kept = min(self._end, self._limit)
        wanted = kept if count is None else min(count, kept)
        return np.array(self._buffer[self._end - wanted : self._end])

    @property
    def steps(self) -> npt.NDArray[np.int64]:
        """The steps of all values that are kept, of their mode, oldest first."""
        return np.array(self._steps[self._end - min(self._end, self._limit) : self._end])


@dataclass
class _Piece:
    """Sums over a few steps in a row."""

    #: Whether one of them has several batches, so that it may have data of two sorts.
    joined: bool = False
    rows: float = 0.0
    seen: float = 0.0
    sums: dict[str, float] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)
    steps: int = 0
    #: Steps that have a value, by name.
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, other: _Piece) -> None:
        self.joined |= other.joined
        self.steps += other.steps
        self.counts.update(other.counts)
        self.rows, self.seen = self.rows + other.rows, self.seen + other.seen
        for name, total in other.sums.items():
            self.sums[name] = self.sums.get(name, 0.0) + total
            self.weights[name] = self.weights.get(name, 0.0) + other.weights[name]

    def means(self) -> dict[str, float]:
        return {name: total / self.weights[name] for name, total in self.sums.items()}

    def covered(self) -> dict[str, float]:
        return {name: count / self.steps for name, count in self.counts.items()}


@dataclass
class _OpenStretch:
    mode: Mode
    train_step: int
    first_step: int
    last_step: int
    #: Of an evaluation, as many pieces as it has steps, up to :data:`_MOST_PIECES`; else one.
    pieces: list[_Piece] = field(default_factory=list)
    steps_each: int = 1
    steps: int = 0

    def add(self, step: StepEnd, scalars: Iterable[tuple[TensorInfo, float, float]]) -> None:
        # The first step of an evaluation has one batch, and the number of another is that of its last batch.
        several = step.mode_step > self.last_step + 1
        self.last_step, self.train_step = step.mode_step, step.train_step
        if not self.pieces or (self.mode is Mode.EVAL and self.steps % self.steps_each == 0):
            self.pieces.append(_Piece())
        piece = self.pieces[-1]
        piece.joined |= several
        piece.steps += 1
        named = set()
        for info, weight, value in scalars:
            # A weight of zero means that the batch size is not known; then every step counts alike.
            counted = weight if weight > 0 else 1.0
            if info.name.rpartition("/")[2] == SEEN_ROWS:
                piece.rows, piece.seen = piece.rows + counted, piece.seen + value * counted
                continue
            piece.sums[info.name] = piece.sums.get(info.name, 0.0) + value * counted
            piece.weights[info.name] = piece.weights.get(info.name, 0.0) + counted
            named.add(info.name)
        piece.counts.update(named)
        self.steps += 1
        if len(self.pieces) == _MOST_PIECES:
            self.pieces = [_sum(self.pieces[at : at + 2]) for at in range(0, _MOST_PIECES, 2)]
            self.steps_each *= 2

    def close(self) -> Stretch:
        begin, end = seen_block([each.rows for each in self.pieces], [each.seen for each in self.pieces])
        edge = begin or end
        parts = _apart(self.pieces[:edge], self.pieces[edge:]) if edge else ([], self.pieces)
        training, held_out = (_sum(part) for part in (reversed(parts) if begin else parts))
        return Stretch(
            self.mode, self.train_step, self.first_step, self.last_step,
            held_out.means(), training.means(), held_out.covered(),
        )  # fmt: skip


def _apart(before: list[_Piece], after: list[_Piece]) -> tuple[list[_Piece], list[_Piece]]:
    """Both parts without the pieces next to the edge that may have data of both sorts, unless nothing else is there."""
    if before[-1].joined and len(before) > 1:
        before = before[:-1]
    return before, after[1:] if after[0].joined and len(after) > 1 else after


def _sum(pieces: Iterable[_Piece]) -> _Piece:
    total = _Piece()
    for piece in pieces:
        total.add(piece)
    return total


class StretchTracker:
    """Cuts a worker's steps into stretches. PREDICT steps belong to none and end none."""

    def __init__(self) -> None:
        self._open: _OpenStretch | None = None

    def enter(self, step: StepEnd, scalars: Iterable[tuple[TensorInfo, float, float]]) -> tuple[Stretch, ...]:
        """Adds a step; returns the stretch that ended just before it, if one did."""
        if step.mode not in (Mode.TRAIN, Mode.EVAL):
            return ()
        ended: tuple[Stretch, ...] = ()
        current = self._open
        # Two evaluations with no TRAIN step between them have the same train_step and are one stretch.
        if current is not None and current.mode is not step.mode:
            ended, current = (current.close(),), None
        if current is None:
            current = self._open = _OpenStretch(step.mode, step.train_step, step.mode_step, step.mode_step)
        current.add(step, scalars)
        return ended

    def finish(self) -> tuple[Stretch, ...]:
        """The stretch that ends with the run, if one is open."""
        ended = (self._open.close(),) if self._open is not None else ()
        self._open = None
        return ended


class History:
    """Everything before and including the newest step of one model on one worker that rules may look back on.

    Args:
        facts: The latest facts that are about no model in particular, by kind, which histories of one worker share.
        own: The latest facts about this model.

    Attributes:
        stretches: Cuts its steps into stretches.
        own: Its own steps by mode, counted where the worker has more models.
        others: How far the number of its newest step is beyond that among its own steps, by mode.
        several: Whether the worker has more models.
        in_turns: Whether another model was trained between its own TRAIN steps, or at them.
        stage: Number of the stage of the training, from 0: see :meth:`next_stage`.
        task: The same, without stages whose loss begins where that of the stage before ended.
        left_at: Of such a stage, the level of the losses before and their robust standard deviation; None of others.
    """

    def __init__(self, facts: dict[str, Fact] | None = None, own: dict[str, Fact] | None = None) -> None:
        self.stretches = StretchTracker()
        self.stage = self.task = 0
        self.left_at: tuple[float, float] | None = None
        self.own: dict[Mode, int] = {}
        self.others: dict[Mode, int] = {}
        self.several = self.in_turns = False
        self._facts = facts if facts is not None else {}
        self._series: dict[tuple[Mode, str], Series] = {}
        self._own = own if own is not None else {}
        self._baselines: dict[BaselineKey, RollingBaseline] = {}

    def next_stage(self, loss: float | None) -> History:
        """The history of the next stage, in which other parameters are trained, or another optimizer trains them.

        It shares facts and stretches, and has no series yet: what a loss or a rate was before is no measure of what it
        is now. This history stays as it is.

        Args:
            loss: The first loss of that stage, of the weights with which the one before ended.
        """
        after = History(self._facts, self._own)
        after.stretches, after.own, after.others = self.stretches, self.own, self.others
        after.several, after.in_turns = self.several, self.in_turns
        after.stage, after.task = self.stage + 1, self.task
        losses = self.series(Mode.TRAIN, "loss", _LEVEL)
        losses = losses[np.isfinite(losses)]
        if len(losses) and loss is not None and math.isfinite(loss):
            level = median(losses.tolist())
            spread = _SIGMA * median(np.abs(losses - level).tolist())
            if abs(loss - level) <= max(_SAME_LEVEL * abs(level), _SAME_SPREADS * spread):
                after.left_at = level, spread
            else:
                after.task += 1
        return after

    def add_scalar(self, step: StepEnd, name: str, value: float) -> None:
        """Appends the value of a scalar at a step."""
        series = self._series.get((step.mode, name))
        if series is None:
            series = self._series[(step.mode, name)] = Series()
        series.append(value, step)

    def add_facts(self, facts: Iterable[Fact]) -> None:
        """Remembers the latest fact of each kind; those about a model are about this one."""
        for fact in facts:
            (self._facts if fact.model is None else self._own)[fact.kind] = fact

    def series(self, mode: Mode, name: str, last: int | None = None) -> npt.NDArray[np.float64]:
        """The last values of a scalar in a mode, oldest first; empty when it was never recorded."""
        series = self._series.get((mode, name))
        return series.last(last) if series is not None else np.empty(0)

    def steps(self, mode: Mode, name: str) -> npt.NDArray[np.int64]:
        """The steps of the values of :meth:`series`, in its order."""
        series = self._series.get((mode, name))
        return series.steps if series is not None else np.empty(0, np.int64)

    def newest(self, mode: Mode) -> Iterator[tuple[str, int, float]]:
        """The last value of each scalar in a mode with its global step; scalars in the order of their first steps."""
        return ((name, *series.newest) for (of, name), series in self._series.items() if of is mode)

    def latest_fact(self, kind: str) -> Fact | None:
        """The latest fact of a kind at or before the newest step, one about this model before any other; or None."""
        return self._own.get(kind) or self._facts.get(kind)

    def baseline(self, key: BaselineKey) -> RollingBaseline:
        """The shared baseline of a series before the newest step; asking for it begins it.

        Raises:
            InvalidValueError: A key of another form, or a column that no row of statistics has.
        """
        baseline = self._baselines.get(key)
        if baseline is None:
            _check_key(key)
            baseline = self._baselines[key] = RollingBaseline()
            if key[0] == "scalar":
                for value in self.series(Mode.TRAIN, key[1], baseline.window + 1)[:-1]:
                    baseline.update(float(value))
        return baseline

    @property
    def baseline_keys(self) -> tuple[BaselineKey, ...]:
        """The series that have a baseline."""
        return tuple(self._baselines)


def _check_key(key: BaselineKey) -> None:
    """Refuse a wrong key in the rule that uses it; later it would fail in all rules, with the next step."""
    given: object = key  # a rule is user's code
    texts = isinstance(given, tuple) and all(isinstance(part, str) for part in given)
    if not texts or (key[:1], len(key)) not in ((("scalar",), 2), (("statistic",), 3)):
        raise InvalidValueError(
            f'a baseline needs a key ("scalar", NAME) or ("statistic", COLUMN, TENSOR NAME) but got {key!r}'
        )
    if key[0] == "statistic" and key[1] not in (*STATISTIC_FIELDS, *DERIVED_FIELDS):
        raise InvalidValueError(
            f"the column of a baseline must be one of {', '.join((*STATISTIC_FIELDS, *DERIVED_FIELDS))} but got "
            f"{key[1]!r}"
        )
