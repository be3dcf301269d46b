"""The types of a record's fields, as objects."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from typing import Any, get_type_hints


def _field_types(cls: type[Any]) -> dict[str, Any]:
    """The types of the fields of a dataclass by name, cached because records and rules are made in great number.

    Of the fields only: :func:`typing.get_type_hints` of Python 3.10 refuses a class with a plain ``ClassVar``.

    Raises:
        NameError: An annotation names what its module does not have.
    """
    names = {field.name for field in fields(cls)}
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        annotations = {name: each for name, each in inspect.get_annotations(base).items() if name in names}
        namespace = {"__annotations__": annotations, "__module__": base.__module__}
        found |= get_type_hints(type(base.__name__, (), namespace)) if annotations else {}
    return found


# With its own type: for mypy the result of ``cache`` takes no class.
field_types: Callable[[Any], dict[str, Any]] = cache(_field_types)
