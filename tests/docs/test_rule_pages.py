"""docs/rules/ is what `make rule-pages` writes today, and the examples that its pages name work."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from watchglass.cli import main
from watchglass.rules import find_rule, load_knowledge, rule_names, scores_of, symptoms_of

CURE = "run make rule-pages"


@pytest.fixture(scope="module")
def rule_pages(repository: Path) -> Iterator[ModuleType]:
    """The program that writes the pages."""
    sys.path.insert(0, str(repository / "tools"))
    try:
        yield importlib.import_module("rule_pages")
    finally:
        sys.path.remove(str(repository / "tools"))
        sys.modules.pop("rule_pages", None)


@pytest.fixture(scope="module")
def folder(repository: Path) -> Path:
    return repository / "docs" / "rules"


def test_each_rule_has_a_page_and_figures_are_small(folder: Path) -> None:
    assert {path.stem for path in folder.glob("*.md")} == set(rule_names()), CURE
    figures = {path.stem: path.stat().st_size for path in folder.glob("figures/*.svg")}
    assert figures.keys() == set(rule_names()), CURE
    assert max(figures.values()) < 20_000


@pytest.mark.parametrize("name", rule_names())
def test_a_page_is_the_generated_one(rule_pages: ModuleType, folder: Path, name: str) -> None:
    text = (folder / f"{name}.md").read_text(encoding="utf-8")
    assert text == rule_pages.page(name), CURE
    assert (f"](figures/{name}.svg)" in text) is (folder / "figures" / f"{name}.svg").is_file()


def test_the_list_of_rules_links_to_the_pages(rule_pages: ModuleType, repository: Path) -> None:
    text = (repository / "docs" / "rules.md").read_text(encoding="utf-8")
    assert text == rule_pages.list_of_pages(text), CURE
    assert text.count("](rules/") == len(rule_names())


def test_the_terminal_shows_what_the_page_shows(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "Overfit"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for symptom in symptoms_of(find_rule("Overfit")):
        causes = [load_knowledge().cause(each).title for each in load_knowledge().likely([symptom])]
        assert f"{load_knowledge().symptoms[symptom].means}: {'; '.join(causes)}" in shown
    for score in scores_of("Overfit"):
        assert f"{score.half} half: {score.found} of {score.sick} sick runs" in shown
        assert f"{score.alarms} of {score.healthy} healthy runs" in shown
    assert "python examples/rules.py Overfit" in shown


@pytest.mark.parametrize(
    ("name", "reason"),
    [("SimilarAcrossRuns", "its tests train a run on which it fires, and a healthy twin on which it does not"),
     ("CPUBottleneck", "healthy twin made of numbers, because it needs a GPU"), ("Overfit", None)],
)  # fmt: skip
def test_a_rule_that_was_not_scored_says_why(
    capsys: pytest.CaptureFixture[str], folder: Path, name: str, reason: str | None
) -> None:
    assert main(["rules", name]) == 0
    page = (folder / f"{name}.md").read_text(encoding="utf-8")
    for text in (" ".join(capsys.readouterr().out.split()), page):
        assert ("ates are not measured: the zoo measures the default set" in text) is (reason is not None)
        assert reason is None or reason in text


def test_a_rule_that_slow_programs_show_has_them_on_its_page(rule_pages: ModuleType) -> None:
    assert "| checkpoints | checkpoints_stop_training |" in rule_pages.page("StepOutlier")
    assert not [name for name in rule_names("default") if "slow program |" in rule_pages.page(name)]
    shown = [name for name in rule_names() if "slow program |" in rule_pages.page(name)]
    assert set(shown) <= set(rule_names("system"))


def test_a_list_in_a_docstring_is_a_list_of_its_page(rule_pages: ModuleType) -> None:
    text = rule_pages._text("one of these. * a_b holds. * `c_d` and *e*.")
    assert text == "One of these.\n\n- a\\_b holds.\n- `c_d` and \\*e\\*."


@pytest.mark.parametrize(
    ("name", "twin", "status"), [("LearningRateZero", "", 1), ("LearningRateZero", "--healthy", 0)]
)
@pytest.mark.usefixtures("preloaded_python")
def test_an_example_is_one_command(repository: Path, tmp_path: Path, name: str, twin: str, status: int) -> None:
    command = [sys.executable, str(repository / "examples" / "rules.py"), name, *filter(None, [twin])]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == status, ended.stdout + ended.stderr
    # The finding, and not the name of the run or an option.
    assert (f"({name})" in ended.stdout) is (status == 1)


@pytest.mark.usefixtures("preloaded_python")
def test_an_example_of_an_unknown_rule_is_refused(repository: Path, tmp_path: Path) -> None:
    command = [sys.executable, str(repository / "examples" / "rules.py"), "DeadRelo"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "NAME must be a built-in rule but got 'DeadRelo'" in ended.stderr
    assert not list(tmp_path.iterdir())
