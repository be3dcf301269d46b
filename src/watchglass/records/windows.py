"""What windows of profiled training steps of every kind share: their steps, cost, refusals, and columns of rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple, TypeVar

from watchglass.records.fact import DeclaredFact

#: Steps before a window whose times its steps are compared with: house.
COMPARED_STEPS = 32
#: Rows of a window that are kept, by time: house. A model has some hundred operators.
MOST_ROWS = 500
#: Characters of a name that are kept: house. Kernels made from templates have names of some thousand.
_MOST_CHARACTERS = 200

T = TypeVar("T")


@dataclass(frozen=True)
class WindowCost:
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


#: Nothing is known.
UNKNOWN_COST = WindowCost()


class WindowRefusal(DeclaredFact):
    """A requested window that was not profiled."""

    KIND = "window_refused"

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

    def to_data(self) -> dict[str, Any]:
        """This as JSON values."""
        cost = {name: value for name, value in asdict(self.cost).items() if not math.isnan(value)}
        return {**self._asdict(), "cost": cost}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> WindowFrame | None:
        """What :meth:`to_data` gave; None if it is not valid."""
        cost, note, request = data.get("cost"), data.get("note", ""), data.get("request")
        first, end, omitted = data.get("first_step"), data.get("end_step"), data.get("omitted", 0)
        if not isinstance(cost, Mapping) or not isinstance(note, str) or type(request) not in (int, type(None)):
            return None
        if type(first) is not int or type(end) is not int or type(omitted) is not int or not 0 <= first < end:
            return None
        try:
            known = WindowCost(**{field.name: float(cost.get(field.name, math.nan)) for field in fields(WindowCost)})
        except (TypeError, ValueError, OverflowError):
            return None
        return cls(first, end, known, omitted, note, request)


def to_columns(rows: Sequence[Any], row: type[Any]) -> dict[str, list[Any]]:
    """Rows of a dataclass as a list for each field; long texts are shortened."""
    columns = {field.name: [getattr(each, field.name) for each in rows] for field in fields(row)}
    return {name: list(map(_shortened, column)) for name, column in columns.items()}


def from_columns(columns: Any, row: type[T], kinds: Mapping[str, type]) -> tuple[T, ...] | None:
    """The rows of :func:`to_columns`; None if they are not valid.

    Args:
        columns: The columns.
        row: The dataclass.
        kinds: The type of each field whose name does not end in ``_s`` (a float) and that is not a whole number.
    """
    if not isinstance(columns, Mapping):
        return None
    try:
        read = [_column(columns[field.name], field.name, kinds) for field in fields(row)]  # type: ignore[arg-type]
        return tuple(row(*each) for each in zip(*read, strict=True))
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def _column(column: Any, name: str, kinds: Mapping[str, type]) -> list[Any]:
    if not isinstance(column, list):
        raise TypeError(name)
    if name in kinds:
        if not all(type(each) is kinds[name] for each in column):
            raise TypeError(name)
        return column
    return [float(each) if name.endswith("_s") else int(each) for each in column]


def _shortened(value: Any) -> Any:
    if not isinstance(value, str) or len(value) <= _MOST_CHARACTERS:
        return value
    return value[: _MOST_CHARACTERS - 3] + "..."
