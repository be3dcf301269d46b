"""Types of the fields of dataclasses, which annotations name in any of the ways of Python 3.10 and later."""

from __future__ import annotations

from dataclasses import dataclass, make_dataclass
from typing import Any, ClassVar

import pytest

from watchglass.records import Severity, field_types


@dataclass
class Base:
    """With a plain ``ClassVar``, which Python 3.10 does not resolve."""

    kind: ClassVar = "base"
    count: int | None = None
    severity: Severity = Severity.INFO


@dataclass
class Narrowed(Base):
    """Another type for a field, another field, and an annotation that is no field's and names nothing."""

    other: ClassVar[Missing]  # type: ignore[name-defined]  # noqa: F821
    count: int = 1
    names: tuple[str, ...] = ()


def test_fields_have_their_types_and_class_variables_none() -> None:
    assert field_types(Base) == {"count": int | None, "severity": Severity}
    assert field_types(Narrowed) == {"count": int, "severity": Severity, "names": tuple[str, ...]}


def test_types_may_be_given_as_objects() -> None:
    made: Any = make_dataclass("made", [("size", float), ("label", "str")])
    assert field_types(made) == {"size": float, "label": str}


def test_a_type_that_is_not_there_is_an_error() -> None:
    made: Any = make_dataclass("made", [("size", "Nowhere")])
    with pytest.raises(NameError, match="Nowhere"):
        field_types(made)
