"""docs/scoreboard.md and the figures that the pages of the rules show are of one scoring."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from watchglass.config import read_toml
from watchglass.rules import BUILT_IN, rule_names, scored_commit, scores_of

ROW = re.compile(r"^\| (\w+) \| (\d+) of (\d+) \| (\d+) % ", re.MULTILINE)


@pytest.fixture(scope="module")
def page(repository: Path) -> str:
    return (repository / "docs" / "scoreboard.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("half", ["development", "held-out"])
def test_the_page_has_the_figures_of_the_rules(page: str, half: str) -> None:
    section = page.split(f"## The {half} half")[1].split("### By rule")[1].split("\n##")[0]
    rows = {name: tuple(map(int, figures)) for name, *figures in ROW.findall(section)}
    scores = {name: score for name in BUILT_IN for score in scores_of(name) if score.half == half}
    assert rows == {
        name: (score.found, score.sick, round(100 * score.alarms / score.healthy)) for name, score in scores.items()
    }
    assert rows.keys() >= set(rule_names("default")), "also one without a finding has a row"


def test_both_are_of_one_commit(page: str) -> None:
    assert f"at commit `{scored_commit()}`" in page


def test_a_rule_that_was_not_scored_has_no_scores() -> None:
    assert scores_of("SimilarAcrossRuns") == []
    assert scores_of("nothing") == []


@pytest.fixture
def scoreboard(repository: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(repository / "benchmarks" / "zoo"))
    before = set(sys.modules)
    try:
        yield importlib.import_module("scoreboard")
    finally:  # they have plain names, and no other test means them
        for name in set(sys.modules) - before:
            if str(getattr(sys.modules[name], "__file__", "")).startswith(str(repository / "benchmarks")):
                del sys.modules[name]


def test_a_scoring_writes_what_each_rule_found(scoreboard: ModuleType, tmp_path: Path) -> None:
    judged = [run(half, faulty, rules) for half in ("development", "held-out") for faulty, rules in RUNS]
    scoreboard.write_scores(judged, 2, tmp_path / "scores.toml")
    written = read_toml(tmp_path / "scores.toml", "scores")
    assert written["seeds"] == 2
    for half in written["halves"].values():
        assert (half["sick"], half["healthy"]) == (2, 1)
        assert half["rules"].keys() == {*rule_names("default"), "AllZero"}
        assert half["rules"]["Overfit"] == {"found": 1, "alarms": 1}
        assert half["rules"]["AllZero"] == {"found": 1, "alarms": 0}
        assert half["rules"]["DeadRelu"] == {"found": 0, "alarms": 0}


#: Whether a run is of a faulty program, and the rules that found something.
RUNS = [(True, ("Overfit", "AllZero")), (True, ()), (False, ("Overfit",))]


def test_a_verdict_agrees_if_the_same_fault_most_often_has_this_first_cause(scoreboard: ModuleType) -> None:
    reference = [
        faulty("mlp/constant", "initialization", "identical"),
        faulty("mlp/wide", "initialization", "scale"),
        faulty("cnn/wide", "initialization", "scale"),
        faulty("cnn/slow", "rate", ""),
    ]
    own = [
        faulty("mlp_keras/constant", "initialization", "identical", counterpart="mlp/constant"),
        faulty("mlp_keras/wide", "initialization", "identical", counterpart="mlp/wide"),
        faulty("table_keras/wide", "initialization", "scale", counterpart="table/wide"),
        faulty("table_keras/slow", "rate", "", counterpart="table/slow"),
        faulty("table_keras/other", "only here", "scale", counterpart="table/other"),
    ]
    share = scoreboard.agreement(own, reference)
    assert (share.hits, share.of) == (3, 4)


def faulty(program: str, fault: str, cause: str, counterpart: str = "") -> SimpleNamespace:
    member = SimpleNamespace(id=program, counterpart=counterpart, fault=SimpleNamespace(name=fault))
    return SimpleNamespace(trial=SimpleNamespace(member=member), causes=(cause,) if cause else (), severity="")


def run(half: str, faulty: bool, rules: tuple[str, ...]) -> SimpleNamespace:
    member = SimpleNamespace(half=half, fault="a fault" if faulty else None)
    return SimpleNamespace(trial=SimpleNamespace(member=member), rules=rules)
