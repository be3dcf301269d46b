"""One name, one class: who reads of a class in a message or a traceback knows which one is meant."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

SOURCES = Path(__file__).resolve().parents[3] / "src" / "watchglass"
#: A calibration's own algorithm has the name of its rule, since its findings are the rule's.
ALGORITHMS = SOURCES / "rules" / "sagemaker"


def test_no_two_files_define_a_class_of_one_name() -> None:
    files = defaultdict(list)
    for file in sorted(SOURCES.rglob("*.py")):
        for node in ast.parse(file.read_text()).body if ALGORITHMS not in file.parents else ():
            if isinstance(node, ast.ClassDef):
                files[node.name].append(str(file.relative_to(SOURCES)))
    assert len(files) > 500
    assert {name: places for name, places in files.items() if len(places) > 1} == {}
