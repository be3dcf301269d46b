"""Finds the module that made the first bad value, from the observed module calls. Pure: no tensors, no framework."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from watchglass.capture.module_places import ParameterPlace, Place
from watchglass.records import OperationFault, facts


@dataclass(slots=True, eq=False)
class Look:
    """The smallest and the largest value of a tensor, both NaN where it holds one."""

    low: float = math.nan  #: The smallest.
    high: float = math.nan  #: The largest.
    coming: Any = None  #: Both on their device; None once they are on the host.

    @property
    def bad(self) -> bool:
        """It holds NaN or positive infinity."""
        return not self.high < math.inf

    @property
    def sunk(self) -> bool:
        """It holds negative infinity and is not a mask: a mask holds zeros, too."""
        return self.low == -math.inf and self.high != 0.0

    @property
    def finite(self) -> bool:
        """All its values are finite."""
        return self.low > -math.inf and self.high < math.inf

    @property
    def magnitude(self) -> float:
        """The largest magnitude."""
        return max(abs(self.low), abs(self.high))


@dataclass(slots=True)
class Call:
    """One call of a module."""

    place: Place  #: The module's.
    parent: int  #: Index of the call inside which it was made, -1 for none.
    #: ``(tensor, path)`` of its positional arguments; for the outermost call also of keyword arguments.
    inputs: list[tuple[int, str]] = field(default_factory=list)
    outputs: list[tuple[int, str]] = field(default_factory=list)  #: ``(tensor, path)`` of its outputs.


@dataclass
class Seen:
    """The observed module calls of a forward, and of its backward."""

    calls: list[Call] = field(default_factory=list)  #: The calls, in the order in which they began.
    events: list[tuple[int, bool]] = field(default_factory=list)  #: ``(call, returned)``, in order.
    looks: list[Look] = field(default_factory=list)  #: One for each tensor.
    #: ``(tensor, look)`` of gradients, in the order of the backward.
    gradients: list[tuple[int, Look]] = field(default_factory=list)


class Found(NamedTuple):
    """An answer."""

    where: str  #: ``weights``, ``input``, ``forward``, ``loss`` or ``backward``.
    place: Place | None  #: The module at fault, None where it is none.
    tensor: str  #: Name of the first bad tensor.
    sentence: str  #: The answer in words.
    operation: OperationFault | None = None  #: The operation at fault, None where it is not known.

    def by(self, operation: OperationFault | None) -> Found:
        """This answer with the operation at fault, which comes first in its sentence."""
        if operation is None:
            return self
        return self._replace(operation=operation, sentence=f"{operation.sentence}; {self.sentence}")

    def fact(self, level: str, **more: Any) -> facts.FirstBadPlace:
        """It as a fact."""
        path, module_type = (self.place.path, self.place.module_type) if self.place else ("", "")
        return facts.FirstBadPlace(
            level, self.where, path, module_type, self.tensor, self.sentence, operation=self.operation, **more
        )


def in_forward(seen: Seen) -> Found | None:
    """The first module call that turned finite values into others, None where all are finite.

    A module inside another returns first, so the innermost is named. Masks are made of negative infinity: it counts
    only if NaN or positive infinity followed from it, or if the model returned it.
    """
    for at, (index, returned) in enumerate(seen.events):
        call = seen.calls[index]
        for tensor, path in call.outputs if returned else call.inputs:
            if seen.looks[tensor].bad:
                return _made(seen, at, call, path) if returned else _given(seen, call, path)
    if any(look.sunk for look in ends(seen)):
        return _sinker(seen, len(seen.events), "")
    return None


def in_backward(seen: Seen) -> Found | None:
    """Where, in the order of the backward, a gradient first became bad; None where those of all tensors are finite."""
    hit = next((tensor for tensor, look in seen.gradients if not look.finite), None)
    if hit is None:
        return None
    takers = _takers(seen, hit)
    if takers:
        place = takers[0].place
        through = " or ".join(dict.fromkeys(named(call.place) for call in takers))
        sentence = f"going back through {through} the gradient became not finite"
        return Found("backward", place, f"gradient/{place.named('output', takers[0].outputs[0][1])}", sentence)
    makers = [call for call in seen.calls if _has(call.outputs, hit)]
    if not makers:
        return Found("backward", None, "", "a gradient became not finite in a computation between modules")
    # Calls are in the order in which they began: of those that returned the tensor the first contains the others.
    end, maker = makers[0], makers[-1]
    if end.parent < 0:
        return Found("loss", None, "loss", "the gradient that the loss sends back is already not finite")
    around = seen.calls[end.parent].place
    path = next(path for tensor, path in maker.outputs if tensor == hit)
    name = f"gradient/{maker.place.named('output', path)}"
    sentence = f"going back through what {named(around)} does after {named(end.place)} the gradient became not finite"
    return Found("backward", around, name, sentence)


def _takers(seen: Seen, hit: int) -> list[Call]:
    """Innermost calls that took a tensor as input and passed its gradient back."""
    reached = {tensor for tensor, _ in seen.gradients}
    taken = [
        index
        for index, call in enumerate(seen.calls)
        if _has(call.inputs, hit) and not _has(call.outputs, hit) and any(one in reached for one, _ in call.outputs)
    ]
    outer = {index for one in taken for index in enclosing(seen, one)}
    return [seen.calls[index] for index in taken if index not in outer]


def enclosing(seen: Seen, index: int) -> Iterator[int]:
    """The calls around a call, from the inside."""
    while (index := seen.calls[index].parent) >= 0:
        yield index


def in_weight(place: ParameterPlace, what: str) -> Found:
    """A weight is not finite; ``what`` continues its name."""
    return Found("weights", place.place, place.name, f"{place.name} {what}")


def before_forward(place: ParameterPlace, writer: str, updated_at: int) -> Found:
    """A weight was not finite when a forward began.

    Args:
        place: The weight.
        writer: Type of the optimizer that updates it, "" where none was seen.
        updated_at: The step of its last update, below 0 for none.
    """
    if not writer or updated_at < 0:
        return in_weight(place, "was not finite before this forward, and no update has written it yet")
    last = f"{writer} last updated it at step {updated_at}"
    return in_weight(place, f"was already not finite before this forward: {last}")


def before_step(place: ParameterPlace, step: int, writer: str, updated_at: int) -> Found:
    """The same of the forward of a later step, by its number."""
    since = f": {writer} last updated it at step {updated_at}" if writer else ""
    return in_weight(place, f"was already not finite before the forward of step {step}{since}")


def in_data(place: Place, path: str) -> Found:
    """The input of the outermost module is not finite."""
    return Found("input", place, place.named("input", path), f"the data given to {named(place)} is not finite")


def in_loss(seen: Iterable[Seen], function: str) -> Found:
    """All modules are finite, the loss is not; ``function`` made it, "" where that is not known."""
    largest = max((look.magnitude for each in seen for look in ends(each) if look.finite), default=0.0)
    made = f"the result of {function}" if function else "the loss that the script computes from them"
    sentence = f"all modules are finite (largest output magnitude {largest:.3g}), {made} is not"
    return Found("loss", None, "loss", sentence)


def of_loss(seen: Sequence[Seen], function: str, *, chained: bool) -> Found:
    """Why a loss is not finite.

    Args:
        seen: Its forwards.
        function: The function that made it, "" where that is not known.
        chained: Whether its argument was exactly the output of the last forward.
    """
    found = next(filter(None, map(in_forward, seen)), None)
    # The loss function made it from finite outputs, even if other values were masked out before.
    if found is None or (chained and all(look.finite for each in seen for look in ends(each))):
        return in_loss(seen, function)
    return found


def of_gradients(seen: Iterable[Seen]) -> Found | None:
    """The first gradient that is not finite, None if all are finite."""
    return next(filter(None, map(in_backward, seen)), None)


def ends(seen: Seen) -> list[Look]:
    """The outputs of the outermost modules."""
    return [seen.looks[tensor] for call in seen.calls if call.parent < 0 for tensor, _ in call.outputs]


def last_gradient(name: str, place: Place | None) -> Found:
    """The answer for ``name``, the last parameter with a bad gradient: backward begins at the last layer."""
    sentence = f"the gradient of {name} is the first in backward order that is not finite"
    return Found("backward", place, f"gradient/{name}", sentence)


def named(place: Place) -> str:
    """A module in a sentence."""
    return f"{place.path} ({place.module_type})" if place.path else f"the model itself ({place.module_type})"


def _made(seen: Seen, at: int, call: Call, path: str) -> Found:
    """A module returned the first bad value."""
    inputs = [seen.looks[tensor] for tensor, _ in call.inputs]
    sunk = _any_sunk(seen, call.inputs)
    if sunk:
        sinker = _sinker(seen, at, f", of which {named(call.place)} made values that are not finite")
        if sinker is not None:
            return sinker
    name = call.place.named("output", path)
    if not inputs:
        # Integers and keyword arguments are not observed.
        return Found("forward", call.place, name, f"{named(call.place)} made values that are not finite")
    kind = "inputs that hold negative infinity" if sunk else f"finite inputs{_size(inputs)}"
    return Found("forward", call.place, name, f"{named(call.place)} turned {kind} into values that are not finite")


def _given(seen: Seen, call: Call, path: str) -> Found:
    """The first bad value was an input of a module: it came from the data or from a function between two modules."""
    if call.parent < 0:
        return in_data(call.place, path)
    name = call.place.named("input", path)
    around = seen.calls[call.parent].place
    sentence = f"{named(around)} made values that are not finite before it called {named(call.place)}"
    return Found("forward", around, name, sentence)


def _sinker(seen: Seen, before: int, then: str) -> Found | None:
    """The module that made the negative infinity seen before this event, or the data; None if neither did."""
    sank = [
        index
        for index, returned in seen.events[:before]
        if returned and _any_sunk(seen, seen.calls[index].outputs) and not _any_sunk(seen, seen.calls[index].inputs)
    ]
    outer = {around for index in sank for around in enclosing(seen, index)}
    inner = [seen.calls[index] for index in sank if index not in outer]
    if inner:
        call = inner[-1]
        path = next(path for tensor, path in call.outputs if seen.looks[tensor].sunk)
        size = _size([seen.looks[tensor] for tensor, _ in call.inputs])
        sentence = f"{named(call.place)} turned finite inputs{size} into negative infinity{then}"
        return Found("forward", call.place, call.place.named("output", path), sentence)
    for call in seen.calls:
        for tensor, path in call.inputs if call.parent < 0 else ():
            if seen.looks[tensor].sunk:
                sentence = f"the data given to {named(call.place)} holds negative infinity{then}"
                return Found("input", call.place, call.place.named("input", path), sentence)
    return None


def _any_sunk(seen: Seen, tensors: Sequence[tuple[int, str]]) -> bool:
    return any(seen.looks[tensor].sunk for tensor, _ in tensors)


def _size(looks: Iterable[Look]) -> str:
    found = [look.magnitude for look in looks if look.finite]
    return f" (largest magnitude {max(found):.3g})" if found else ""


def _has(tensors: Sequence[tuple[int, str]], tensor: int) -> bool:
    return any(one == tensor for one, _ in tensors)
