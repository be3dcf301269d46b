"""Parameters whose state is noted at the end of a backward, so that a change of weights shows up to the next one."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from watchglass.capture.pytorch.modules.models import Models

#: Parameters that are examined, and elements of each in addition to the one with the largest gradient.
_MOST_FOLLOWED, _ELEMENTS = 4, 4
_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
#: Elements up to which the largest gradient of a parameter is looked for.
_LOOKED_THROUGH = 1 << 20
#: Backwards in a row with an update behind each, after which a device is not read again; and how often it is read
#: before.
_HABIT, _QUESTIONS = 8, 64

#: Returns the tensor that is in a place now.
Place = Callable[[], "Tensor | None"]


class NotedParameter:
    """A parameter whose state is noted at the end of a backward, for the time up to the next.

    Args:
        now: Returns the present tensor in its place.
    """

    __slots__ = ("_elements", "_now", "_parameter", "_place", "_size", "_values", "_version")

    def __init__(self, now: Place) -> None:
        self._now = now
        self._parameter: Callable[[], Tensor | None] = lambda: None
        self._version = self._place = self._size = 0
        self._elements: Tensor | None = None
        self._values: Tensor | None = None

    def note(self, *, values: bool, again: bool) -> bool:
        """Note its present state; returns False for one without a gradient.

        Args:
            values: Keep some of its values, for changes that its version does not show.
            again: Choose which by the present gradient, not by an earlier one.
        """
        parameter = self._now()
        if parameter is None or parameter.grad is None:
            return False
        same = parameter is self._parameter()
        if not (same and parameter.data_ptr() == self._place):
            if not is_readable(parameter):
                return False
            self._parameter = weakref.ref(parameter)
        self._version, self._place = parameter._version, parameter.data_ptr()
        self._values = None
        if values:
            if again or not same or self._elements is None or parameter.numel() != self._size:
                self._size = parameter.numel()
                self._elements = _elements_of(parameter)
            self._values = parameter.detach().take(self._elements) if parameter.is_contiguous() else None
        return True

    def is_reached(self) -> bool:
        """Whether an update shows in the noted values: the gradient is not zero there, or is not read."""
        parameter = self._parameter()
        gradient = None if parameter is None else parameter.grad
        if self._values is None or self._elements is None or gradient is None:
            return True
        if not gradient.is_cpu or gradient.layout is not torch.strided:
            return True
        return bool(gradient.take(self._elements).any())

    def replaced(self) -> bool:
        """Whether another tensor, or none, is in its place now."""
        parameter = self._now()
        return parameter is None or parameter is not self._parameter()

    def moved(self) -> bool:
        """Whether its version or its memory shows a change."""
        parameter = self._parameter()
        return parameter is None or parameter._version != self._version or parameter.data_ptr() != self._place

    def changed(self, look: Callable[[], bool]) -> bool:
        """Whether its values have changed; ``look`` decides whether a device may be read."""
        parameter = self._parameter()
        if parameter is None:
            return True
        # ``p.data`` has a separate version.
        if self._values is None or self._elements is None or not (parameter.is_cpu or look()):
            return False
        if parameter.numel() != self._size or not parameter.is_contiguous():
            return True
        return not torch.equal(parameter.detach().take(self._elements), self._values)


class FollowedParameters:
    """A few parameters of the models, whose state is noted at the end of each backward.

    Args:
        models: The watched models.

    Attributes:
        in_a_row: Backwards in a row with an update behind each. After some, a device is not read.
    """

    def __init__(self, models: Models) -> None:
        self._models = models
        # Until one has no gradient or nothing has changed.
        self._followed: list[NotedParameter] = []
        # Updates in a row that versions have shown: after some, no values are kept.
        self._moved = 0
        self._questions = 0
        self.in_a_row = 0

    @property
    def is_habit(self) -> bool:
        """Whether an update has followed so many backwards in a row that one is taken for granted."""
        return self.in_a_row >= _HABIT

    @property
    def is_moving(self) -> bool:
        """Whether versions have shown so many updates in a row that no values are kept."""
        return self._moved >= _HABIT

    def note(self, others: Sequence[Place], *, again: bool) -> list[NotedParameter]:
        """Note the state of some parameters; returns those that have a gradient.

        Args:
            others: Places of tensors of no module, the first of which are noted too.
            again: See :meth:`NotedParameter.note`.
        """
        values = not self.is_moving
        noted = [each for each in self._followed if each.note(values=values, again=again)]
        if not noted or len(noted) < len(self._followed):
            self._followed = [NotedParameter(place) for place in self._choose()]
            noted = [each for each in self._followed if each.note(values=values, again=again)]
        loose = [NotedParameter(place) for place in others[:_MOST_FOLLOWED]]
        return noted + [each for each in loose if each.note(values=values, again=again)]

    def changed(self, noted: Sequence[NotedParameter]) -> bool:
        """Whether any of these has changed in place since it was noted."""
        for each in noted:
            if each.moved():
                self._moved += 1
                return True
        self._moved = 0
        return any(each.changed(self._may_ask) for each in noted)

    def forget(self) -> None:
        """No update has followed: choose others at the next backward."""
        self.in_a_row = 0
        self._followed = []

    def _may_ask(self) -> bool:
        self._questions += 1
        return self.in_a_row < _HABIT and self._questions <= _QUESTIONS

    def _choose(self) -> list[Place]:
        """The places of some parameters of modules that have a gradient, evenly spread."""
        places: list[Place] = []
        for tree in self._models:
            owner = tree.owner
            for module in owner.modules() if owner is not None else ():
                for leaf, parameter in module.named_parameters(recurse=False):
                    if _has_gradient(parameter):
                        places.append(_now(weakref.ref(module), leaf))
        count = min(_MOST_FOLLOWED, len(places))
        return [places[index * (len(places) - 1) // max(1, count - 1)] for index in range(count)]


def _has_gradient(tensor: Tensor) -> bool:
    return tensor.grad is not None and is_readable(tensor)


def _now(module: weakref.ref[nn.Module], leaf: str) -> Place:
    def parameter() -> Tensor | None:
        living = module()
        if living is None:
            return None
        parameters = living._parameters
        # Those of a TorchScript module have no get().
        return parameters[leaf] if leaf in parameters else None  # noqa: SIM401

    return parameter


def is_readable(parameter: Tensor) -> bool:
    """Whether versions, addresses and values of a tensor can be read."""
    return (
        type(parameter) in (Tensor, nn.Parameter)
        and parameter.dtype in _DTYPES
        and parameter.layout is torch.strided
        and not parameter.is_inference()
        and not parameter.is_meta
        and parameter.numel() > 0
    )


def _largest(parameter: Tensor) -> int:
    gradient = parameter.grad
    if (
        gradient is None
        or gradient.layout is not torch.strided
        or gradient.numel() > _LOOKED_THROUGH
        or not gradient.is_cpu
    ):
        return 0
    return int(gradient.detach().abs().argmax())


def _elements_of(parameter: Tensor) -> Tensor:
    """Which elements of a parameter are looked at: the one with the largest gradient, and others evenly spread."""
    size = parameter.numel()
    # Made on a device, without a copy from the host.
    evenly = torch.arange(0, size, max(1, size // _ELEMENTS), device=parameter.device)[:_ELEMENTS]
    largest = _largest(parameter)
    return torch.cat([evenly.new_full((1,), largest), evenly])
