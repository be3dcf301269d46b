"""``watchglass rules --coverage`` says which rules a real training run fires, as the tests of real runs do."""

from __future__ import annotations

import json

import pytest

from real_runs import suites
from watchglass.cli import main
from watchglass.rules import BUILT_IN


def test_the_live_rules_are_those_with_tests_of_real_runs() -> None:
    live = {name for name, each in BUILT_IN.items() if not each.built_only}
    assert live == {suite.rule for suite in suites()}, "a rule without a real run says why, in BuiltInRule.built_only"


def test_every_rule_is_listed_with_its_coverage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "--coverage", "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rules"]
    assert [row["rule"] for row in rows] == list(BUILT_IN)
    assert all((row["coverage"] == "live") is not bool(row["reason"]) for row in rows)
    assert main(["rules", "--coverage"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for row in rows:
        assert any(line.split()[:1] == [row["rule"]] and row["coverage"] in line for line in lines)


def test_coverage_is_about_all_rules(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "DeadRelu", "--coverage"]) == 2
    assert "--coverage takes no NAME" in capsys.readouterr().err
