"""docs/first-bad-module.md: its example says what the page says, and its reasons are those of the code."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from watchglass.capture.limits import DEFAULT_LIMITS
from watchglass.records import COMPILED_MODEL

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "first-bad-module.md").read_text(encoding="utf-8")
CODE = ROOT / "src" / "watchglass" / "capture" / "pytorch" / "first_bad"
SOURCE = "".join((CODE / f"{name}.py").read_text() for name in ("search", "rerun", "forward_replay"))
REASONS = re.findall(r"^\| `([a-z][^`]* [^`]*)` \|", TEXT, re.MULTILINE)


def test_the_example_prints_what_the_page_shows(in_tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    (shown,) = re.findall(r"```\n(step .*?)```", TEXT, re.DOTALL)
    (in_tmp_path / "page.py").write_text(example)
    runpy.run_path("page.py")
    assert capsys.readouterr().out == shown


def test_every_reason_is_one_of_the_code() -> None:
    assert len(REASONS) > 15
    joined = re.sub(r'"\s*\n\s*f?"', "", SOURCE).replace("COMPILED_MODEL", COMPILED_MODEL)
    assert [reason for reason in REASONS if reason not in joined] == []


def test_every_reason_of_the_code_is_on_the_page() -> None:
    raised = re.findall(
        r'(?:RefusedError\(|return |_NOT_REPEATED = |_LATE = |_UNTESTED = |last = )f?"([a-z][^"]+ [^"]+)"', SOURCE
    )
    assert len(raised) > 10
    missing = [text for text in raised if not any(reason in text for reason in REASONS)]
    assert missing == []


def test_the_bound_of_steps_is_that_of_the_code() -> None:
    assert f"no more than {DEFAULT_LIMITS.next_steps} steps" in TEXT
