"""What windows of profiled training steps of every kind share: their steps, cost, refusals, and columns of rows."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from watchglass.records.declared import Declared
from watchglass.records.fact import DeclaredFact

#: Steps before a window whose times its steps are compared with: house.
COMPARED_STEPS = 32
#: Rows of a window that are kept, by time: house. A model has some hundred operators.
MOST_ROWS = 500
#: Characters of a name that are kept: house. Kernels made from templates have names of some thousand.
_MOST_CHARACTERS = 200

_Row = TypeVar("_Row", bound=Declared)


class WindowCost(Declared):
    """What a window cost the training run, in seconds; NaN where unknown.

    Attributes:
        inside_s: Median time of its steps.
        outside_s: Median time of the steps before it, at most 32.
        begin_s: Time between two steps to begin it.
        end_s: Time between two steps to end it.
    """

    inside_s: float = math.nan
    outside_s: float = math.nan
    begin_s: float = math.nan
    end_s: float = math.nan


class WindowRefusal(DeclaredFact, kind="window_refused"):
    """A requested window that was not profiled."""

    first_step: int
    end_step: int
    reason: str
    request: int | None = None
    window: str = ""


class WindowFrame(NamedTuple):
    """What the fact of every window has beside its rows; the attributes are those of the windows."""

    first_step: int
    end_step: int
    cost: WindowCost
    omitted: int
    note: str
    request: int | None


def check_steps(first_step: int, end_step: int) -> None:
    """Raise a ValueError for a window without steps."""
    if not 0 <= first_step < end_step:
        raise ValueError(f"a window must have at least one step but got {first_step}:{end_step}")


def with_short_names(rows: Iterable[_Row]) -> tuple[_Row, ...]:
    """Rows whose long names are cut off."""
    return tuple(map(_shortened, rows))


def _shortened(row: Any) -> Any:
    return replace(row, name=f"{row.name[: _MOST_CHARACTERS - 3]}...") if len(row.name) > _MOST_CHARACTERS else row
