"""Facts as they are stored, and what their declarations share: see :mod:`watchglass.records.facts`."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, is_dataclass
from enum import Enum
from functools import cache
from importlib import import_module
from typing import Any, ClassVar, TypeVar, Union, get_args, get_origin

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
        """This fact as its declaration has it; None if it is of another kind, or not valid."""
        if self.kind != kind.KIND:
            return None
        if "_read" not in self.__dict__:  # several rules read the same fact
            self.__dict__["_read"] = kind.from_data(self.data)
        read: _Kind | None = self.__dict__["_read"]
        return read

    def to_json(self) -> dict[str, Any]:
        """This fact as plain JSON types."""
        return {"kind": self.kind, "global_step": self.global_step, "source": self.source, "data": self.data}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Fact:
        """The fact that :meth:`to_json` gave."""
        return cls(data["kind"], data["global_step"], data["source"], data["data"])


class DeclaredFact:
    """An observation that is not a tensor. A kind is a frozen dataclass; its fields are the data of the stored fact.

    The first sentence of its docstring, its attributes and these constants are what docs/facts.md has of it. A field
    that is None is not stored. What a run has not stored, or another program wrote with another type, reads as the
    field's default. A field named ``model`` is the number of the model that the fact is about.

    Attributes:
        KIND: Name of the kind.
        FROM: What it is observed from.
        WHEN: The steps that have it.
        COST: What it costs, and when; "" for a kind that is always recorded.
        UNSEEN: What a run that records it and has none has not seen, as a clause; "" where that is not clear.
    """

    KIND: ClassVar[str]
    FROM: ClassVar[str] = ""
    WHEN: ClassVar[str] = ""
    COST: ClassVar[str] = ""
    UNSEEN: ClassVar[str] = ""

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


def declared_kinds() -> dict[str, type[DeclaredFact]]:
    """All kinds of facts by name; imports all."""
    import pkgutil  # here, for a training process does not list them

    package = import_module("watchglass.records.facts")
    for module in sorted(pkgutil.iter_modules(package.__path__), key=lambda each: each.name):
        import_module(f"{package.__name__}.{module.name}")
    for name in ("functions", "module_times", "operators", "windows"):
        import_module(f"watchglass.records.{name}")
    ours = [kind for kind in DeclaredFact.__subclasses__() if kind.__module__.startswith(f"{__package__}.")]
    return {kind.KIND: kind for kind in sorted(ours, key=lambda each: each.KIND)}


def _plain(value: Any) -> Any:
    if hasattr(value, "__dataclass_fields__"):
        return {name: _plain(each) for name, each in vars(value).items() if each is not None}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    return value.value if isinstance(value, Enum) else value


@cache
def _reader(kind: Any) -> Callable[[Any], Any]:
    """Reads a stored value of this type; raises one of the faults for any other."""
    from watchglass.records.fields_of_classes import field_types  # here, for a training process only writes facts

    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _of_union([_reader(part) for part in parts if part is not type(None)], type(None) in parts)
    if origin is tuple:
        return _of_tuple([_reader(part) for part in parts if part is not Ellipsis], parts[-1] is Ellipsis)
    if origin is not None:
        return _of_mapping(_reader(parts[0]), _reader(parts[1]))
    if is_dataclass(kind):
        return _of_record(kind, {name: _reader(each) for name, each in field_types(kind).items()})
    return (lambda value: value) if kind is Any else _of_type((int, float) if kind is float else (kind,))


def _of_type(allowed: tuple[type, ...]) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if type(value) not in allowed:
            raise TypeError(value)
        return value

    return read


def _of_union(readers: list[Callable[[Any], Any]], optional: bool) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        for reader in readers:
            try:
                return reader(value)
            except _FAULTS:
                pass
        if not optional:
            raise TypeError(value)
        return None

    return read


def _of_tuple(readers: list[Callable[[Any], Any]], any_length: bool) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if not isinstance(value, (list, tuple)):
            raise TypeError(value)
        if any_length:
            return tuple(map(readers[0], value))
        return tuple(reader(each) for reader, each in zip(readers, value, strict=True))

    return read


def _of_mapping(key: Callable[[Any], Any], value: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def read(data: Any) -> Any:
        if not isinstance(data, Mapping):
            raise TypeError(data)
        return {key(name): value(each) for name, each in data.items()}

    return read


def _of_record(kind: Any, readers: Mapping[str, Callable[[Any], Any]]) -> Callable[[Any], Any]:
    def read(data: Any) -> Any:
        if not isinstance(data, Mapping):
            raise TypeError(data)
        known = {}
        for name, reader in readers.items():
            if name in data:
                try:
                    known[name] = reader(data[name])
                except _FAULTS:
                    pass
        return kind(**known)

    return read
