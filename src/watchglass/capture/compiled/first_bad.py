"""The first value of a compiled step that is not finite.

The twin of a step returns the values of all modules, so a step that was captured is its own search. If a loss is not
finite at a step of which nothing was captured, the next steps are collected, whether anything is due at them or not.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from watchglass.capture.arrays import DeferredNumbers
from watchglass.capture.compiled.collecting import Collected, Updater, ValuePart
from watchglass.capture.compiled.reading import is_floating, whole
from watchglass.capture.compiled.reductions import Reduced
from watchglass.capture.facts import first_bad
from watchglass.capture.facts.first_bad import Call, Found, Look, Seen
from watchglass.capture.port import Port
from watchglass.record import DeferredFact, OpenStep
from watchglass.records import Mode, facts

#: Values by key, in the order in which they were made, each with what it is.
Ordered = Mapping[str, tuple[Collected, Any]]


@dataclass(slots=True, eq=False)
class CollectedStep:
    """What was collected of a step.

    Attributes:
        values: The values.
        updaters: What updates each model, by its number.
        bad_gradients: Names of parameters with gradients that are not finite, in order of the model; for the
            recorder's thread. Empty where such an update is skipped.
        after_failure: Whether it is one of the next steps after a failure.
    """

    values: Ordered
    updaters: Mapping[int, Updater]
    bad_gradients: list[Callable[[], Sequence[str]]] = field(default_factory=list)
    after_failure: bool = False


class AwaitedLoss:
    """The loss of a step of which nothing was collected, for the recorder's thread.

    Args:
        loss: The loss, an array of one element or a readback.
        look: Gets it and gives it back when it has come.
    """

    __slots__ = ("_look", "_loss")
    nbytes = 0

    def __init__(self, loss: Any, look: Callable[[float], float]) -> None:
        self._loss, self._look = loss, look

    def resolve(self) -> float:
        """The loss; waits for it."""
        loss = self._loss
        return self._look(float(loss.resolve() if hasattr(loss, "resolve") else np.asarray(loss).item()))


class FirstBadValue:
    """Searches once per run, at the first sign of a value that is not finite. For the training thread.

    Args:
        port: Gets the facts.
        source: The source of facts.
    """

    def __init__(self, port: Port, source: str = "loss") -> None:
        self._port, self._source = port, source
        self._collected: CollectedStep | None = None
        self._armed = False
        self._left = port.limits.next_steps
        #: Whether steps are to be collected at which nothing is due. Also set by the recorder's thread.
        self.alarmed = False
        # Set by the recorder's thread.
        self._answered = False

    def collects(self, step: OpenStep) -> bool:
        """Whether a step that begins is to be collected, although nothing is due at it."""
        if not self.alarmed or step.mode is not Mode.TRAIN:
            return False
        if self._answered or self._left <= 0:
            self.alarmed = False
            return False
        if not self._armed:
            self._armed = True
            # So that a rule about time knows who makes these steps slow.
            step.records.add_fact(facts.ModulesExamined(self._left), "next steps")
        self._left -= 1
        return True

    def collected(self, step: CollectedStep) -> None:
        """The values of the open TRAIN step have come."""
        step.after_failure = self._armed
        self._collected = None if self._answered else step

    def dropped(self) -> None:
        """The open step is none."""
        self._collected = None

    def watched(self, loss: Any) -> Any:
        """The loss of a step of which nothing was collected, as a float or a readback.

        Args:
            loss: A float, a readback, or an array of one element that NumPy reads.
        """
        return self.looked(loss) if type(loss) is float else AwaitedLoss(loss, self.looked)

    def ended(self, step: OpenStep, loss: Any) -> Any:
        """A TRAIN step ends, with this loss; gives it back."""
        collected, self._collected = self._collected, None
        if self._answered or collected is None:
            return self.watched(loss)
        if type(loss) is float:
            # All is on the host, and arrays of some frameworks may be overwritten by the next step.
            if not math.isfinite(loss):
                step.records.add_fact(facts.NonfiniteLoss(str(loss)), self._source)
                self._port.flush()
            found = self._find(step.mode_step, collected, lambda: loss)
            if found is not None:
                step.records.add_fact(found, self._source)
        elif hasattr(loss, "resolve"):
            numbers = functools.cache(lambda: float(loss.resolve()))
            step.records.add_fact(DeferredFact(facts.NonfiniteLoss, lambda: _failed(numbers())), self._source)
            find = functools.partial(self._find, step.mode_step, collected, numbers)
            step.records.add_fact(DeferredFact(facts.FirstBadPlace, find), self._source)
            return DeferredNumbers(numbers, getattr(loss, "nbytes", 0))
        return loss

    def looked(self, loss: float) -> float:
        """Look at a loss that has come; gives it back."""
        if loss - loss != 0.0 and not self._answered:  # NaN for what is not finite
            self.alarmed = True
        return loss

    def _find(self, number: int, collected: CollectedStep, loss: Callable[[], float]) -> facts.FirstBadPlace | None:
        """The fact about a step, None where all is finite; waits for devices."""
        if self._answered:
            return None
        values = _Values(collected.values)
        if not math.isfinite(loss()):
            found, more = self._poisoned(number, values, collected) or (values.of_loss(), {})
        else:
            bad = [name for names in collected.bad_gradients for name in names()]
            if not bad:
                return None
            found, more = self._poisoned(number, values, collected) or (values.of_gradients(bad), {})
        self._answered = True
        # The training thread may be further by now.
        level, step = ("next_steps", number) if collected.after_failure else ("step", None)
        return found.fact(level, step=step, **more)

    def _poisoned(self, number: int, values: _Values, collected: CollectedStep) -> tuple[Found, dict[str, Any]] | None:
        """A weight that was not finite when the step began; None where all were."""
        for what, value in values.of(ValuePart.BEFORE):
            place = what.parameter
            if place is None or look_at(value).finite:
                continue
            updater, last = collected.updaters.get(what.model), number - 1
            writer = updater.type if updater is not None else ""
            more = {"optimizer": writer, "updated_at": last} if writer and last >= 0 else {}
            if collected.after_failure:
                return first_bad.before_step(place, number, writer, last), more
            return first_bad.before_forward(place, writer, last), more
        return None


class _Values:
    """The values of a step, for the recorder's thread."""

    def __init__(self, values: Ordered) -> None:
        self._values = values

    def of(self, *parts: ValuePart) -> list[tuple[Collected, Any]]:
        """Values of these parts that hold floats, in order."""
        return [pair for pair in self._values.values() if pair[0].part in parts and is_floating(pair[1])]

    def of_loss(self) -> Found:
        """Why the loss is not finite."""
        for what, value in self.of(ValuePart.BATCH):
            if look_at(value).bad:
                if what.place.module_type:
                    return first_bad.in_data(what.place, what.name)
                return Found("input", None, what.name, "the data given to the model is not finite")
        seen = seen_of(self._values)
        judged = [(what, look_at(value)) for what, value in self.of(ValuePart.PREDICTIONS)]
        function = next((what.call.function for what, _ in judged if what.call is not None), "")
        finite = bool(judged) and all(look.finite for _, look in judged)
        found = first_bad.of_loss([seen], function, chained=finite)
        if found.where != "loss":
            return found
        for what, value in self.of(ValuePart.LABELS):
            if not look_at(value).finite:
                given = what.call.function if what.call is not None else "the loss"
                return Found("input", None, what.name, f"the labels given to {given} are not finite")
        bad = next((what for what, look in judged if not look.finite), None)
        if bad is not None:
            # Between the last module that was seen and the loss function, if any was seen.
            sentence = f"the predictions given to {function or 'the loss'} are not finite"
            whole = f"all modules are finite, {sentence}" if seen.calls else sentence
            return Found("loss", None, bad.name, whole)
        if not seen.calls:
            largest = f" (largest magnitude {max(look.magnitude for _, look in judged):.3g})" if judged else ""
            given = f"the predictions are finite{largest}, " if judged else "weights and batch are finite, "
            return Found(
                "loss", None, "loss", f"{given}{f'the result of {function}' if function else 'the loss'} is not"
            )
        return found

    def of_gradients(self, bad: Sequence[str]) -> Found:
        """The first gradient of these parameters in the order of the backward, which begins at the last layer."""
        places = {what.name: what.place for what, _ in self.of(ValuePart.GRADIENT)}
        return first_bad.last_gradient(bad[-1], places.get(bad[-1]))


