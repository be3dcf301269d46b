"""Many runs of a folder: found, listed, compared."""

import json
import math

import pytest

from calls import counted_calls
from watchglass.cli import main
from watchglass.errors import InvalidValueError, MissingFileError, NotARunError, UnknownNameError
from watchglass.records import Finding, Mode, RuleStatus, Severity, Status
from watchglass.run import Run, RunSearch, open_run, open_runs
from watchglass.run.runs import runs_of
from watchglass.store import LocalStore, read_manifest
from watchglass.testing import Step, build_run

pytestmark = pytest.mark.own_process


def losses(*values, every=1):
    return [Step({"loss": value} if n % every == 0 else {}) for n, value in enumerate(values)]


@pytest.fixture
def folder(tmp_path):
    found = Finding("0123456789ab", "R", Severity.ERROR, 0, 0, 1, Mode.TRAIN, "worker_0", (), None, None, "m")
    build_run(tmp_path / "runs" / "first", losses(3.0, 2.0, 1.0), journal=[RuleStatus("R", Status.NO_ISSUES_FOUND)])
    build_run(tmp_path / "runs" / "group" / "second", [*losses(5.0, 4.0), Step({"loss": 6.0}, mode=Mode.EVAL)],
              journal=[found])  # fmt: skip
    build_run(tmp_path / "runs" / "group" / "killed", losses(1.0, 0.5, 0.25, every=2), status=None)
    build_run(tmp_path / "runs" / "group" / "empty", [])
    (tmp_path / "runs" / "notes").mkdir()
    (tmp_path / "runs" / "notes" / "text").write_text("x")
    (tmp_path / "runs" / ".hidden").mkdir()
    build_run(tmp_path / "runs" / "first" / "within", losses(9.0))
    return tmp_path / "runs"


def test_runs_are_found_below_a_folder_oldest_first(folder):
    found = open_runs(folder)
    assert found.names == ["first", "group/second", "group/killed", "group/empty"]
    assert len(found) == 4
    assert "group/second" in found
    assert repr(found) == f"Runs({str(folder)!r}: 4 runs)"
    assert [run.location for run in found] == [each.location for each in found.listed]
    assert isinstance(found["first"], Run)
    assert found["group/second"].steps() == found[1].steps() == [0, 1]
    with pytest.raises(UnknownNameError, match='did you mean "first"'):
        found["frist"]
    with pytest.raises(UnknownNameError, match="4 runs"):
        found[4]


def test_a_table_has_a_row_for_each(folder):
    rows = {row["name"]: row for row in open_runs(folder).to_arrow().to_pylist()}
    first, second, killed = rows["first"], rows["group/second"], rows["group/killed"]
    assert (first["state"], first["train_steps"], first["loss"], first["findings"], first["worst"]) == (
        "finished", 3, 1.0, 0, None
    )  # fmt: skip
    assert (second["eval_steps"], second["validation_loss"], second["findings"], second["worst"]) == (
        1,
        6.0,
        1,
        "error",
    )
    assert (killed["state"], killed["loss"], killed["attempts"], killed["workers"]) == ("lost", 0.25, 1, 1)
    assert killed["findings"] is None  # no rule was evaluated
    assert (rows["group/empty"]["train_steps"], rows["group/empty"]["loss"]) == (0, None)
    assert first["created"] <= second["created"]
    assert len(open_runs(folder).to_pandas()) == len(open_runs(folder).to_polars()) == 4
    counted = open_runs(folder).table().sql("select count(*) as n from runs where findings > 0").to_arrow()
    assert counted["n"].to_pylist() == [1]


def test_a_row_says_how_many_models_a_run_has_and_gives_the_losses_of_the_first(tmp_path):
    def turn(model, loss):
        prefix = f"model_{model + 1}/" if model else ""
        return Step({f"{prefix}loss": loss}, model=model), Step({f"{prefix}loss": -loss}, mode=Mode.EVAL, model=model)

    build_run(tmp_path / "run", [*turn(0, 1.0), *turn(1, 2.0)])
    (row,) = open_runs(tmp_path).to_arrow().to_pylist()
    assert (row["models"], row["loss"], row["validation_loss"]) == (2, 1.0, -1.0)


