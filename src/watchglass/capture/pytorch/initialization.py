"""How a model was initialized: symmetry and spread of its weights before the first update."""

from __future__ import annotations

import logging
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from watchglass.capture.pytorch.reduce import DeviceRows, plain

_log = logging.getLogger("watchglass")

#: Of larger weights the first rows that hold so many elements are looked at.
_MOST_ELEMENTS = 1 << 20


class Initialization:
    """Data of the ``initialization`` fact, which the recorder's thread asks for.

    Args:
        weights: Weights of two and more axes, by name; numbers of a device are on their way until they are asked for.
        about: More data.
    """

    def __init__(self, weights: dict[str, Tensor], about: dict[str, Any]) -> None:
        self._about = about
        self._shapes = {name: list(weight.shape) for name, weight in weights.items()}
        self._numbers = {name: _symmetry(weight) for name, weight in weights.items()}

    def resolve(self) -> dict[str, Any]:
        """The data; waits for the device."""
        tensors = {name: {**_fans(shape), **self._told(name)} for name, shape in self._shapes.items()}
        return {"tensors": tensors, **self._about}

    def _told(self, name: str) -> dict[str, Any]:
        numbers = self._numbers[name]
        if numbers is None:
            return {}
        values = numbers.resolve() if isinstance(numbers, DeviceRows) else numbers.numpy()
        identical, constant, spread = map(float, values)
        return {
            "identical_rows": identical,
            "constant": bool(constant),
            "std": spread if math.isfinite(spread) else None,
        }


def _fans(shape: list[int]) -> dict[str, Any]:
    rest = int(np.prod(shape[2:], dtype=np.int64)) if len(shape) > 2 else 1
    return {"shape": shape, "fan_in": shape[1] * rest, "fan_out": shape[0] * rest}


def _symmetry(weight: Tensor) -> Tensor | DeviceRows | None:
    """Share of rows that equal the first, whether all elements are equal, and their spread; None where unreadable."""
    try:
        return _computed(plain(weight))
    except Exception as error:  # a weight of a kind of its own, or no memory: what is said of the others holds
        _log.debug("watchglass: how a weight was initialized is left out: %s: %s", type(error).__name__, error)
        return None


def _computed(values: Tensor | None) -> Tensor | DeviceRows | None:
    if values is None or not values.numel():
        return None
    # Of a sharded weight the rows that are here.
    flat = values.reshape(values.shape[0], -1)[: max(2, _MOST_ELEMENTS // max(1, values[0].numel()))]
    same = (flat == flat[0]).all(dim=1)
    identical = same[1:].float().mean() if flat.shape[0] > 1 else same.new_zeros((), dtype=torch.float32)
    constant = (flat == flat[0, 0]).all()
    spread = (flat if flat.is_complex() else flat.float()).std(unbiased=False).real
    numbers = torch.stack([identical, constant.float(), spread.float()])
    return numbers if numbers.is_cpu else DeviceRows(numbers)
