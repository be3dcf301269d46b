"""Runs side by side: the worst first, the settings that differ and no others, names without shared folders."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from watchglass.records import Verdict
from watchglass.run import Run, open_run
from watchglass.testing import Step, build_run
from watchglass.view import (
    FORMATS,
    Disclosure,
    Figure,
    Judged,
    Section,
    Text,
    TextTable,
    blocks_html,
    colour_of,
    differing,
    renderer,
    settings_of,
)
from watchglass.view.comparison import comparison_page, short_names


def run_with(path: Path, **optimizer: float) -> Run:
    facts = {"optimizer": {"type": "SGD", "groups": [{"momentum": 0.9, **optimizer}]}}
    steps = [Step({"loss": 1.0 / (n + 1)}, facts=facts if not n else {}) for n in range(12)]
    return open_run(build_run(path, steps))


@pytest.fixture
def judged(tmp_path: Path, sick_verdict: Verdict, healthy_verdict: Verdict) -> Judged:
    fine, wild = run_with(tmp_path / "fine", lr=0.1), run_with(tmp_path / "wild", lr=50.0)
    gone = replace(healthy_verdict, run=str(tmp_path / "gone"), status="unreadable")
    verdicts = [replace(healthy_verdict, run=fine.location), gone, replace(sick_verdict, run=wild.location)]
    return Judged(verdicts, many=True)


def table_run(judged: Judged) -> str:
    return next(each.run for each in judged.verdicts if each.run.endswith("wild"))


def test_the_page_has_verdicts_losses_differences_and_diagnoses(judged: Judged) -> None:
    head, runs, losses, settings, parting, diagnoses = comparison_page(judged)
    assert isinstance(head, Section)
    assert (head.title, head.tone) == ("3 runs: 1 stopped, 1 unreadable, 1 without issues", "error")
    (table,) = runs.blocks  # type: ignore[attr-defined]
    assert [row[1].text for row in table.rows] == ["wild", "gone", "fine"]
    (figure,) = losses.blocks  # type: ignore[attr-defined]
    assert isinstance(figure, Figure)
    assert [line.name for line in figure.picture.lines] == ["wild", "fine"]  # type: ignore[union-attr]
    # The worst run, which is the first, has its colour of all pages.
    assert figure.picture.lines[0].colour == colour_of(open_run(table_run(judged)).manifest.run_id)  # type: ignore[union-attr]
    differences, same = settings.blocks  # type: ignore[attr-defined]
    assert isinstance(differences, TextTable)
    assert tuple(differences.head) == ("setting", "wild", "fine")
    assert [row[1:] for row in differences.rows] == [("50", "0.1")]
    assert "the same in all runs" in same.content
    assert parting.blocks == [Text("wild and fine do not differ at the steps that both have captured.")]  # type: ignore[attr-defined]
    (opened,) = diagnoses.blocks  # type: ignore[attr-defined]
    assert isinstance(opened, Disclosure)
    assert opened.title.startswith("wild: stopped: 1 error")


def test_numbers_that_differ_have_digits_that_do(tmp_path: Path, healthy_verdict: Verdict) -> None:
    runs = [str(build_run(tmp_path / name, [Step({"loss": loss})] * 3)) for name, loss in (("a", 0.5), ("b", 0.50001))]
    page = comparison_page(Judged([replace(healthy_verdict, run=each) for each in runs], many=True))
    assert "(0.5 and 0.50001)" in blocks_html(page)


def test_of_many_runs_each_is_a_row_of_the_settings(tmp_path: Path, healthy_verdict: Verdict) -> None:
    runs = [run_with(tmp_path / f"{n}", lr=0.1 * n) for n in range(13)]
    judged = Judged([replace(healthy_verdict, run=run.location) for run in runs], many=True)
    _, _, losses, settings, parting, _ = comparison_page(judged)
    (figure,) = losses.blocks  # type: ignore[attr-defined]
    assert figure.caption.endswith("Shown: the first 12 of 13 runs.")
    assert len(parting.blocks) == 11  # type: ignore[attr-defined]
    assert tuple(settings.blocks[0].head) == ("run", "lr")  # type: ignore[attr-defined]
    assert len(settings.blocks[0].rows) == 13  # type: ignore[attr-defined]


def test_options_of_a_command_are_settings(tmp_path: Path) -> None:
    run = run_with(tmp_path / "run")
    manifest = replace(run.manifest, command=("train.py", "--lr", "-0.1", "--fast", "--seed=3", "model=big", "data"))
    run.__dict__["manifest"] = manifest
    found = settings_of(run)
    words = ("script", "--lr", "--fast", "--seed", "model", "argument 1", "optimizer", "momentum")
    assert [found[name] for name in words] == ["train.py", "-0.1", "yes", "3", "big", "data", "SGD", "0.9"]


def test_a_setting_that_one_run_lacks_differs() -> None:
    assert differing([{"a": "1", "b": "2"}, {"a": "1"}, {"a": "1", "c": "3"}]) == ["b", "c"]


def test_names_lack_the_folders_that_all_runs_share() -> None:
    assert short_names(["x/runs/a", "x/runs/b/c"]) == {"x/runs/a": "a", "x/runs/b/c": "b/c"}
    assert short_names(["x/a"]) == {"x/a": "x/a"}


@pytest.mark.parametrize("name", FORMATS)
def test_each_format_shows_one_run_and_many(judged: Judged, sick_run: Run, sick_verdict: Verdict, name: str) -> None:
    one = renderer(name)(Judged([sick_verdict], runs={sick_verdict.run: sick_run}))
    assert "learning rate" in one
    many = renderer(name)(judged)
    for run in ("wild", "gone", "fine"):
        assert run in many
