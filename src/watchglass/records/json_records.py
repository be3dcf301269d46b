"""Records as JSON from one process of ours to another, whatever fields they have."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import lru_cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

_Record = TypeVar("_Record")


def as_json(value: Any) -> Any:
    """A record, with the records in it, as plain JSON types; not-a-number and infinities stay what they are."""
    if hasattr(value, "to_json"):
        return value.to_json()
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value):
        return {field.name: as_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): as_json(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json(each) for each in value]
    return value


def from_json(kind: type[_Record], data: Any) -> _Record:
    """The record of a kind that :func:`as_json` gave.

    Raises:
        TypeError, ValueError, KeyError, AttributeError: It is none.
    """
    record: _Record = _read(kind, data)
    return record


def _read(kind: Any, data: Any) -> Any:
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        (kept,) = (each for each in get_args(kind) if each is not type(None))
        return None if data is None else _read(kept, data)
    if origin is tuple:
        return tuple(_read(get_args(kind)[0], each) for each in data)
    if origin is dict:
        return {key: _read(get_args(kind)[1], each) for key, each in data.items()}
    if kind is Any or not isinstance(kind, type):
        return data
    if hasattr(kind, "from_json"):
        return kind.from_json(data)
    if issubclass(kind, Enum):
        return kind(data)
    if is_dataclass(kind):
        hints = _hints(kind)
        return kind(**{name: _read(hints[name], each) for name, each in data.items()})
    return data


@lru_cache(maxsize=64)
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)
