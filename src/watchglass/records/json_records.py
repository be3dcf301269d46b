"""Records as JSON and back: between processes of watchglass, and in the files of a run."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache, partial
from typing import Any, TypeVar, Union, get_args, get_origin

from watchglass.records.declared import Declared, InColumns

_Record = TypeVar("_Record")
_PLAIN = (str, int, float, bool, type(None))

#: What :func:`from_json` raises for data that are no such record.
FAULTS = (TypeError, ValueError, KeyError, AttributeError, OverflowError)


def as_json(value: Any) -> Any:
    """A record, with the records in it, as plain JSON types; NaN and infinities stay numbers.

    A mapping whose keys are not all text becomes a list of pairs. A field of a :class:`Declared` that is None is left
    out.
    """
    if type(value) in _PLAIN:
        return value
    if isinstance(value, Declared):
        return {name: as_json(each) for name, each in vars(value).items() if each is not None}
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value):
        return value.to_json() if hasattr(value, "to_json") else record_as_json(value)
    if isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value):
            return {key: as_json(each) for key, each in value.items()}
        return [[as_json(key), as_json(each)] for key, each in value.items()]
    if isinstance(value, (list, tuple)):
        if value and isinstance(value[0], InColumns):
            return {name: [getattr(each, name) for each in value] for name in vars(value[0])}
        return [as_json(each) for each in value]
    return value


def record_as_json(record: Any) -> dict[str, Any]:
    """The fields of a record as plain JSON types, for its method ``to_json``."""
    return {field.name: as_json(getattr(record, field.name)) for field in fields(record)}


def from_json(kind: type[_Record], data: Any) -> _Record:
    """The record of a kind that :func:`as_json` gave; unknown keys are ignored, and missing ones have their defaults.

    What a :class:`Declared` has with another type has its default, too.

    Raises:
        TypeError, ValueError, KeyError, AttributeError, OverflowError: It is none.
    """
    record: _Record = _reader(kind)(data)  # type: ignore[arg-type]
    return record


def record_from_json(kind: type[_Record], data: Any) -> _Record:
    """The same for a class with its own ``from_json``, which calls this."""
    record: _Record = _of_class(kind)(data)  # type: ignore[arg-type]
    return record


@cache
def _reader(kind: Any) -> Callable[[Any], Any]:
    """Reads a stored value of this type; raises one of the faults for any other."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return partial(_first, [_reader(part) for part in parts if part is not type(None)], type(None) in parts)
    if origin is tuple and isinstance(parts[0], type) and issubclass(parts[0], InColumns):
        return partial(_columns, parts[0], _of_fields(parts[0]))
    if origin is tuple:
        return partial(_sequence, [_reader(part) for part in parts if part is not Ellipsis], parts[-1] is Ellipsis)
    if origin in (dict, Mapping):
        return partial(_mapping, parts)
    if kind is Any or not isinstance(kind, type):
        return lambda value: value
    if hasattr(kind, "from_json") or issubclass(kind, Enum):
        made: Callable[[Any], Any] = getattr(kind, "from_json", kind)
        return made
    if is_dataclass(kind):
        return _of_class(kind)
    return _whole if kind is int else partial(_typed, (int, float) if kind is float else (kind,))


@cache
def _of_class(kind: Any) -> Callable[[Any], Any]:
    if issubclass(kind, Declared):
        return partial(_declared, kind, _of_fields(kind))
    needed = {each.name for each in fields(kind) if each.default is MISSING and each.default_factory is MISSING}
    return partial(_record, kind, _of_fields(kind), needed)


def _of_fields(kind: Any) -> dict[str, Callable[[Any], Any]]:
    from watchglass.records.fields_of_classes import field_types  # here, for a training process only writes records

    return {name: _reader(each) for name, each in field_types(kind).items()}


def _typed(allowed: tuple[type, ...], value: Any) -> Any:
    if type(value) not in allowed:
        raise TypeError(value)
    return value


def _whole(value: Any) -> int:
    if type(value) is not int or not -1 << 63 <= value < 1 << 63:  # more than tables and arrays have room for
        raise TypeError(value)
    return value


def _first(readers: list[Callable[[Any], Any]], optional: bool, value: Any) -> Any:
    if optional and value is None:
        return None
    for reader in readers:
        try:
            return reader(value)
        except FAULTS:  # suppress() takes twice the time, and columns have many values
            pass
    raise TypeError(value)


def _sequence(readers: list[Callable[[Any], Any]], any_length: bool, value: Any) -> tuple[Any, ...]:
    if not isinstance(value, (list, tuple)):
        raise TypeError(value)
    if any_length:
        return tuple(map(readers[0], value))
    return tuple(reader(each) for reader, each in zip(readers, value, strict=True))


def _mapping(parts: tuple[Any, Any], data: Any) -> dict[Any, Any]:
    key, value = map(_reader, parts)
    pairs = data if isinstance(data, list) and parts[0] is not str else _typed((dict,), data).items()
    return {key(name): value(each) for name, each in pairs}


def _columns(kind: type[InColumns], readers: Mapping[str, Callable[[Any], Any]], data: Any) -> tuple[InColumns, ...]:
    if data == []:
        return ()
    columns = [map(reader, _typed((list,), _typed((dict,), data)[name])) for name, reader in readers.items()]
    return tuple(kind(*row) for row in zip(*columns, strict=True))


def _record(kind: Any, readers: Mapping[str, Callable[[Any], Any]], needed: set[str], data: Any) -> Any:
    given = _typed((dict,), data)
    if missing := needed - given.keys():
        raise KeyError(*missing)
    return kind(**{name: read(given[name]) for name, read in readers.items() if name in given})


def _declared(kind: type[Declared], readers: Mapping[str, Callable[[Any], Any]], data: Any) -> Declared:
    known = {}
    for name in readers.keys() & _typed((dict,), data).keys():
        try:
            known[name] = readers[name](data[name])
        except FAULTS:
            pass
    return kind(**known)
