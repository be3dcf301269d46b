from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from watchglass.config import describe, parameter, suggest, validate
from watchglass.errors import InvalidValueError


@dataclass
class Sample:
    share: float = parameter(0.5, help="a share", unit="ratio", ge=0, le=1)
    count: int = parameter(3, help="a count", ge=1)
    last: int | None = parameter(None, help="an end")
    on: bool = parameter(True, help="a switch")
    names: tuple[str, ...] = parameter((), help="names")
    kind: str = parameter("a", help="a kind", choices=("a", "b"))
    weight: float = parameter(1.0, help="a weight")
    chosen: tuple[str, ...] | None = parameter(None, help="names, or those that hold by default")
    table: Mapping[str, int] | None = parameter(None, help="numbers by name")

    def __post_init__(self) -> None:
        validate(self)


def test_strings_from_a_command_line_become_the_annotated_types() -> None:
    sample = Sample(share="1e-2", count="7", last="12", on="off", names="x, y", kind="b")  # type: ignore[arg-type]
    assert (sample.share, sample.count, sample.last, sample.on, sample.names, sample.kind) == (
        0.01, 7, 12, False, ("x", "y"), "b",
    )  # fmt: skip
    assert Sample(last="none").last is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"share": 1.5}, "Sample: share must be >= 0 and <= 1 but got 1.5"),
        ({"share": float("nan")}, "share must be a finite number but got nan"),
        ({"weight": "inf"}, "weight must be a finite number but got 'inf'"),
        ({"weight": -float("inf")}, "weight must be a finite number but got -inf"),
        ({"weight": 10**400}, "weight must be a finite number but got 1000"),
        ({"share": "much"}, "share must be a number but got 'much'"),
        ({"share": True}, "share must be a number but got True"),
        ({"count": 2.5}, "count must be a whole number but got 2.5"),
        ({"count": float("inf")}, "count must be a whole number but got inf"),
        ({"count": "1e999"}, "count must be a whole number but got '1e999'"),
        ({"last": float("nan")}, "last must be a whole number or none but got nan"),
        ({"count": 0}, "count must be >= 1 but got 0"),
        ({"last": "soon"}, "last must be a whole number or none but got 'soon'"),
        ({"on": "perhaps"}, "on must be true or false but got 'perhaps'"),
        ({"names": {"x": False}}, "names must be a list of text but got {'x': False}"),
        ({"chosen": {"x": 1}}, "chosen must be a list of text or none but got {'x': 1}"),
        ({"chosen": "None"}, "chosen must be a list but got 'None'; use [] for an empty list, or omit it"),
        ({"table": "x"}, "table must be a table of a whole number or none but got 'x'"),
        ({"table": ["x"]}, "table must be a table of a whole number or none but got ['x']"),
        ({"kind": "c"}, "kind must be one of a, b but got 'c'"),
    ],
)
def test_a_bad_value_is_named_with_its_rule_in_one_line(arguments: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        Sample(**arguments)  # type: ignore[arg-type]
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_whole_numbers_are_kept_to_the_last_digit() -> None:
    assert Sample(count=2**53 + 1).count == 2**53 + 1
    assert Sample(count="9007199254740993").count == 2**53 + 1  # type: ignore[arg-type]


def test_description_lists_type_default_and_limits() -> None:
    share, count, last, *_ = describe(Sample)
    assert (share.type, share.default, share.unit, share.limits) == ("a number", 0.5, "ratio", ">= 0 and <= 1")
    assert count.limits == ">= 1"
    assert last.type == "a whole number or none"


def test_near_names_are_suggested_whatever_their_case() -> None:
    assert suggest("deadrelus", ["DeadRelu", "Overfit"]) == ' (did you mean "DeadRelu"?)'
    assert suggest("zzz", ["DeadRelu"]) == ""
