"""How ranks combine their gradients, by the fact ``rank_gradients`` of all of them."""

from __future__ import annotations

import enum
from typing import Any

import numpy as np

from watchglass.tables import JointStep

#: Share of its size within which a gradient is the mean, the sum or a rank's own: ranks add in another order.
_ROUNDING = 1e-3


class Average(enum.Enum):
    """What the optimizers of all ranks use."""

    MEAN = "mean"
    SUM = "sum"
    OWN = "own"
    OTHER = "other"


def samples(step: JointStep) -> list[Any]:
    """The data of the fact on each rank at this step; empty unless all have it, of one parameter."""
    found = [fact.data for view in step.views for fact in view.facts("rank_gradients")[:1]]
    complete = len(found) == len(step.views) > 1 and len({data.get("parameter") for data in found}) == 1
    return found if complete else []


def average(step: JointStep) -> Average | None:
    """How the gradients of this step were combined; None where ranks computed equal ones, or none are known."""
    found = samples(step)
    if not found or any("own" not in data for data in found) or len(found) != found[0].get("processes"):
        return None
    own, used = (np.asarray([data[key] for data in found], np.float64) for key in ("own", "used"))
    mean = own.mean(axis=0)
    if not (np.isfinite(own).all() and np.isfinite(used).all()) or _alike(own[1:], own[:1]):
        return None
    for kind, expected in ((Average.MEAN, mean), (Average.SUM, len(own) * mean), (Average.OWN, own)):
        if _alike(used, expected):
            return kind
    return Average.OTHER


def _alike(found: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> bool:
    return bool(np.linalg.norm(found - expected) <= _ROUNDING * np.linalg.norm(expected))
