"""Records as JSON between processes of watchglass, for records with any fields."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from itertools import repeat
from typing import Any, TypeVar, Union, get_args, get_origin

from watchglass.records.fields_of_classes import field_types

_Record = TypeVar("_Record")


def as_json(value: Any) -> Any:
    """A record, with the records in it, as plain JSON types; NaN and infinities stay numbers.

    A mapping whose keys are not all text becomes a list of pairs.
    """
    if hasattr(value, "to_json"):
        return value.to_json()
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value):
        return record_as_json(value)
    if isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value):
            return {key: as_json(each) for key, each in value.items()}
        return [[as_json(key), as_json(each)] for key, each in value.items()]
    if isinstance(value, (list, tuple)):
        return [as_json(each) for each in value]
    return value


def record_as_json(record: Any) -> dict[str, Any]:
    """The fields of a record as plain JSON types, for its method ``to_json``."""
    return {field.name: as_json(getattr(record, field.name)) for field in fields(record)}


def from_json(kind: type[_Record], data: Any) -> _Record:
    """The record of a kind that :func:`as_json` gave.

    Raises:
        TypeError, ValueError, KeyError, AttributeError: It is none.
    """
    record: _Record = _read(kind, data)
    return record


def record_from_json(kind: type[_Record], data: Mapping[str, Any]) -> _Record:
    """The record whose fields :func:`record_as_json` gave, for its method ``from_json``; further keys are ignored.

    Raises:
        TypeError, ValueError, KeyError, AttributeError: It is none.
    """
    hints = field_types(kind)
    return kind(**{field.name: _read(hints[field.name], data[field.name]) for field in fields(kind)})  # type: ignore[arg-type]


def _read(kind: Any, data: Any) -> Any:
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        (kept,) = (each for each in parts if each is not type(None))
        return None if data is None else _read(kept, data)
    if origin is tuple:
        return tuple(map(_read, repeat(parts[0]) if parts[-1] is Ellipsis else parts, data))
    if origin in (dict, Mapping):
        pairs = data.items() if isinstance(data, dict) else data
        return {_read(parts[0], key): _read(parts[1], each) for key, each in pairs}
    if kind is Any or not isinstance(kind, type):
        return data
    if hasattr(kind, "from_json"):
        return kind.from_json(data)
    if issubclass(kind, Enum):
        return kind(data)
    if is_dataclass(kind):
        return record_from_json(kind, data)
    return data
