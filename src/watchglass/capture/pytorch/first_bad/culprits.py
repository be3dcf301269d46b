"""Where the first bad value arose, from what was seen of all module calls. Pure: reads numbers only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from watchglass.capture.pytorch.first_bad.looks import Look
from watchglass.capture.pytorch.first_bad.trace import Call, Trace
from watchglass.capture.pytorch.modules import Place


class Found(NamedTuple):
    """An answer.

    Attributes:
        where: ``weights``, ``input``, ``forward``, ``loss`` or ``backward``.
        place: The module at fault, None where it is none.
        tensor: Name of the first bad tensor.
        sentence: Says it.
    """

    where: str
    place: Place | None
    tensor: str
    sentence: str

    def to_json(self, level: str, **more: Any) -> dict[str, Any]:
        """Data of a ``first_bad_module`` fact."""
        place = self.place
        return {
            "level": level, "where": self.where, "module": place.path if place else "",
            "module_type": place.module_type if place else "", "tensor": self.tensor, "sentence": self.sentence,
            "refused": "", **more,
        }  # fmt: skip


def in_forward(trace: Trace) -> Found | None:
    """The first module call that turned finite values into others, None where all are finite.

    A module inside another returns first, so the innermost is named. Negative infinity alone is how masks are made: it
    counts where NaN or positive infinity came of it, or where the model returned it.
    """
    for at, (index, returned) in enumerate(trace.events):
        call = trace.calls[index]
        for tensor, path in call.outputs if returned else call.inputs:
            if trace.looks[tensor].bad:
                return _made(trace, at, call, path) if returned else _given(trace, call, path)
    if any(look.sunk for look in ends(trace)):
        return _sinker(trace, len(trace.events), "")
    return None


def in_backward(trace: Trace) -> Found | None:
    """Where, in the order of the backward, a gradient first became bad; None where those of all tensors are finite."""
    hit = next((tensor for tensor, look in trace.gradients if not look.finite), None)
    if hit is None:
        return None
    takers = _takers(trace, hit)
    if takers:
        place = takers[0].place
        through = " or ".join(dict.fromkeys(named(call.place) for call in takers))
        sentence = f"going back through {through} the gradient became not finite"
        return Found("backward", place, f"gradient/{_name(place, 'output', takers[0].outputs[0][1])}", sentence)
    makers = [call for call in trace.calls if _has(call.outputs, hit)]
    if not makers:
        return Found("backward", None, "", "a gradient became not finite in a computation between modules")
    # Calls are in the order in which they began: of those that returned the tensor the first contains the others.
    end, maker = makers[0], makers[-1]
    if end.parent < 0:
        return Found("loss", None, "loss", "the gradient that the loss sends back is already not finite")
    around = trace.calls[end.parent].place
    name = f"gradient/{_name(maker.place, 'output', _path(maker.outputs, hit))}"
    sentence = f"going back through what {named(around)} does after {named(end.place)} the gradient became not finite"
    return Found("backward", around, name, sentence)


def _takers(trace: Trace, hit: int) -> list[Call]:
    """Innermost calls that were given a tensor and through which its gradient came."""
    reached = {tensor for tensor, _ in trace.gradients}
    taken = [
        index
        for index, call in enumerate(trace.calls)
        if _has(call.inputs, hit) and not _has(call.outputs, hit) and any(one in reached for one, _ in call.outputs)
    ]
    outer = {index for one in taken for index in _around(trace, one)}
    return [trace.calls[index] for index in taken if index not in outer]


def _around(trace: Trace, index: int) -> Iterator[int]:
    while (index := trace.calls[index].parent) >= 0:
        yield index


def in_data(place: Place, path: str) -> Found:
    """The outermost module was given what is not finite."""
    return Found("input", place, _name(place, "input", path), f"the data given to {named(place)} is not finite")


def in_loss(traces: Iterable[Trace], function: str) -> Found:
    """All modules are finite, the loss is not."""
    largest = max((look.magnitude for trace in traces for look in ends(trace) if look.finite), default=0.0)
    sentence = f"all modules are finite (largest output magnitude {largest:.3g}); {function} made the loss not finite"
    return Found("loss", None, "loss", sentence)


def ends(trace: Trace) -> list[Look]:
    """What the outermost modules returned."""
    return [trace.looks[tensor] for call in trace.calls if call.parent < 0 for tensor, _ in call.outputs]


def last_gradient(name: str, place: Place | None) -> Found:
    """Of parameters whose gradients are not finite, the last: backward runs from the last layer to the first."""
    sentence = f"the gradient of {name} is the first in backward order that is not finite"
    return Found("backward", place, f"gradient/{name}", sentence)


def named(place: Place) -> str:
    """A module in a sentence."""
    path = place.path.rstrip(".")
    return f"{path} ({place.module_type})" if path else f"the model itself ({place.module_type})"


def _made(trace: Trace, at: int, call: Call, path: str) -> Found:
    """A module returned the first bad value."""
    inputs = [trace.looks[tensor] for tensor, _ in call.inputs]
    sunk = _any_sunk(trace, call.inputs)
    if sunk:
        sinker = _sinker(trace, at, f", of which {named(call.place)} made values that are not finite")
        if sinker is not None:
            return sinker
    name = _name(call.place, "output", path)
    if not inputs:
        # Given integers, or by keyword, which is not looked at.
        return Found("forward", call.place, name, f"{named(call.place)} made values that are not finite")
    kind = "inputs that hold negative infinity" if sunk else f"finite inputs{_size(inputs)}"
    return Found("forward", call.place, name, f"{named(call.place)} turned {kind} into values that are not finite")


def _given(trace: Trace, call: Call, path: str) -> Found:
    """A module was given the first bad value: it came from the data, or out of a function between two modules."""
    if call.parent < 0:
        return in_data(call.place, path)
    name = _name(call.place, "input", path)
    around = trace.calls[call.parent].place
    sentence = f"{named(around)} made values that are not finite before it called {named(call.place)}"
    return Found("forward", around, name, sentence)


def _sinker(trace: Trace, before: int, then: str) -> Found | None:
    """Where negative infinity came from that was seen before this event; None where no module made it."""
    sank = [
        index
        for index, returned in trace.events[:before]
        if returned and _any_sunk(trace, trace.calls[index].outputs) and not _any_sunk(trace, trace.calls[index].inputs)
    ]
    outer = {around for index in sank for around in _around(trace, index)}
    inner = [trace.calls[index] for index in sank if index not in outer]
    if inner:
        call = inner[-1]
        path = next(path for tensor, path in call.outputs if trace.looks[tensor].sunk)
        size = _size([trace.looks[tensor] for tensor, _ in call.inputs])
        sentence = f"{named(call.place)} turned finite inputs{size} into negative infinity{then}"
        return Found("forward", call.place, _name(call.place, "output", path), sentence)
    for call in trace.calls:
        for tensor, path in call.inputs if call.parent < 0 else ():
            if trace.looks[tensor].sunk:
                sentence = f"the data given to {named(call.place)} holds negative infinity{then}"
                return Found("input", call.place, _name(call.place, "input", path), sentence)
    return None


def _any_sunk(trace: Trace, tensors: Sequence[tuple[int, str]]) -> bool:
    return any(trace.looks[tensor].sunk for tensor, _ in tensors)


def _size(looks: Iterable[Look]) -> str:
    found = [look.magnitude for look in looks if look.finite]
    return f" (largest magnitude {max(found):.3g})" if found else ""


def _name(place: Place, kind: str, path: str) -> str:
    return ".".join(part for part in (place.path.rstrip("."), kind, path) if part)


def _has(tensors: Sequence[tuple[int, str]], tensor: int) -> bool:
    return any(one == tensor for one, _ in tensors)


def _path(tensors: Sequence[tuple[int, str]], tensor: int) -> str:
    return next(path for one, path in tensors if one == tensor)
