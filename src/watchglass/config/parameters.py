"""Typed parameters of rules, collections and actions: one validation for code, command line and JSON alike.

A parameter is a dataclass field made by :func:`parameter`. :func:`validate` turns strings from a command line or a
JSON file into the annotated type and checks the limits, so that every source of a parameter gives the same one-line
error. It uses no validation library, because collections and rules are constructed inside the training process, where
the library could conflict with the version that the user needs.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

from watchglass.errors import InvalidValueError
from watchglass.records import field_types

_KEY = "watchglass.parameter"
_TRUE, _FALSE = {"true", "yes", "on", "1"}, {"false", "no", "off", "0"}
_Built = TypeVar("_Built")


class ParameterError(InvalidValueError):
    """An invalid parameter, with the parts of the message: a file and an option each spell the name in their own way.

    Args:
        owner: The object that has the parameter, ``"DeadRelu"``, ``"collection gradients"``.
        name: The parameter, dotted where it is nested: ``"modes.eval.save_interval"``.
        reason: The rest of the sentence, ``"must be >= 1 but got 0"``.
        related: Dotted names of all parameters that contradict each other; empty where ``name`` alone is invalid.
    """

    def __init__(self, owner: str, name: str, reason: str, related: Sequence[str] = ()) -> None:
        super().__init__(f"{owner}: {name} {reason}")
        self.owner = owner
        self.name = name
        self.reason = reason
        self.related = tuple(related)

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.owner, self.name, self.reason, self.related))

    def inside(self, owner: str, place: str) -> ParameterError:
        """The same error, reported by the owner of ``place``, which holds the object with the parameter."""
        related = [f"{place}.{name}" for name in self.related]
        return ParameterError(owner, f"{place}.{self.name}", self.reason, related)


class _Refused(ValueError):
    """A refused value, with a more precise reason than its type."""


@dataclass(frozen=True)
class ParameterInfo:
    """One parameter, for documentation and validation."""

    name: str  #: Field name.
    type: str  #: The annotation, ``float`` or ``int | None``.
    default: Any  #: Its default value.
    help: str  #: One sentence.
    unit: str  #: Unit of the value, "" for none.
    limits: str  #: Readable limits, ``">= 1"``, "" for none.


@dataclass(frozen=True)
class _Limits:
    help: str
    unit: str
    ge: float | None
    le: float | None
    gt: float | None
    lt: float | None
    choices: tuple[Any, ...] | None
    aliases: Mapping[str, str]
    split: bool

    def describe(self) -> str:
        bounds = ((">=", self.ge), (">", self.gt), ("<=", self.le), ("<", self.lt))
        words = [f"{sign} {bound:g}" for sign, bound in bounds if bound is not None]
        if self.choices is not None:
            words.append("one of " + ", ".join(map(str, self.choices)))
        return " and ".join(words)

    def cure(self, value: Any) -> str:
        return suggest(value, map(str, self.choices)) if self.choices is not None and isinstance(value, str) else ""

    def broken_by(self, value: Any) -> bool:
        if value is None:
            return False
        if self.choices is not None and value not in self.choices:
            return True
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return False
        return (
            (self.ge is not None and value < self.ge)
            or (self.gt is not None and value <= self.gt)
            or (self.le is not None and value > self.le)
            or (self.lt is not None and value >= self.lt)
        )


def parameter(
    default: Any,
    *,
    help: str = "",  # noqa: A002  the word that argparse and typer use
    unit: str = "",
    ge: float | None = None,
    le: float | None = None,
    gt: float | None = None,
    lt: float | None = None,
    choices: tuple[Any, ...] | None = None,
    aliases: Mapping[str, str] | None = None,
    split: bool = True,
) -> Any:
    """A dataclass field that :func:`validate` checks and :func:`describe` documents.

    Limits and choices of a list hold for each element, those of a mapping for each key.

    Args:
        default: The default value, which must be valid.
        help: One sentence for people; "" for an undocumented parameter.
        unit: Unit of the value, for instance ``"percent"`` or ``"steps"``.
        ge: A number must be at least this.
        le: A number must be at most this.
        gt: A number must be above this.
        lt: A number must be below this.
        choices: The only values allowed.
        aliases: Other spellings of the choices.
        split: Text for a list is split at commas; otherwise it is one element.
    """
    limits = _Limits(help, unit, ge, le, gt, lt, choices, aliases or {}, split)
    return dataclasses.field(default=default, metadata={_KEY: limits})


def validate(instance: Any, owner: str = "") -> None:
    """Coerce and check every parameter field of a dataclass instance in place; call it from ``__post_init__``.

    Args:
        instance: A dataclass instance, frozen or not.
        owner: Its name in errors; by default the name of its class.

    Raises:
        ParameterError: A value of the wrong type or outside its limits.
    """
    owner = owner or type(instance).__name__
    hints = field_types(type(instance))
    for field in dataclasses.fields(instance):
        limits = field.metadata.get(_KEY)
        if limits is None:
            continue
        received = getattr(instance, field.name)
        try:
            value = _coerce(received, hints[field.name], limits)
        except ParameterError as error:  # of what is nested in it
            raise error.inside(owner, field.name) from None
        except _Refused as error:
            raise ParameterError(owner, field.name, f"{error}{_default(field)}") from None
        except (TypeError, ValueError):
            raise ParameterError(
                owner, field.name, f"must be {_type_name(hints[field.name])} but got {received!r}{_default(field)}"
            ) from None
        for element in value if isinstance(value, (tuple, Mapping)) else (value,):
            if limits.broken_by(element):
                shown = received if element is value else element
                raise ParameterError(
                    owner,
                    field.name,
                    f"must be {limits.describe()} but got {shown!r}{limits.cure(element)}{_default(field)}",
                )
        object.__setattr__(instance, field.name, value)


def build(cls: type[_Built], data: Mapping[str, Any], owner: str = "") -> _Built:
    """A dataclass instance from values by name, as a file or a caller gives them.

    Args:
        cls: The dataclass.
        data: Its fields by name.
        owner: Its name in errors; by default the name of the class.

    Raises:
        ParameterError: An unknown field, with a similar name, or a missing one; and as :func:`validate`.
    """
    owner = owner or cls.__name__
    fields = {field.name: field for field in dataclasses.fields(cls) if field.init}  # type: ignore[arg-type]
    check_names(data, fields, owner)
    for name, field in fields.items():
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if required and name not in data:
            raise ParameterError(owner, name, "is missing")
    return cls(**data)


def check_names(given: Iterable[str], known: Iterable[str], owner: str, prefix: str = "") -> None:
    """Refuse unknown names of parameters.

    Raises:
        ParameterError: An unknown name, with ``prefix`` before it and with a similar name.
    """
    known = list(known)
    for name in given:
        if name not in known:
            near = suggest(str(name), known) or "; known are " + ", ".join(known)
            raise ParameterError(owner, f"{prefix}{name}", f"is unknown{near}")


def describe(cls: type[Any]) -> list[ParameterInfo]:
    """The parameters of a dataclass, in order of definition."""
    hints = field_types(cls)
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
    """The parameters of an instance that differ from their defaults, by name; nested ones as mappings."""
    return {
        field.name: _plain(getattr(instance, field.name))
        for field in dataclasses.fields(instance)
        if _KEY in field.metadata and getattr(instance, field.name) != field.default
    }


def suggest(name: str, known: Iterable[str]) -> str:
    """``' (did you mean "X"?)'`` for a similar known name, else ``""``."""
    known = list(known)
    lowered = {candidate.lower(): candidate for candidate in known}
    near = difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=0.6)
    return f' (did you mean "{lowered[near[0]]}"?)' if near else ""


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return values(value)
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(_plain(item) for item in value)
    return value.value if isinstance(value, Enum) else value


def _default(field: dataclasses.Field[Any]) -> str:
    unnamed = field.default in (dataclasses.MISSING, None) or dataclasses.is_dataclass(field.default)
    return "" if unnamed else f"; the default is {field.default!r}"


def _type_name(hint: Any) -> str:
    if isinstance(hint, type) and issubclass(hint, Enum):
        return "one of " + ", ".join(_words(hint))
    if dataclasses.is_dataclass(hint):
        return "a table of settings"
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return " or ".join("none" if arm is type(None) else _type_name(arm) for arm in typing.get_args(hint))
    if typing.get_origin(hint) is tuple:
        element = _type_name(typing.get_args(hint)[0])
        if element.startswith("one of "):
            return f"a list out of {element.removeprefix('one of ')}"
        return f"a list of {element.removeprefix('a ')}{'' if element == 'text' else 's'}"
    if typing.get_origin(hint) is Mapping:
        return f"a table of {_type_name(typing.get_args(hint)[1]).replace('a table', 'tables')}"
    return names.get(hint, getattr(hint, "__name__", str(hint)))


def _coerce(value: Any, hint: Any, limits: _Limits) -> Any:
    origin, arms = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _coerce_union(value, arms, limits)
    if origin is tuple:
        if isinstance(value, Mapping):
            raise TypeError(value)
        if isinstance(value, str):
            value = [part.strip() for part in value.split(",") if part.strip()] if limits.split else [value]
        return tuple(_coerce(part, arms[0], limits) for part in value)
    if origin is Mapping:
        if not isinstance(value, Mapping):
            raise TypeError(value)
        return {_coerce(key, arms[0], limits): _nested(key, item, arms[1], limits) for key, item in value.items()}
    return _coerce_plain(limits.aliases.get(value, value) if isinstance(value, str) else value, hint)


def _nested(key: Any, value: Any, hint: Any, limits: _Limits) -> Any:
    try:
        return _coerce(value, hint, limits)
    except ParameterError as error:
        raise error.inside(error.owner, str(key)) from None
    except TypeError:
        raise ParameterError("", str(key), f"must be {_type_name(hint)} but got {value!r}") from None


def _coerce_union(value: Any, arms: tuple[Any, ...], limits: _Limits) -> Any:
    wanted = [arm for arm in arms if arm is not type(None)]
    if type(None) in arms and (value is None or (isinstance(value, str) and value.lower() == "none")):
        if value is not None and any(typing.get_origin(arm) is tuple for arm in wanted):
            raise _Refused(f"must be a list but got {value!r}; use [] for an empty list, or omit it for the default")
        return None
    for arm in wanted[:-1]:
        try:
            return _coerce(value, arm, limits)
        except (TypeError, ValueError):
            continue
    return _coerce(value, wanted[-1], limits)


def _coerce_plain(value: Any, hint: type) -> Any:
    if hint is bool:
        if isinstance(value, bool):
            return value
        text = str(value).lower()
        if text in _TRUE | _FALSE:
            return text in _TRUE
        raise ValueError(value)
    if hint is int:
        # 3.0 and "3" are whole numbers; 3.5, True and infinity are not.
        if isinstance(value, bool) or not _number(value).is_integer():
            raise ValueError(value)
        exact = isinstance(value, int) or (isinstance(value, str) and value.lstrip("+-").isdigit())
        return int(value) if exact else int(_number(value))
    if hint is float:
        if isinstance(value, bool):
            raise ValueError(value)
        if not math.isfinite(_number(value)):
            raise _Refused(f"must be a finite number but got {value!r}")
        return _number(value)
    if isinstance(value, hint):
        return value
    if issubclass(hint, Enum):
        return _member(value, hint)
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, Mapping):
            raise TypeError(value)
        return build(hint, value)
    if issubclass(hint, str):
        if not isinstance(value, str):
            raise TypeError(value)
        return hint(value)
    raise TypeError(value)


def _number(value: Any) -> float:
    if isinstance(value, (bytes, bytearray)):
        raise TypeError(value)
    try:
        return float(value)
    except OverflowError:  # a whole number beyond all floats
        return math.inf


def _words(hint: type[Enum]) -> dict[str, Enum]:
    """Members by their names in settings: the value if it is a text, else the name."""
    return {(member.value if isinstance(member.value, str) else member.name).lower(): member for member in hint}


def _member(value: Any, hint: type[Enum]) -> Enum:
    members = _words(hint)
    found = members.get(str(value).strip().lower())
    if found is None:
        raise _Refused(f"must be one of {', '.join(members)} but got {value!r}{suggest(str(value), members)}")
    return found
