"""docs/custom-rules.md tells the truth: its rules work, its tests pass, its tables are those of the code."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from watchglass.cli import main
from watchglass.config import RuleSpec
from watchglass.evaluate import replay
from watchglass.records import ModuleKind
from watchglass.rules import built_in_knowledge, documentation, find_rule
from watchglass.tables import Statistics, StepView
from watchglass.testing import Step, build_run

PAGE = Path(__file__).parents[2] / "docs" / "custom-rules.md"
TEXT = PAGE.read_text(encoding="utf-8")
RULE, TEST, *EXAMPLES = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


@pytest.fixture
def rule_file(tmp_path: Path) -> Path:
    path = tmp_path / "my_rules.py"
    path.write_text(RULE)
    return path


def test_the_rule_of_the_page_works(rule_file: Path, run_path: Path) -> None:
    steps = [Step(statistics={"a.output": [1e-6, 0.0], "b.output": [1.0, 0.0]}) for _ in range(4)]
    run = build_run(run_path, steps, modules={"a": ModuleKind.LINEAR, "b": ModuleKind.LINEAR})
    (finding,) = replay(run, [RuleSpec(f"{rule_file}:QuietLayers")]).findings
    assert (finding.step, finding.count, finding.tensors) == (2, 2, ("a.output",))
    documented = documentation(find_rule(f"{rule_file}:QuietLayers"))
    assert documented.sections["Usual causes"] == "weights that are too small, inputs that were scaled twice."


def passed(folder: Path, *tests: str) -> int:
    """How many tests of these files passed; all must."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests],
        cwd=folder, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.search(r"(\d+) passed", done.stdout)
    assert found is not None
    return int(found[1])


def test_the_test_of_a_new_rule_passes(in_tmp_path: Path) -> None:
    assert main(["rules", "new", "SlowStart"]) == 0
    assert passed(in_tmp_path, "test_slow_start.py") == 10


def test_the_test_of_the_page_passes(rule_file: Path) -> None:
    (rule_file.parent / "test_my_rules.py").write_text(TEST)
    assert passed(rule_file.parent, "test_my_rules.py") == 10


def test_the_tests_of_the_examples_pass(tmp_path: Path) -> None:
    """Each example is a file with a rule, then one with its test; their first lines have the names."""
    files = {text.split(maxsplit=2)[1]: text for text in EXAMPLES}
    assert len(files) == len(EXAMPLES) == 10
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert passed(tmp_path, *sorted(name for name in files if name.startswith("test_"))) == 5 * 10


def test_what_a_view_gives_exists() -> None:
    for name in re.findall(r"`view\.(\w+)", TEXT):
        assert hasattr(StepView, name) or name in StepView.__dataclass_fields__, name
    columns = re.search(r"arrays over tensors: `([^`]*)`, and derived `([^`]*)`", TEXT)
    assert columns is not None
    for name in f"{columns[1]} {columns[2]}".split():
        assert name in vars(Statistics), name


def test_named_symptoms_and_causes_exist() -> None:
    assert "learning_rate_too_high" in built_in_knowledge().links["gradient_growth"]
    assert "poor_initialization_scale" in built_in_knowledge().causes
