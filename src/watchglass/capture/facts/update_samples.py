"""Samples of updates: directions and sizes of some elements of weights, gradients and updates of one optimizer step.

The recorder's thread computes them from copies of these elements.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from watchglass.capture.arrays import Elements
from watchglass.capture.module_places import ParameterPlace
from watchglass.records import facts
from watchglass.stats import inner_products

#: Elements of each parameter that are copied; smaller ones are copied whole.
ELEMENTS = 1024
#: Most parameters of an optimizer that are sampled, and the least number of these with two or more axes.
MOST, _MATRICES = 32, 24
#: Steps between two samples: a quarter of the steps so far, within these bounds.
_LEAST_APART, _MOST_APART = 8, 64
#: The default epsilon of Adam: smaller square roots of the second moment are almost nothing.
_TINY = 1e-8

_Array = NDArray[Any]


class SampledParameter(NamedTuple):
    """Sampled elements of one parameter, all of the same number."""

    place: ParameterPlace  #: Its name and place.
    dims: int  #: Number of its axes.
    dtype: str  #: Its own dtype.
    group: int  #: Index of its group.
    before: Elements  #: The weight before the update.
    gradient: Elements  #: The gradient as the optimizer got it, or a multiple.
    after: Elements  #: The weight after the update.
    moment: Elements | None = None  #: The second moment after the update; None where there is none.
    step: Elements | None = None  #: Updates of the parameter so far, by the optimizer; None where unknown.


def next_after(first: int, step: int) -> int:
    """The step from which on the next sample is due.

    Args:
        first: The step of the first sample.
        step: The step of the latest one.
    """
    return step + min(max((step - first) // 4, _LEAST_APART), _MOST_APART)


def chosen(dims: Sequence[int]) -> list[int]:
    """Indices of the parameters that are sampled, ascending: spread over all, most of them with two or more axes.

    Args:
        dims: Number of axes of each parameter.
    """
    matrices = [index for index, number in enumerate(dims) if number > 1]
    others = [index for index, number in enumerate(dims) if number <= 1]
    room = max(_MATRICES, MOST - len(others))
    taken = _spread(matrices, room)
    return sorted([*taken, *_spread(others, MOST - len(taken))])


def _spread(found: Sequence[int], most: int) -> list[int]:
    if len(found) <= most:
        return list(found)
    return [found[index * len(found) // most] for index in range(most)]


class UpdateSamples:
    """Decides when updates of one optimizer are sampled, and makes the facts of the samples.

    It keeps the update and the weights of the sample before.

    Args:
        optimizer: Class name of the optimizer.
        step: The step of the first sample.
    """

    def __init__(self, optimizer: str, step: int) -> None:
        self._optimizer = optimizer
        self._first = self._next = step
        self._latest: int | None = None
        # By name: the sampled update, the weights after it, and the change since the sample before that.
        self._last: dict[str, tuple[_Array, _Array, _Array | None]] = {}

    def due(self, step: int) -> bool:
        """Whether a sample is to be taken at a step. For the training thread."""
        return step >= self._next

    def took(self, step: int) -> int | None:
        """A sample was taken; returns the steps since the sample before. For the training thread."""
        since = None if self._latest is None else step - self._latest
        self._latest, self._next = step, next_after(self._first, step)
        return since

    def sample(
        self, since: int | None, groups: Sequence[tuple[facts.UpdateGroup, Elements | None]],
        parameters: Sequence[SampledParameter], scale: Elements | float | None,
    ) -> facts.UpdateSample:  # fmt: skip
        """The fact. For the recorder's thread: waits for devices.

        Args:
            since: Steps since the sample before.
            groups: The settings of the optimizer's groups, and learning rates that are on their way.
            parameters: The sampled parameters.
            scale: Gradients are divided by it.
        """
        last, self._last = self._last, {}
        settings = [group if rate is None else replace(group, lr=_number(rate)) for group, rate in groups]
        divisor = _number(scale) or 1.0
        rows = []
        for parameter in parameters:
            with np.errstate(all="ignore"):
                row = self._row(parameter, settings[parameter.group], divisor, last.get(parameter.place.name))
            rows.append(row)
        columns = {name: tuple(row[name] for row in rows) for name in (rows[0] if rows else ())}
        return facts.UpdateSample(
            self._optimizer,
            since,
            tuple(settings),
            tensors=tuple(parameter.place.name for parameter in parameters),
            layer=tuple(parameter.place.place.index for parameter in parameters),
            kind=tuple(parameter.place.place.kind.value for parameter in parameters),
            dims=tuple(parameter.dims for parameter in parameters),
            dtype=tuple(parameter.dtype for parameter in parameters),
            group=tuple(parameter.group for parameter in parameters),
            **columns,
        )

    def _row(
        self, of: SampledParameter, settings: facts.UpdateGroup, divisor: float,
        last: tuple[_Array, _Array, _Array | None] | None,
    ) -> dict[str, Any]:  # fmt: skip
        before, gradient, after = _floats(of.before), _floats(of.gradient) / divisor, _floats(of.after)
        update = after - before
        nonzero = gradient != 0
        decay, pure_gradient, pure_update = self._apart(before, gradient, update, settings)
        moved = None if last is None else after - last[1]
        was = None if last is None else last[2]
        self._last[of.place.name] = update, after, moved
        size = _rms(before)
        return {
            "elements": int(before.size),
            "update": _short(_rms(update)),
            "weight": _short(size),
            "gradient": _short(_rms(gradient)),
            "cosine_gradient": _cosine(pure_update, pure_gradient),
            "cosine_weight": _cosine(update, before),
            "gradient_weight": _cosine(gradient, before),
            "cosine_previous": None if last is None else _cosine(update, last[0]),
            "moved": None if moved is None else _short(_rms(moved)),
            "cosine_moved": None if moved is None or was is None else _cosine(moved, was),
            "unchanged": _share((update == 0) & nonzero, nonzero),
            "unmoved": None if moved is None else _share((moved == 0) & nonzero, nonzero),
            "zero_gradient": _share(~nonzero, np.ones_like(nonzero)),
            "decay": decay,
            **_moments(of, settings, pure_gradient),
        }

    @staticmethod
    def _apart(
        before: _Array, gradient: _Array, update: _Array, settings: facts.UpdateGroup
    ) -> tuple[float | None, _Array, _Array]:
        """The ratio of decay and data gradient, the gradient that is used, and the part of the update that it makes."""
        weight_decay = settings.weight_decay
        if not weight_decay:
            return (0.0 if weight_decay == 0 else None), gradient, update
        if not settings.decoupled:
            pull = weight_decay * before
            return _ratio(_rms(pull), _rms(gradient)), gradient + pull, update
        if settings.lr is None:
            return None, gradient, update
        pull = settings.lr * weight_decay * before
        return _ratio(_rms(pull), _rms(update + pull)), gradient, update + pull


def _moments(of: SampledParameter, settings: facts.UpdateGroup, gradient: _Array) -> dict[str, float | None]:
    """Elements by the square root of their second moment, corrected for its start, and the gradient over it."""
    if of.moment is None or settings.eps is None:
        return {"below_epsilon": None, "tiny_moment": None, "zero_moment": None, "gradient_over_moment": None}
    root, step = np.sqrt(_floats(of.moment)), _number(of.step)
    if settings.beta2 is not None and step:
        root = root / math.sqrt(max(1 - settings.beta2**step, 1e-12))
    some = root > 0
    over = np.where(gradient == 0, 0.0, gradient.astype(np.float64) / np.maximum(root, settings.eps))
    return {
        "below_epsilon": _share(some & (root < settings.eps), some),
        "tiny_moment": _share(some & (root < _TINY), some),
        "zero_moment": _share(~some, np.ones_like(some)),
        "gradient_over_moment": _short(_rms(over)),
    }


def _number(value: Elements | float | None) -> float | None:
    return float(value.numbers().reshape(-1)[0]) if isinstance(value, Elements) else value


def _floats(elements: Elements) -> _Array:
    """Elements in float32 at least; waits for a device."""
    numbers = elements.numbers()
    return numbers if numbers.dtype == np.float64 else numbers.astype(np.float32, copy=False)


def _rms(values: _Array) -> float:
    return float(np.sqrt(np.mean(np.square(values, dtype=np.float64)))) if values.size else 0.0


def _cosine(one: _Array, other: _Array) -> float | None:
    """The cosine of the angle between two vectors; None where one is zero or not finite."""
    one, other = one.astype(np.float64), other.astype(np.float64)
    # Squares of float32 that is scaled by hand may leave the range of float64.
    scale = float(np.abs(one).max(initial=0)), float(np.abs(other).max(initial=0))
    if not all(math.isfinite(each) and each > 0 for each in scale):
        return None
    one, other = one / scale[0], other / scale[1]
    both = np.stack([one, other])
    products = inner_products(both, both)
    return _short(float(products[0, 1]) / math.sqrt(float(products[0, 0]) * float(products[1, 1])), 6)


def _share(of: _Array, among: _Array) -> float | None:
    total = int(np.count_nonzero(among))
    return round(int(np.count_nonzero(of)) / total, 4) if total else None


def _ratio(one: float, other: float) -> float | None:
    return _short(one / other) if other > 0 else None


def _short(value: float, digits: int = 4) -> float | None:
    """A number with few digits, since a fact has many; None where it is not finite."""
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None


def numbers_of(value: Any) -> float | None:
    """A plain finite number, else None."""
    plain = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if plain else None


def settings_of(group: Mapping[str, Any], *, decoupled: bool) -> facts.UpdateGroup:
    """The settings of a group of an optimizer.

    Args:
        group: Its entries.
        decoupled: Whether optimizers of its class decouple the decay if the group has no setting for it.
    """
    betas = group.get("betas")
    says = group.get("decoupled_weight_decay")
    return facts.UpdateGroup(
        numbers_of(group.get("lr")), numbers_of(group.get("weight_decay")),
        says if isinstance(says, bool) else decoupled, numbers_of(group.get("eps")),
        numbers_of(betas[1]) if isinstance(betas, (tuple, list)) and len(betas) == 2 else None,
        group.get("maximize") is True,
    )  # fmt: skip
