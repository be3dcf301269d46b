"""docs/rules-engine.md tells the truth: its rules work, its tests pass, its parts are the whole."""

from __future__ import annotations

import inspect
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from watchglass.config import RuleSpec
from watchglass.evaluate import replay
from watchglass.evaluate.engine.engine import Engine
from watchglass.evaluate.engine.folding import MOST_FINDINGS
from watchglass.evaluate.engine.runner import MOST_AT_ONCE
from watchglass.evaluate.follower import PLACED
from watchglass.records import Status
from watchglass.tables.history import SERIES_LIMIT
from watchglass.testing import Step, build_run

PAGE = Path(__file__).parents[2] / "docs" / "rules-engine.md"
TEXT = PAGE.read_text(encoding="utf-8")


def section(title: str, language: str = "python") -> list[str]:
    (found,) = re.findall(rf"^## {title}\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL)
    return re.findall(rf"```{language}\n(.*?)```", found, re.DOTALL) if language else [found]


RULE, RUN, TEST = section("In ten lines")
(PRINTED,) = section("In ten lines", "text")
(COMPARES,) = section("Rules that compare with other runs")
(PARTS,) = section("Parts")
*MOMENTS, MOMENTS_TESTED = section("Moments")


@pytest.fixture
def folder(in_tmp_path: Path) -> Path:
    (in_tmp_path / "slow_start.py").write_text(RULE)
    (in_tmp_path / "compares.py").write_text(COMPARES)
    return in_tmp_path


def test_the_rule_of_the_page_prints_what_the_page_says(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "page.py").write_text(RUN)
    runpy.run_path("page.py")
    assert capsys.readouterr().out == PRINTED


def test_the_tests_of_the_page_pass(folder: Path) -> None:
    (folder / "test_slow_start.py").write_text(TEST)
    (folder / "moments_of_the_page.py").write_text("\n".join(MOMENTS))
    (folder / "test_moments.py").write_text(MOMENTS_TESTED)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_slow_start.py", "test_moments.py"]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_rule_that_compares(folder: Path) -> None:
    other = build_run(folder / "other", [Step(scalars={"loss": 1.0}) for _ in range(5)])
    ours = build_run(folder / "ours", [Step(scalars={"loss": 1.0 + n}) for n in range(5)])
    spec = RuleSpec("compares.py:WorseThanBefore", {"other_run": str(other)})
    (finding,) = replay(ours, [spec]).findings
    assert (finding.step, finding.count) == (1, 4)
    assert replay(ours, [RuleSpec("compares.py:WorseThanBefore")]).findings == ()


def test_the_parts_of_the_page_are_the_whole(folder: Path) -> None:
    (folder / "page.py").write_text(PARTS)
    names = runpy.run_path("page.py")
    whole, merged = replay(names["run"], names["rules"]), names["evaluation"]
    assert [f.to_json() for f in merged.findings] == [f.to_json() for f in whole.findings]
    assert merged.statuses == whole.statuses
    assert {f.worker for f in merged.findings} == {"worker_0", "worker_1"}


def test_the_numbers_of_the_page() -> None:
    assert f"{MOST_AT_ONCE:,}" in TEXT
    assert MOST_FINDINGS == 100
    assert "A hundred are kept" in TEXT
    assert f"{SERIES_LIMIT:,} values of each scalar" in TEXT
    assert "`rule_timeout_s` (30 seconds)" in TEXT
    assert inspect.signature(Engine).parameters["rule_timeout_s"].default == 30


def test_the_tables_of_the_page() -> None:
    words = {status.value for status in Status} - {"Stopping", "Stopped"}
    assert set(re.findall(r"^\| `(\w+)` \|", section("Statuses", "")[0], re.MULTILINE)) == words
    assert set(re.findall(r"^\| `(\w+)` \|", section("Observations", "")[0], re.MULTILINE)) == PLACED
