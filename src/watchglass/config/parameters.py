"""Typed parameters of rules, collections and actions: one validation for code, command line and JSON alike.

A parameter is a dataclass field made by :func:`parameter`. :func:`validate` turns strings from a command line or a
JSON file into the annotated type and checks the limits, so that every way of setting a parameter gives the same
one-line error. It is written by hand, and small, because collections and rules are constructed inside the training
process, where a validation library of ours could clash with the user's own version.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from watchglass.errors import InvalidValueError

_KEY = "watchglass.parameter"
_TRUE, _FALSE = {"true", "yes", "on", "1"}, {"false", "no", "off", "0"}


@dataclass(frozen=True)
class ParameterInfo:
    """What documentation and validation need to know of one parameter.

    Attributes:
        name: Field name.
        type: The annotation, ``float`` or ``int | None``.
        default: Its default value.
        help: One sentence.
        unit: Unit of the value, "" for none.
        limits: Readable limits, ``">= 1"``, "" for none.
    """

    name: str
    type: str
    default: Any
    help: str
    unit: str
    limits: str


@dataclass(frozen=True)
class _Limits:
    help: str
    unit: str
    ge: float | None
    le: float | None
    gt: float | None
    lt: float | None
    choices: tuple[Any, ...] | None

    def describe(self) -> str:
        bounds = ((">=", self.ge), (">", self.gt), ("<=", self.le), ("<", self.lt))
        words = [f"{sign} {bound:g}" for sign, bound in bounds if bound is not None]
        if self.choices is not None:
            words.append("one of " + ", ".join(map(str, self.choices)))
        return " and ".join(words)

    def broken_by(self, value: Any) -> bool:
        if self.choices is not None and value not in self.choices:
            return True
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return False
        return (
            math.isnan(value)
            or (self.ge is not None and value < self.ge)
            or (self.gt is not None and value <= self.gt)
            or (self.le is not None and value > self.le)
            or (self.lt is not None and value >= self.lt)
        )


def parameter(
    default: Any,
    *,
    help: str,  # noqa: A002  the word that argparse and typer use
    unit: str = "",
    ge: float | None = None,
    le: float | None = None,
    gt: float | None = None,
    lt: float | None = None,
    choices: tuple[Any, ...] | None = None,
) -> Any:
    """A dataclass field that :func:`validate` checks and :func:`describe` documents.

    Args:
        default: Value when nothing is given; must itself be valid.
        help: One sentence for people.
        unit: Unit of the value, for instance ``"percent"`` or ``"steps"``.
        ge: A number must be at least this.
        le: A number must be at most this.
        gt: A number must be above this.
        lt: A number must be below this.
        choices: The only values allowed.
    """
    limits = _Limits(help, unit, ge, le, gt, lt, choices)
    return dataclasses.field(default=default, metadata={_KEY: limits})


def validate(instance: Any) -> None:
    """Coerce and check every parameter field of a dataclass instance in place; call it from ``__post_init__``.

    Raises:
        InvalidValueError: A value does not have the field's type or breaks its limits.
    """
    owner = type(instance).__name__
    hints = _hints(type(instance))
    for field in dataclasses.fields(instance):
        limits = field.metadata.get(_KEY)
        if limits is None:
            continue
        received = getattr(instance, field.name)
        try:
            value = _coerce(received, hints[field.name])
        except (TypeError, ValueError):
            raise InvalidValueError(
                f"{owner}: {field.name} must be {_type_name(hints[field.name])} but got {received!r}"
                f"; the default is {field.default!r}"
            ) from None
        if limits.broken_by(value):
            raise InvalidValueError(
                f"{owner}: {field.name} must be {limits.describe()} but got {received!r}"
                f"; the default is {field.default!r}"
            )
        object.__setattr__(instance, field.name, value)


def describe(cls: type[Any]) -> list[ParameterInfo]:
    """The parameters of a dataclass, in order of definition."""
    hints = _hints(cls)
    return [
        ParameterInfo(
            field.name,
            _type_name(hints[field.name]),
            field.default,
            field.metadata[_KEY].help,
            field.metadata[_KEY].unit,
            field.metadata[_KEY].describe(),
        )
        for field in dataclasses.fields(cls)
        if _KEY in field.metadata
    ]


def values(instance: Any) -> dict[str, Any]:
    """The parameters of an instance that differ from their defaults, by name."""
    return {
        field.name: getattr(instance, field.name)
        for field in dataclasses.fields(instance)
        if _KEY in field.metadata and getattr(instance, field.name) != field.default
    }


def suggest(name: str, known: Iterable[str]) -> str:
    """``' (did you mean "X"?)'`` when a known name is near, else ``""``."""
    known = list(known)
    lowered = {candidate.lower(): candidate for candidate in known}
    near = difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=0.6)
    return f' (did you mean "{lowered[near[0]]}"?)' if near else ""


def _hints(cls: type[Any]) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _type_name(hint: Any) -> str:
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return " or ".join("none" if arm is type(None) else _type_name(arm) for arm in typing.get_args(hint))
    if typing.get_origin(hint) is tuple:
        return f"a list of {_type_name(typing.get_args(hint)[0])}s"
    return names.get(hint, getattr(hint, "__name__", str(hint)))


def _coerce(value: Any, hint: Any) -> Any:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return _coerce_union(value, typing.get_args(hint))
    if typing.get_origin(hint) is tuple:
        parts = value.split(",") if isinstance(value, str) else list(value)
        return tuple(
            _coerce(part.strip() if isinstance(part, str) else part, typing.get_args(hint)[0]) for part in parts
        )
    return _coerce_plain(value, hint)


def _coerce_union(value: Any, arms: tuple[Any, ...]) -> Any:
    if type(None) in arms and (value is None or (isinstance(value, str) and value.lower() == "none")):
        return None
    for arm in arms:
        if arm is not type(None):
            try:
                return _coerce(value, arm)
            except (TypeError, ValueError):
                continue
    raise ValueError(value)


def _coerce_plain(value: Any, hint: type) -> Any:
    if hint is bool:
        if isinstance(value, bool):
            return value
        text = str(value).lower()
        if text in _TRUE | _FALSE:
            return text in _TRUE
        raise ValueError(value)
    if hint is int:
        # 3.0 and "3" are whole numbers, 3.5 and True are not.
        number = float(value)
        if isinstance(value, bool) or number != int(number):
            raise ValueError(value)
        return int(value) if isinstance(value, str) and value.lstrip("+-").isdigit() else int(number)
    if hint is float:
        if isinstance(value, bool):
            raise ValueError(value)
        return float(value)
    if issubclass(hint, str):
        if not isinstance(value, str):
            raise TypeError(value)
        return hint(value)
    if isinstance(value, hint):
        return value
    raise TypeError(value)
