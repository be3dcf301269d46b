"""Rows of tables as Python values need no pandas, for which Arrow asks where times have nanoseconds."""

from __future__ import annotations

import ast
from datetime import datetime, time, timedelta, timezone
from pathlib import Path

import pyarrow as pa

import watchglass
from watchglass.run import Table

SOURCE = Path(watchglass.__file__).parent
#: Methods of Arrow that make Python values.
OF_ARROW = {"to_pylist", "to_pydict", "as_py"}
#: The one place for rows; and lists of whole numbers.
MAY = {"run/table.py", "store/parquet/reading.py"}


def test_times_of_nanoseconds_become_those_of_python() -> None:
    at = 1_700_000_000_123_456_789
    table = pa.table({
        "step": [1, 2],
        "began": pa.array([at, None], pa.timestamp("ns", "UTC")),
        "there": pa.array([at, at], pa.timestamp("ns")),
        "took": pa.array([1_000_999, None], pa.duration("ns")),
        "of_day": pa.array([999, None], pa.time64("ns")),
        "mode": pa.array(["TRAIN", "EVAL"]).dictionary_encode(),
    })  # fmt: skip
    found = Table("steps", lambda: table)
    first, second = found.rows()
    utc = datetime(2023, 11, 14, 22, 13, 20, 123456, timezone.utc)
    took = timedelta(milliseconds=1)
    expected = {
        "step": 1, "began": utc, "there": utc.replace(tzinfo=None), "took": took, "of_day": time(), "mode": "TRAIN",
    }  # fmt: skip
    assert first == expected
    assert [type(value) for value in first.values()] == [int, datetime, datetime, timedelta, time, str]
    assert (second["began"], second["took"], second["of_day"]) == (None, None, None)
    assert "2023-11-14 22:13:20.123456" in found._repr_html_()


def test_rows_are_made_in_one_place() -> None:
    for file in SOURCE.rglob("*.py"):
        if file.relative_to(SOURCE).as_posix() not in MAY:
            nodes = ast.walk(ast.parse(file.read_text(encoding="utf-8")))
            used = {node.attr for node in nodes if isinstance(node, ast.Attribute)} & OF_ARROW
            assert not used, f"{file} uses {used}; Table.rows() needs no pandas"
