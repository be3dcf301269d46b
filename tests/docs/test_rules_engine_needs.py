"""What docs/rules-engine.md says of needs, rule sets and back-tests: its examples run, what it shows is the code's."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from evaluators.backtested import make_runs
from moments import feed
from watchglass.capture.planning.plan import Plan
from watchglass.config import RuleSpec, SessionConfig
from watchglass.evaluate.engine.engine import Engine
from watchglass.rules import RULE_SETS
from watchglass.testing import Step, build_run
from watchglass.testing.rule_suite import views_of

DOCS = Path(__file__).parents[2] / "docs"
TEXT = (DOCS / "rules-engine.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    (found,) = re.findall(rf"^## {title}\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL)
    return str(found)


@pytest.mark.parametrize("title", ["Needs", "Rule sets", "Back-test"])
def test_the_examples_run(title: str, in_tmp_path: Path) -> None:
    if title == "Back-test":
        make_runs(in_tmp_path / "runs", "good", "high")
    examples = re.findall(r"```python\n(.*?)```", section(title), re.DOTALL)
    assert examples
    for example in examples:
        (in_tmp_path / "page.py").write_text(example)
        runpy.run_path("page.py")


def test_the_reason_is_the_one_that_is_shown(run_path: Path) -> None:
    (reason,) = re.findall(r"```text\n(.*?)\n```", section("Needs"))
    plan = Plan(SessionConfig(run="r", collections=["weights", "outputs"])).describe().to_data()  # type: ignore[arg-type]
    engine = Engine([RuleSpec("ExplodingGradient")])
    for view in views_of(build_run(run_path, [Step(facts={"capture_plan": plan}, scalars={"loss": 1.0})])):
        feed(engine, view)
    assert engine.statuses()[0].reason == reason


def test_the_sets_of_the_rules_page_are_those_of_the_code() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|$", (DOCS / "rules.md").read_text(encoding="utf-8"), re.MULTILINE)
    described = dict(rows)
    assert {name: described.get(name) for name in RULE_SETS} == {name: each.help for name, each in RULE_SETS.items()}
