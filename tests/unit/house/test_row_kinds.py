"""What records, keeps, encodes, follows and shows rows names none of their kinds: each is declared once for all."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from watchglass.records import ROW_KINDS

#: Files that treat all kinds alike, and the kinds that they name nevertheless: those that are more than rows.
FILES: dict[str, set[str]] = {
    "record/recorder.py": set(), "record/backlog.py": {"STEPS"}, "record/step_queue.py": set(),
    "record/flight_recorder.py": set(), "record/harvesting.py": set(), "record/merging.py": set(),
    "record/step_encoding.py": {"STEPS"}, "store/encoding/rows.py": set(), "evaluate/follower.py": set(),
    "evaluate/engine/unmet_needs.py": set(), "rules/needs.py": set(), "tables/row_log.py": {"STEPS"},
    "testing/adapter_suite.py": set(),
}  # fmt: skip


@pytest.mark.parametrize(("file", "allowed"), FILES.items())
def test_a_file_that_treats_all_kinds_alike_names_none(repository: Path, file: str, allowed: set[str]) -> None:
    kinds = {kind.name.upper() for kind in ROW_KINDS.values()}
    tree = ast.parse((repository / "src" / "watchglass" / file).read_text(encoding="utf-8"))
    imported = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "watchglass.records"
        for alias in node.names
    }
    assert imported & kinds == allowed
