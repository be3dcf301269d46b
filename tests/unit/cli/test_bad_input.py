"""Bad input: one line that names the value and the cure, exit status 2, nothing touched, no traceback unless asked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer

from command_line import Said, Watchglass
from watchglass.cli.failure import failing_in_one_line


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("print('trained')")
    return tmp_path / "train.py"


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["run"], "SCRIPT is missing; usage: watchglass run [OPTIONS] train.py [ARGS]"),
        (["run", "trian.py"], 'script trian.py does not exist in {folder} (did you mean "train.py"?)'),
        (["run", "--evaluator", "none", "--stop-on", "error", "train.py"], "omit --evaluator none, or pass --stop-on"),
        (["run", "--calibration", "sagemakr", "train.py"], "--calibration must be one of default, sagemaker but got"),
        (["run", "-m", "nope.train"], "no module named 'nope' was found from {folder}"),
        (["run", "--save-interval", "0", "train.py"], "--save-interval must be >= 1 but got '0'"),
        (
            ["run", "--save-interval", "often", "train.py"],
            "--save-interval must be a whole number or none but got 'often'",
        ),
        (["run", "--save-interval", "inf", "train.py"], "--save-interval must be a whole number or none but got 'inf'"),
        (
            ["run", "--planned-steps", "1e999", "train.py"],
            "--planned-steps must be a whole number or none but got '1e9",
        ),
        *(
            (["run", "--no-profiler", *words, "train.py"], f"use either --no-profiler or {words[0]}, not both")
            for words in (
                ["--profile-steps", "1:2"],
                ["--keep-traces"],
                ["--python-profile", "1:2"],
                ["--module-times"],
                ["--sample-interval", "1"],
            )
        ),
        (["run", "--planned-steps", "-1", "train.py"], "--planned-steps must be >= 1 but got '-1'"),
        (["run", "--overhead-budget", "0", "train.py"], "--overhead-budget must be a percentage above 0"),
        (["run", "--overhead-budget", "nan", "train.py"], "at most 100 but got 'nan'"),
        (["run", "--config", "nope.toml", "train.py"], "configuration file nope.toml does not exist"),
        (["run", "--config", "thesis", "train.py"], "configuration file thesis is a folder"),
        (["run", "--config", "thesis/chapter", "train.py"], "thesis/chapter: is not valid TOML: "),
        (["run", "--config", "bad.toml", "train.py"], "bad.toml: collections.gradients.save_interval must be >= 1 but"),
        (
            ["run", "--config", "late.toml", "--collection", "gradients:end_step=50", "train.py"],
            "late.toml, with the options given: collections.gradients keeps no step in mode train: together with",
        ),
        (
            ["run", "--config", "late.toml", "--collection", "weights:end_step=5", "train.py"],
            "late.toml, with the options given: collections.weights.end_step must be after start_step (9) but got 5",
        ),
        (["run", "--config", "bad.json", "train.py"], "bad.json: HookParameters.save_steps must be a list of whole"),
        (["run", "--collection", "gradeints", "train.py"], "gradeints is invalid: collection 'gradeints' selects"),
        (
            ["run", "--collection", "mine=(", "train.py"],
            "--collection mine.include_regex '(' does not compile: missing",
        ),
        (["run", "--collection", "mine=", "train.py"], "--collection must be NAME, NAME=REGEX or NAME:SETTING=VALUE,"),
        (
            ["run", "--collection", "weights:3", "train.py"],
            "of --collection weights must be SETTING=VALUE but got '3'",
        ),
        (
            ["run", "--collection", "weights:save_intervall=3", "train.py"],
            '--collection weights.save_intervall is unknown (did you mean "save_interval"?)',
        ),
        (
            ["run", "--collection", "weights:start_step=5,end_step=4", "train.py"],
            "--collection weights.end_step must be after start_step (5) but got 4",
        ),
        (["run", "--collection", "weights:reductions=mean,medium", "train.py"], "but got 'medium' (did you mean"),
        (["run", "--save-raw", "weigths", "train.py"], "--save-raw weigths is invalid: collection 'weigths' selects"),
        (
            ["run", "--save-raw", "weights,", "train.py"],
            "--save-raw must name collections, such as weights,biases, but",
        ),
        (["run", "--save-raw", "", "train.py"], "but got ['']"),
        (["run", ""], "is a folder without a __main__.py; name the script to run"),
        (["run", "--save-raw", "weigths", "train.py"], '(did you mean "weights"?)'),
        (
            ["run", "--config", "late.toml", "--save-raw", "weigths", "train.py"],
            "--save-raw weigths is invalid: collec",
        ),
        (["run", "--config", "late.toml", "--save-interval", "0", "train.py"], "--save-interval must be >= 1 but got"),
        (
            ["run", "--collection", "outputs:modes=eval", "train.py"],
            "--collection outputs.modes must be a table of tables of settings or none but got 'eval'",
        ),
        (
            ["run", "--collection", "outputs:modes=eval,modes.eval.save_interval=1", "train.py"],
            "--collection outputs.modes is given both as a table and as the value 'eval'",
        ),
        (
            ["run", "--collection", "outputs:modes.eval.save_interval=1,modes.eval=3", "train.py"],
            "--collection outputs.modes.eval is given both as a table and as the value '3'",
        ),
        (["run", "--include-workers", "two", "train.py"], "--include-workers must be one of all, one but got 'two'"),
        (["run", "--stop-on", "fire", "train.py"], "--stop-on must be one of error, warning but got 'fire'"),
        (["run", "--stop-on", "error", "--evaluator", "none", "train.py"], "pass --stop-on to watchglass follow"),
        (["run", "--evaluator", "remote", "train.py"], "--evaluator must be one of local, none but got 'remote'"),
        (["run", "--run", "a", "--runs", "b", "train.py"], "not both"),
        (["run", "--run", "ftp://x/y", "train.py"], "begin with one of s3://"),
        (["follow", "healthy", "--rules", "Overfitt"], '(did you mean "Overfit"?)'),
        (["follow", "healthy", "--stop-on", "fire"], "--stop-on must be one of error, warning but got 'fire'"),
        (["follow", "healthy", "--fail-on", "fire"], "--fail-on must be one of warning, error, never but got 'fire'"),
        (["run", "--evaluator=none", "--rules", "Overfit", "train.py"], "pass --rules to watchglass follow"),
        (["run", "--rules", "DeadRelo", "train.py"], 'there is no rule "DeadRelo" (did you mean "DeadRelu"?)'),
        (
            ["run", "--rules", "DeadRelu:windo=3", "train.py"],
            'DeadRelu has no parameter "windo" (did you mean "window"?)',
        ),
        (["run", "--rules", "DeadRelu:window=0", "train.py"], "window must be >= 1 but got '0'"),
        (["run", "--rules", "DeadRelu:window=x", "train.py"], "window must be a whole number but got 'x'"),
        (["run", "--rules", "DeadRelu:window", "train.py"], "must be PARAM=VALUE but got 'window'"),
        (["run", "--rules", "nowhere.py:Mine", "train.py"], 'there is no rule file "nowhere.py"'),
        (["run", "--rules", "broken.py:Mine", "train.py"], "broken.py cannot be imported: ModuleNotFoundError"),
        (
            ["run", "--rules", ",", "train.py"],
            "--rules names no rule; to evaluate no rule use watchglass run --evaluator",
        ),
        (["run", "--report", "{folder}", "train.py"], "is a folder; name the file to write"),
        (["run", "--report", "train.py", "train.py"], "train.py exists; choose another file"),
        (["run", "--run", "thesis", "train.py"], "thesis is not empty and not a run; choose an empty or new folder"),
        (["run", "--run", "train.py/run", "train.py"], "train.py/run"),
        (["check", "nowhere"], "nowhere does not exist or is empty"),
        (["check", "thesis"], "thesis is not a run: it holds no run.json"),
        (["check", "s3://bucket/run"], "s3://bucket/run"),
        (["check", "healthy", "--rules", "Overfitt"], '(did you mean "Overfit"?)'),
        (["check", "healthy", "--fail-on", "fire"], "--fail-on must be one of warning, error, never but got 'fire'"),
        (
            ["check", "healthy", "--format", "xml"],
            "--format must be one of text, json, sarif, junit, markdown, html but got 'xml'",
        ),
        (["show", "thesis"], "thesis is not a run"),
        (["rules", "overfit"], '(did you mean "Overfit"?)'),
        (["report", "healthy", "-o", "train.py"], "train.py exists; choose another file"),
        (["report", "healthy", "-o", "new.pdf"], "must end with .html or .htm but got new.pdf; write new.html"),
        (["report", "healthy", "-o", "new"], "must end with .html or .htm but got new; write new.html"),
        (["report", "--profiler", "healthy", "-o", "new"], ".html or .htm or .json but got new; write new.html"),
        (["run", "--report", "r", "train.py"], "must end with .html or .htm but got r; write r.html"),
        (["report", "healthy", "-o", "new.json"], "must end with .html or .htm but got new.json"),
        (["report", "--profiler", "healthy", "-o", "new/p.PDF"], ".html or .htm or .json but got new/p.PDF"),
        (["run", "--report", "r.md", "train.py"], "must end with .html or .htm but got r.md; write r.html"),
        (["run", "--profiler-report", "r.md", "train.py"], ".html or .htm or .json but got r.md; write r.html"),
        (["report", "thesis", "-o", "new.html"], "thesis is not a run"),
        (["chek"], "No such command 'chek'"),
        (["run", "--rum", "x", "train.py"], "--rum"),
        (["check"], "Missing argument 'RUN'"),
    ],
)
def test_one_line_and_nothing_happens(
    watchglass: Watchglass, script: Path, healthy: Path, tmp_path: Path, words: list[str], error: str
) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter").write_text("words")
    (tmp_path / "broken.py").write_text("import no_such_module")
    (tmp_path / "bad.toml").write_text("[collections.gradients]\nsave_interval = 0")
    (tmp_path / "late.toml").write_text("start_step = 100\ncollections.weights.start_step = 9")
    (tmp_path / "bad.json").write_text('{"HookParameters": {"save_steps": "1,x"}}')
    before = sorted(path for path in tmp_path.rglob("*") if "__pycache__" not in path.parts)
    said = watchglass(*(word.format(folder=tmp_path) for word in words))
    assert error.format(folder=tmp_path) in said.error
    assert sorted(path for path in tmp_path.rglob("*") if "__pycache__" not in path.parts) == before


def test_a_run_of_the_future_is_refused_with_the_cure(watchglass: Watchglass, healthy: Path) -> None:
    manifest = json.loads((healthy / "run.json").read_text())
    (healthy / "run.json").write_text(json.dumps({**manifest, "format": [9, 0]}))
    assert "upgrade watchglass" in watchglass("check", healthy).error


@pytest.mark.parametrize("verb", ["show", "check", "explain"])
def test_a_run_with_a_damaged_manifest_is_an_error_for_each_verb(
    watchglass: Watchglass, healthy: Path, verb: str
) -> None:
    (healthy / "run.json").write_text("{" * 9)
    assert "its run.json is not JSON" in watchglass(verb, healthy).error


def test_debug_shows_where(watchglass: Watchglass) -> None:
    said = watchglass("check", "nowhere", "--debug")
    assert said.status == 2
    assert said.err.startswith("Traceback")
    assert said.err.splitlines()[-1].startswith("watchglass: error: nowhere does not exist")


def test_a_fault_of_ours_is_one_line_too(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as left, failing_in_one_line(debug=False):
        raise KeyError("a\nfault")
    said = Said(left.value.exit_code, *capsys.readouterr())
    assert said.error == r"KeyError: 'a\nfault' (unexpected; --debug shows the traceback)"


def test_nothing_from_outside_steers_the_terminal(watchglass: Watchglass) -> None:
    assert "\x1b" not in watchglass("check", "\x1b[31mred\x07").err
