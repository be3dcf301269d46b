"""The suite of rules shows a rule with windows rows of every odd value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from watchglass.records import ROW_KINDS, Field, RowKey, RowKind
from watchglass.rules import Rule, Windows
from watchglass.testing.rule_suite import RuleSuite

SAMPLES = RowKind(
    "readings", 92, (Field("metric", "text"), Field("value", "f64"), Field("cores", "f32", array=True)), RowKey.TIME
)


def test_windows_of_odd_rows_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ROW_KINDS, SAMPLES.number, SAMPLES)
    seen: list[tuple[Any, ...]] = []

    class Looks(Rule):
        streams = Windows(kinds=("readings",), length_s=5)

        def check_window(self, window: Any) -> Any:
            seen.extend(window.rows("readings").tolist())
            return ()

    class Suite(RuleSuite):
        rule = Looks

        def sick(self) -> Any:
            return []

        healthy = sick

    Suite().test_survives_any_data(tmp_path)
    assert [(row[1], np.isnan(row[2]), len(row[3])) for row in seen] == [("", True, 0)] * 2
