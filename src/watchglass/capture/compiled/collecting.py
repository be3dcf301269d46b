"""What the trace of a compiled step collects: values, each with what it is, under a key that any trace gives it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from watchglass.capture.module_places import NOWHERE, ParameterPlace, Place
from watchglass.records import facts


class ValuePart(str, Enum):
    """The part that a value plays in a step."""

    LOSS = "loss"  #: The objective of an update, a number.
    EVALUATED = "evaluated"  #: The value of a loss function, a number: the loss of an evaluation.
    METRIC = "metric"  #: Another number.
    GRADIENT = "gradient"  #: A gradient as the optimizer gets it.
    BEFORE = "before"  #: A parameter before the update.
    AFTER = "after"  #: The same after it.
    STATE = "state"  #: A variable of an optimizer after the update.
    MOMENT = "moment"  #: The second moment of a parameter after it, by whose root an adaptive optimizer divides.
    RATE = "rate"  #: The learning rate of the update, a number.
    UPDATES = "updates"  #: How many updates there were after it, a number, if moments are corrected for their start.
    SCALE = "scale"  #: The factor of loss scaling, a number.
    CLIPPED = "clipped"  #: The norm of gradients that the script clips, before it does, a number.
    BATCH = "batch"  #: A tensor that the model takes, named by its place in the arguments, ``"0"``, ``"image"``.
    INPUT = "input"  #: What a module takes.
    OUTPUT = "output"  #: What a module returns.
    PREDICTIONS = "predictions"  #: What a loss function judges, see :class:`ObservedLoss`.
    LABELS = "labels"  #: What it compares them with.
    ATTENTION = "attention"  #: Of a call of attention, the share of positions that see the next one, a number.
    MEAN = "mean"  #: The moving average of the mean after the step, of a module that normalises.
    VARIANCE = "variance"  #: The same of the variance.
    CUSTOM = "custom"  #: What a script saves.


@dataclass(frozen=True)
class ObservedLoss:
    """A call of a loss function. Its predictions and labels are collected under its number, as the parts of that name.

    Attributes:
        function: The word of its kind, one of :data:`~watchglass.records.LOSSES`. A loss that takes probabilities of
            classes is ``nll_loss``, with their logarithms collected.
        predictions: Shape of the predictions as the script gave them; classes are the last axis.
        labels: Shape of the labels, a class or shares of all classes.
        dtypes: Names of the dtypes of both.
        number: Number of the call in its step, from 1.
        by_class: Whether the collected predictions are rows of classes, ``[rows, classes]``, logits or logarithms of
            probabilities, and the labels one class for each row, or shares of the shape of the predictions.
        reduction: ``"mean"``, ``"sum"``, ``"none"``, or None where it is not known.
        operation: The last operation that made the collected predictions, ``"softmax"``; None where it is not known.
        normalized_over: If that is a softmax, the size of the axis over which its values add up to one.
        result: Shape of what it returned.
        ignored: The class that counts as none.
        smoothing: Share of each label that goes to all classes.
        weighted: Whether classes or samples have weights.
    """

    function: str
    predictions: tuple[int, ...]
    labels: tuple[int, ...]
    dtypes: tuple[str, str] = ("", "")
    number: int = 1
    by_class: bool = False
    reduction: str | None = None
    operation: str | None = None
    normalized_over: int | None = None
    result: tuple[int, ...] = ()
    ignored: int | None = None
    smoothing: float = 0.0
    weighted: bool = False


@dataclass(frozen=True)
class Updater:
    """What updates the parameters of a model.

    Attributes:
        type: Its type, ``"Adam"``.
        groups: Settings of its groups; a learning rate that is collected counts for the first one.
        group_of: Group of a parameter by its name; 0 for those that are not named.
        skips: Whether it leaves out an update whose gradients are not finite, as loss scaling does.
        clips: How the gradients are clipped that are collected as those that it gets.
    """

    type: str
    groups: tuple[facts.UpdateGroup, ...] = (facts.UpdateGroup(),)
    group_of: Mapping[str, int] = field(default_factory=dict)
    skips: bool = False
    clips: tuple[facts.Clip, ...] = ()


@dataclass(frozen=True)
class Collected:
    """What a collected value is.

    Attributes:
        part: Its part in the step.
        name: Its name without a prefix: of a parameter ``fc1.kernel``, of an output or input its path inside what the
            module returns or takes, "" for a single one; of predictions ``prediction``, of labels ``label``, of a
            second loss ``prediction_2``; of a number its name.
        place: The module that it belongs to.
        parameter: Of gradients and parameters, the parameter.
        model: Number of its model.
        tags: Its tags from structure.
        call: Of predictions and labels, the call of the loss function.
        attention: Of attention, the call.
        clip: Of the norm of gradients that are clipped, how.
        normalization: Of moving averages, what is known of their module; None where the mode of the step says it.
    """

    part: ValuePart
    name: str
    place: Place = NOWHERE
    parameter: ParameterPlace | None = None
    model: int = 0
    tags: tuple[str, ...] = ()
    call: ObservedLoss | None = None
    attention: facts.SeenByAttention | None = None
    clip: facts.Clip | None = None
    normalization: facts.NormalizationState | None = None


#: Values by key.
Values = dict[str, Any]


class Collector:
    """Collects values while functions are traced. For the training thread.

    A frame belongs to one trace. A transformation inside a trace, such as a derivative, opens an inner frame,
    returns its values as further results, and the outer frame absorbs what these have become.

    A key means the same in all traces: functions that are traced once are called in any order.

    Attributes:
        known: What the value of a key is, in all traces so far.
    """

    def __init__(self) -> None:
        self.known: dict[str, Collected] = {}
        self._keys: dict[Collected, list[str]] = {}
        self._alike: Counter[str] = Counter()
        self._frames: list[Values] = []

    @property
    def active(self) -> bool:
        """Whether a frame is open."""
        return bool(self._frames)

    @property
    def depth(self) -> int:
        """How many frames are open."""
        return len(self._frames)

    @property
    def open(self) -> Values:
        """The values of the innermost frame so far; one must be open."""
        return self._frames[-1]

    @contextmanager
    def frame(self) -> Iterator[Values]:
        """A frame that is open inside, with the values that it gets."""
        values: Values = {}
        self._frames.append(values)
        try:
            yield values
        finally:
            self._frames.pop()

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Nothing is collected inside."""
        frames, self._frames = self._frames, []
        try:
            yield
        finally:
            self._frames = frames

    def add(self, what: Collected, value: Any, values: Values | None = None) -> str:
        """Add a value to these, by default to the open frame; returns its key.

        Its key has a number if there is such a value already, or another meaning has the same name.
        """
        if values is None:
            values = self._frames[-1]
        keys = self._keys.setdefault(what, [])
        key = next((each for each in keys if each not in values), None) or self._new_key(what)
        values[key] = value
        return key

    def tag(self, key: str, tag: str) -> bool:
        """A value has this tag from structure, too, as its trace has shown; returns whether that is new."""
        what = self.known[key]
        if tag in what.tags:
            return False
        self.known[key] = replace(what, tags=(*what.tags, tag))
        return True

    def _new_key(self, what: Collected) -> str:
        path = what.place.path if what.parameter is None else ""
        key = "/".join(filter(None, (what.part.value, path, what.name)))
        self._alike[key] += 1
        if self._alike[key] > 1:
            key = f"{key}#{self._alike[key]}"
        self._keys[what].append(key)
        self.known[key] = what
        return key

    def absorb(self, values: Mapping[str, Any]) -> None:
        """Add the values of an inner frame, as they have come out of its transformation."""
        for key, value in values.items():
            self.add(self.known[key], value)