def test_courses_are_compared_side_by_side(folder):
    table = open_runs(folder).compare("loss").to_pandas()
    assert list(table.columns) == ["step", "first", "group/second", "group/killed"]
    assert table["step"].tolist() == [0, 1, 2]
    assert table["first"].tolist() == [3.0, 2.0, 1.0]
    assert table["group/second"].tolist()[:2] == [5.0, 4.0]
    assert math.isnan(table["group/second"][2])
    assert math.isnan(table["group/killed"][1])
    assert open_runs(folder).compare("loss", Mode.EVAL).to_pandas()["group/second"].tolist() == [6.0]
    with pytest.raises(UnknownNameError, match=r"no run of .* has a scalar 'reward'"):
        open_runs(folder).compare("reward")


def test_a_run_that_cannot_be_read_is_listed_with_its_problem(folder):
    manifest = folder / "first" / "run.json"
    content = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**content, "format": [99, 0]}))
    (folder / "broken").mkdir()
    (folder / "broken" / "run.json").write_text("{")
    found = open_runs(folder)
    assert "2 of them not readable" in repr(found)
    problems = {row["name"]: row["problem"] for row in found.to_arrow().to_pylist()}
    assert "upgrade watchglass" in problems["first"]
    assert "not JSON" in problems["broken"]
    assert problems["group/second"] is None
    assert len(list(found)) == 3
    assert "first" not in found.compare("loss").columns
    assert "upgrade watchglass" in found._repr_html_()
    with pytest.raises(NotARunError):
        found["broken"]


def test_a_run_itself_is_the_only_one(folder):
    found = open_runs(folder / "first")
    assert found.names == ["first"]
    assert found[0].steps() == [0, 1, 2]


def test_a_folder_without_runs_and_one_that_is_too_large_are_refused(tmp_path, folder):
    with pytest.raises(MissingFileError, match="holds no runs"):
        open_runs(folder / "notes")
    with pytest.raises(MissingFileError, match="holds no runs"):
        open_runs(tmp_path / "nothing")
    with pytest.raises(InvalidValueError, match="more than 3 folders"):
        runs_of(str(folder), RunSearch(LocalStore(folder), most_folders=3))


def test_listing_opens_nothing_but_manifests(folder):
    with counted_calls() as calls:
        assert len(open_runs(folder)) == 4
    assert (calls[read_manifest.__code__], calls[open_run.__code__]) == (4, 0)


def test_show_lists_the_runs_of_a_folder(folder, capsys):
    assert main(["show", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert "4 runs" in shown
    (line,) = [line for line in shown.splitlines() if line.startswith("group/second")]
    assert line.split()[-3:] == ["1,", "worst", "error"]
    ends = {line.split()[0]: line.rstrip().split("  ")[-1].strip() for line in shown.splitlines() if line[:1] in "fg"}
    assert (ends["first"], ends["group/killed"]) == ("none", "not evaluated")
    assert main(["show", str(folder / "notes")]) == 2
    assert "is not a run" in capsys.readouterr().err


@pytest.mark.parametrize(("columns", "fits"), [(200, True), (80, False)])
def test_show_has_the_settings_that_differ_as_far_as_they_fit(tmp_path, capsys, monkeypatch, columns, fits):
    for name, rate in (("a", 0.25), ("b", 0.125)):
        optimizer = {"type": "SGD", "groups": [{"lr": rate}]}
        build_run(tmp_path / name, losses(2.0, 1.0), facts={"optimizer": optimizer})
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(["show", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert ("0.125" in shown) is fits
    assert ("these differ too: lr; watchglass report of the folder shows them" in shown) is not fits
