"""Symmetry and spread of a weight, as numbers on the host or on their way there."""

from __future__ import annotations

import logging

import torch
from torch import Tensor

from watchglass.capture.initialization import Symmetry
from watchglass.capture.pytorch.reduce import DeviceRows, plain

_log = logging.getLogger("watchglass")

#: Of larger weights the first rows that hold so many elements are looked at.
_MOST_ELEMENTS = 1 << 20


def symmetry_of(weight: Tensor) -> Symmetry | None:
    """Share of rows that equal the first, whether all elements are equal, and their spread; None where unreadable."""
    try:
        return _computed(plain(weight))
    except Exception as error:  # a weight of a kind of its own, or no memory: what is said of the others holds
        _log.debug("watchglass: how a weight was initialized is left out: %s: %s", type(error).__name__, error)
        return None


def _computed(values: Tensor | None) -> Symmetry | None:
    if values is None or not values.numel():
        return None
    # Of a sharded weight the rows that are here.
    flat = values.reshape(values.shape[0], -1)[: max(2, _MOST_ELEMENTS // max(1, values[0].numel()))]
    same = (flat == flat[0]).all(dim=1)
    identical = same[1:].float().mean() if flat.shape[0] > 1 else same.new_zeros((), dtype=torch.float32)
    constant = (flat == flat[0, 0]).all()
    spread = (flat if flat.is_complex() else flat.float()).std(unbiased=False).real
    numbers = torch.stack([identical, constant.float(), spread.float()])
    return numbers.numpy() if numbers.is_cpu else DeviceRows(numbers)
