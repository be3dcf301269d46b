"""How ranks combine their gradients, by the fact ``rank_gradients`` of all of them."""

from __future__ import annotations

import enum
from typing import Any

import numpy as np

from watchglass.records import facts
from watchglass.tables import JointStep

#: Share of its size within which a gradient is the mean, the sum or a rank's own: ranks add in another order.
_ROUNDING = 1e-3


class Average(enum.Enum):
    """What the optimizers of all ranks use."""

    MEAN = "mean"
    SUM = "sum"
    OWN = "own"
    OTHER = "other"


def samples(step: JointStep) -> list[facts.AveragedGradient]:
    """The fact on each rank at this step; empty unless all have it, of one parameter."""
    found = [fact for view in step.views for fact in view.facts(facts.AveragedGradient)[:1]]
    complete = len(found) == len(step.views) > 1 and len({each.parameter for each in found}) == 1
    return found if complete else []


def average(step: JointStep) -> Average | None:
    """How the gradients of this step were combined; None where ranks computed equal ones, or none are known."""
    found = samples(step)
    if not found or any(each.own is None or each.used is None for each in found) or len(found) != found[0].processes:
        return None
    own, used = (np.asarray(rows, np.float64) for rows in ([each.own for each in found], [each.used for each in found]))
    mean = own.mean(axis=0)
    if not (np.isfinite(own).all() and np.isfinite(used).all()) or _alike(own[1:], own[:1]):
        return None
    for kind, expected in ((Average.MEAN, mean), (Average.SUM, len(own) * mean), (Average.OWN, own)):
        if _alike(used, expected):
            return kind
    return Average.OTHER


def _alike(found: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> bool:
    return bool(np.linalg.norm(found - expected) <= _ROUNDING * np.linalg.norm(expected))
