"""Facts as they are stored, and what their declarations share: see :mod:`watchglass.records.facts`."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cache, partial
from importlib import import_module
from typing import Any, ClassVar, TypeVar, Union, get_args, get_origin

from watchglass.records.declared import Declared

_Kind = TypeVar("_Kind", bound="DeclaredFact")
_FAULTS = (TypeError, ValueError, KeyError, OverflowError)


@dataclass(frozen=True)
class Fact:
    """An observation of a step or a run that is not a tensor, as it is stored.

    Attributes:
        kind: What was observed, ``"step_skipped"``, ``"first_bad_module"``; see docs/run-format.md for all.
        global_step: Worker's step it belongs to, -1 for the run.
        source: What observed it, for instance ``"GradScaler.step"``.
        data: Plain JSON values. ``model`` is the number of the model that it concerns, if it concerns one.
    """

    kind: str
    global_step: int
    source: str
    data: dict[str, Any] = field(default_factory=dict)

    @property
    def model(self) -> int | None:
        """Number of the model that it concerns; None if it names none."""
        number = self.data.get("model")
        return number if type(number) is int and number >= 0 else None

    def read(self, kind: type[_Kind]) -> _Kind | None:
        """This fact as its declaration has it; None if it is of another kind, or not valid. It is kept.

        For what soon forgets its facts, and reads each of them several times, as rules do.
        """
        if self.kind != kind.KIND:
            return None
        if "_read" not in self.__dict__:
            self.__dict__["_read"] = kind.from_data(self.data)
        read: _Kind | None = self.__dict__["_read"]
        return read

    def to_json(self) -> dict[str, Any]:
        """This fact as plain JSON types."""
        return {"kind": self.kind, "global_step": self.global_step, "source": self.source, "data": self.data}


def read_facts(facts: Iterable[Fact], kind: type[_Kind]) -> list[_Kind]:
    """The facts of a kind as its declaration has them, without those that are not valid."""
    return [read for fact in facts if fact.kind == kind.KIND and (read := kind.from_data(fact.data)) is not None]


class DeclaredFact(Declared):
    """An observation that is not a tensor. Its fields are the data of the stored fact; its docstring says what it is.

    A field that is None is not stored. What a run has not stored, or another program wrote with another type, reads as
    the field's default. A field named ``model`` is the number of the model that the fact is about.

    Args:
        kind: Name of the kind.
        needed_by: For a kind that can be switched off, who needs it: ``"report"``, which shows it, so that it is
            recorded unless the user chooses the facts; ``"rules"`` of the default set; "" for rules beyond them. None
            for a kind that is always recorded.
    """

    KIND: ClassVar[str]
    NEEDED_BY: ClassVar[str | None]
    #: What it costs, and when; "" for a kind that is always recorded.
    COST: ClassVar[str] = ""
    #: What a run that records it and has none has not seen, as a clause; "" where that is not clear.
    UNSEEN: ClassVar[str] = ""

    def __init_subclass__(cls, kind: str, needed_by: str | None = None) -> None:
        super().__init_subclass__()
        cls.KIND, cls.NEEDED_BY = kind, needed_by

    def to_fact(self, source: str, global_step: int = -1) -> Fact:
        """This as it is stored; ``source`` is the observer, step -1 the run."""
        return Fact(self.KIND, global_step, source, self.to_data())

    def to_data(self) -> dict[str, Any]:
        """The data of the stored fact: plain JSON values."""
        data: dict[str, Any] = _plain(self)
        return data

    @classmethod
    def from_data(cls: type[_Kind], data: Mapping[str, Any]) -> _Kind | None:
        """The fact of such data; None if they lack a field without default. Unknown keys are ignored."""
        try:
            fact: _Kind = _reader(cls)(data)  # type: ignore[arg-type]
        except _FAULTS:
            return None
        return fact


class InColumns(Declared):
    """A part of which facts have many: stored as a list for each field, and not as a mapping for each part."""


def declared_kinds() -> dict[str, type[DeclaredFact]]:
    """All kinds of facts by name; imports all."""
    for name in ("facts", "functions", "module_times", "operators", "windows"):
        import_module(f"{__package__}.{name}")
    ours = [kind for kind in DeclaredFact.__subclasses__() if kind.__module__.startswith(f"{__package__}.")]
    return {kind.KIND: kind for kind in sorted(ours, key=lambda each: each.KIND)}


def _plain(value: Any) -> Any:
    if isinstance(value, Declared):
        return {name: _plain(each) for name, each in vars(value).items() if each is not None}
    if isinstance(value, (list, tuple)):
        if value and isinstance(value[0], InColumns):
            return {name: [getattr(each, name) for each in value] for name in vars(value[0])}
        return [_plain(each) for each in value]
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    return value.value if isinstance(value, Enum) else value


@cache
def _reader(kind: Any) -> Callable[[Any], Any]:
    """Reads a stored value of this type; raises one of the faults for any other."""
    from watchglass.records.fields_of_classes import field_types  # here, for a training process only writes facts

    origin, parts = get_origin(kind), get_args(kind)
    if kind is Any:
        return lambda value: value
    if isinstance(kind, type) and issubclass(kind, Declared):
        return partial(_record, kind, {name: _reader(each) for name, each in field_types(kind).items()})
    if origin in (Union, types.UnionType):
        return partial(_first, [_reader(part) for part in parts if part is not type(None)], type(None) in parts)
    if origin is tuple and isinstance(parts[0], type) and issubclass(parts[0], InColumns):
        return partial(_columns, parts[0], {name: _reader(each) for name, each in field_types(parts[0]).items()})
    if origin is tuple:
        return partial(_sequence, [_reader(part) for part in parts if part is not Ellipsis], parts[-1] is Ellipsis)
    if origin is not None:
        return partial(_mapping, *map(_reader, parts))
    return partial(_typed, (int, float) if kind is float else (kind,))


def _typed(allowed: tuple[type, ...], value: Any) -> Any:
    if type(value) not in allowed:
        raise TypeError(value)
    return value


def _first(readers: list[Callable[[Any], Any]], optional: bool, value: Any) -> Any:
    if optional and value is None:
        return None
    for reader in readers:
        try:
            return reader(value)
        except _FAULTS:  # suppress() takes twice the time, and columns have many values
            pass
    if not optional:
        raise TypeError(value)
    return None


def _sequence(readers: list[Callable[[Any], Any]], any_length: bool, value: Any) -> tuple[Any, ...]:
    if not isinstance(value, (list, tuple)):
        raise TypeError(value)
    if any_length:
        return tuple(map(readers[0], value))
    return tuple(reader(each) for reader, each in zip(readers, value, strict=True))


def _mapping(key: Callable[[Any], Any], value: Callable[[Any], Any], data: Any) -> dict[Any, Any]:
    return {key(name): value(each) for name, each in _typed((dict,), data).items()}


def _columns(kind: type[InColumns], readers: Mapping[str, Callable[[Any], Any]], data: Any) -> tuple[InColumns, ...]:
    if data == []:
        return ()
    columns = [map(reader, _typed((list,), _typed((dict,), data)[name])) for name, reader in readers.items()]
    return tuple(kind(*row) for row in zip(*columns, strict=True))


def _record(kind: type[Declared], readers: Mapping[str, Callable[[Any], Any]], data: Any) -> Declared:
    known = {}
    for name in readers.keys() & _typed((dict,), data).keys():
        try:
            known[name] = readers[name](data[name])
        except _FAULTS:
            pass
    return kind(**known)
