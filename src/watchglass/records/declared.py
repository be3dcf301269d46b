"""Frozen records that cost a training process no time when their classes are made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_: Any) -> Any:
        """What type checkers know of records needs nothing at run time."""
        return lambda cls: cls


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class Declared:
    """A record whose fields are declared as those of a frozen dataclass, which it is for :mod:`dataclasses` too.

    :func:`dataclasses.dataclass` compiles five methods for each class, in half a millisecond. These here are compiled
    once, because a training process imports a hundred such classes.
    """

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    _fields: ClassVar[Mapping[str, Field[Any]]]

    def __init_subclass__(cls) -> None:
        dataclass(init=False, repr=False, eq=False)(cls)
        cls._fields = {each.name: each for each in fields(cls)}

    def __init__(self, *values: Any, **named: Any) -> None:
        given = dict(zip(self._fields, values, strict=False)) | named
        if len(given) < len(values) + len(named) or not given.keys() <= self._fields.keys():
            wrong = ", ".join([*map(repr, values), *(f"{name}={value!r}" for name, value in named.items())])
            raise TypeError(f"{type(self).__name__} has the fields {', '.join(self._fields)} but got {wrong}")
        own = self.__dict__
        for name, each in self._fields.items():
            own[name] = given[name] if name in given else each.default if each.default is not MISSING else _made(each)
        self.__post_init__()

    def __post_init__(self) -> None:
        """Raise a ValueError for values that the fields must not have."""

    def __repr__(self) -> str:
        return f"{type(self).__qualname__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"

    def __eq__(self, other: object) -> bool:
        return vars(self) == vars(other) if type(self) is type(other) else NotImplemented

    def __hash__(self) -> int:
        return hash((type(self), *vars(self).values()))

    def __setattr__(self, name: str, value: Any) -> None:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> None:
        raise FrozenInstanceError(f"cannot delete field {name!r}")


class InColumns(Declared):
    """A part of which facts have many: stored as a list for each field, and not as a mapping for each part."""


def _made(declared: Field[Any]) -> Any:
    if declared.default_factory is MISSING:
        raise TypeError(f"the field {declared.name} is required but was not given")
    return declared.default_factory()