def seen_of(values: Ordered) -> Seen:
    """The calls of modules of which inputs or outputs were collected.

    An input counts as seen before the calls inside the module, wherever it was collected: some interceptors collect it
    when the module has returned.
    """
    seen = Seen()
    # By path of the module, and number of the call.
    indices: dict[tuple[str, str], int] = {}
    began: list[int] = []
    ended: list[int] = []
    for at, (key, (what, value)) in enumerate(values.items()):
        if what.part not in (ValuePart.INPUT, ValuePart.OUTPUT) or not is_floating(value):
            continue
        index = indices.setdefault((what.place.path, key.partition("#")[2]), len(seen.calls))
        if index == len(seen.calls):
            seen.calls.append(Call(what.place, -1))
            began.append(at)
            ended.append(at)
        call = seen.calls[index]
        (call.inputs if what.part is ValuePart.INPUT else call.outputs).append((len(seen.looks), what.name))
        seen.looks.append(look_at(value))
        ended[index] = at
    for (path, number), index in indices.items():
        seen.calls[index].parent = _around(path, number, indices)
    events: list[tuple[tuple[int, int, int], tuple[int, bool]]] = []
    for index in range(len(seen.calls)):
        outer = list(first_bad.enclosing(seen, index))
        for each in outer:
            began[each] = min(began[each], began[index])
        events.append(((ended[index], 1, -len(outer)), (index, True)))
    for index, at in enumerate(began):
        events.append(((at, 0, len(list(first_bad.enclosing(seen, index)))), (index, False)))
    seen.events = [event for _, event in sorted(events)]
    return seen


def _around(path: str, number: str, indices: Mapping[tuple[str, str], int]) -> int:
    """The call inside which a call of a module was made, by their paths; -1 for none."""
    while path:
        path = path.rpartition(".")[0]
        for each in (number, ""):
            if (found := indices.get((path, each))) is not None:
                return found
    return -1


def look_at(value: Any) -> Look:
    """The extremes of a value; of one that cannot be read, or is empty, those of zeros. Waits for a device."""
    if isinstance(value, Reduced):
        return value.look()
    elements = whole(value)
    numbers = None if elements is None else elements.numbers()
    if numbers is None or not numbers.size or numbers.dtype.kind != "f":
        return Look(0.0, 0.0)
    with np.errstate(all="ignore"):
        return Look(float(numbers.min()), float(numbers.max()))


def bad_among(gradients: Iterable[tuple[str, Any]]) -> list[str]:
    """Names of those that are not finite, in their order; waits for devices."""
    return [name for name, value in gradients if not look_at(value).finite]


def _failed(loss: float) -> facts.NonfiniteLoss | None:
    return None if math.isfinite(loss) else facts.NonfiniteLoss(str(loss))
