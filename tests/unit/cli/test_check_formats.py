"""``watchglass check``: formats, files, many runs, and runs of which records are missing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from xml.etree import ElementTree as ET

import jsonschema
import pytest

from command_line import Watchglass, training
from sarif_structure import sarif_of
from watchglass.cli import main
from watchglass.store import FrameKind, scan
from watchglass.testing import RunBuilder, build_run

RULES = '''
from watchglass import Rule

class Raises(Rule):
    """Never comes to an end."""

    def check(self, view):
        raise RuntimeError("a fault in the rule")
'''


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A folder with a healthy run, a broken one, a killed one, and one that cannot be read."""
    modules = {"fc": "Linear"}
    build_run(tmp_path / "runs" / "a-healthy", training(), modules=modules)
    build_run(tmp_path / "runs" / "b-broken", training(broken_at=80), modules=modules)
    build_run(tmp_path / "runs" / "c" / "killed", training(), modules=modules, status=None)
    shutil.copytree(tmp_path / "runs" / "a-healthy", tmp_path / "runs" / "d-newer")
    manifest = tmp_path / "runs" / "d-newer" / "run.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "format": [7, 0]}))
    return tmp_path / "runs"


def schema(watchglass: Watchglass) -> jsonschema.Draft202012Validator:
    said = watchglass("check", "--schema")
    assert (said.status, said.err) == (0, "")
    return jsonschema.Draft202012Validator(json.loads(said.out))


@pytest.mark.parametrize("run", ["healthy", "broken", "killed"])
def test_real_output_is_what_the_printed_schema_says(
    watchglass: Watchglass, run: str, request: pytest.FixtureRequest
) -> None:
    path = request.getfixturevalue(run)
    checker = schema(watchglass)
    found = json.loads(watchglass("check", path, "--format", "json").out, parse_constant=pytest.fail)
    checker.validate(found)
    if run == "broken":
        assert found["diagnoses"][0]["causes"]


@pytest.mark.parametrize("output_format", ["json", "sarif", "junit", "markdown", "text"])
def test_stdout_holds_the_document_alone(watchglass: Watchglass, broken: Path, output_format: str) -> None:
    said = watchglass("check", broken, "--format", output_format)
    assert (said.status, said.err) == (1, "")
    if output_format == "json":
        json.loads(said.out)
    if output_format == "sarif":
        (run,) = sarif_of(said.out)["runs"]
        rule = run["tool"]["driver"]["rules"][run["results"][0]["ruleIndex"]]
        assert "Fires when" in rule["help"]["text"]
    if output_format == "junit":
        assert int(ET.fromstring(said.out).get("failures", "")) >= 1
    if output_format == "markdown":
        assert said.out.startswith("## ❌ watchglass: issues found")


@pytest.mark.parametrize("output_format", ["json", "sarif", "junit", "markdown", "text"])
def test_output_goes_to_a_file_and_leaves_stdout_empty(
    watchglass: Watchglass, broken: Path, output_format: str, tmp_path: Path
) -> None:
    shown = watchglass("check", broken, "--format", output_format).out
    file = tmp_path / "new" / "folder" / "answer"
    said = watchglass("check", broken, "--format", output_format, "--output", file)
    assert (said.status, said.out) == (1, "")
    assert file.read_text() == shown
    (line,) = said.err.splitlines()
    assert line.startswith("watchglass: issues found: ")
    assert str(file) in line


def test_a_file_that_is_there_is_kept_unless_forced(watchglass: Watchglass, broken: Path, tmp_path: Path) -> None:
    file = tmp_path / "answer.json"
    file.write_text("mine")
    assert "exists; choose another file" in watchglass("check", broken, "--format", "json", "-o", file).error
    assert file.read_text() == "mine"
    assert "is a folder" in watchglass("check", broken, "-o", tmp_path).error
    assert watchglass("check", broken, "--format", "json", "-o", file, "--force").status == 1
    assert json.loads(file.read_text())["outcome"] == "findings"
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_an_unknown_format_is_refused(watchglass: Watchglass, broken: Path) -> None:
    assert (
        "text, json, sarif, junit, markdown, html but got 'yaml'"
        in watchglass("check", broken, "--format", "yaml").error
    )


# Many runs


def test_all_runs_of_a_folder_are_checked(watchglass: Watchglass, runs: Path) -> None:
    said = watchglass("check", runs, "--format", "json")
    assert said.status == 1
    found = json.loads(said.out)
    schema(watchglass).validate(found)
    assert [(Path(each["run"]).name, each["status"], each["outcome"]) for each in found["runs"]] == [
        ("a-healthy", "no issues found", "clean"), ("b-broken", "issues found", "findings"),
        ("killed", "failed", "no answer"), ("d-newer", "unreadable", "no answer"),
    ]  # fmt: skip
    assert "FormatVersionError" in found["runs"][3]["problems"][0]
    assert len(sarif_of(watchglass("check", runs, "--format", "sarif").out)["runs"]) == 4
    assert len(ET.fromstring(watchglass("check", runs, "--format", "junit").out)) == 4
    assert watchglass("check", runs, "--format", "markdown").out.startswith("## ❌ watchglass: 4 runs, 1 with findings")


def test_the_text_of_many_runs_names_each_and_counts(watchglass: Watchglass, runs: Path) -> None:
    said = watchglass("check", runs)
    for name in ("a-healthy", "b-broken", "killed", "d-newer"):
        assert f"{name}\n" in said.out
    assert said.out.splitlines()[-1] == "4 runs: 1 failed, 1 with issues, 1 unreadable, 1 without issues"


def test_the_exit_status_of_many_runs_is_that_of_the_worst(watchglass: Watchglass, runs: Path) -> None:
    shutil.rmtree(runs / "b-broken")
    said = watchglass("check", runs)
    assert said.status == 2
    assert len([line for line in said.err.splitlines() if line.startswith("watchglass: error: ")]) == 2
    shutil.rmtree(runs / "d-newer")
    assert watchglass("check", runs).status == 2
    assert watchglass("check", runs, "--allow-unfinished").status == 0


def test_a_folder_without_runs_is_refused(watchglass: Watchglass, tmp_path: Path) -> None:
    (tmp_path / "empty" / "folder").mkdir(parents=True)
    assert "holds no runs" in watchglass("check", tmp_path / "empty").error
    assert watchglass("check", tmp_path / "nowhere").error


# Records that are missing


@pytest.fixture
def resumed(tmp_path: Path) -> Path:
    return resumed_run(tmp_path / "resumed")


def resumed_run(path: Path, *, start_step: int = 60) -> Path:
    """A run of a training run that was killed, and of its resumed attempt, which finished."""
    steps = training()
    with RunBuilder(path, modules={"fc": "Linear"}, alive=False) as builder:
        for number, step in enumerate(steps[:60]):
            builder.step(step, flush=number % 20 == 19)
        builder.flush()
    with RunBuilder(path, modules={"fc": "Linear"}, resumed={"start_step": start_step, "source": "test"}) as builder:
        for step in steps[60:]:
            builder.step(step, flush=False)
        builder.leave()
    return path


def first_segment(run: Path) -> Path:
    (segment,) = run.glob("attempts/0000/segments/*/*")
    return segment


def test_a_hole_that_never_fills_is_no_clean_answer(watchglass: Watchglass, resumed: Path) -> None:
    run = resumed
    assert watchglass("check", run).status == 0
    segment = first_segment(run)
    segment.rename(segment.with_name("worker_0-00000001"))
    said = watchglass("check", run, "--format", "json")
    assert said.status == 2
    found = json.loads(said.out)
    assert (found["status"], found["outcome"], found["records_missing"]) == ("damaged", "no answer", True)
    assert "the segment before it is missing" in found["problems"][0]
    assert "records are missing" in said.err
    assert watchglass("check", run).out.startswith("damaged: records are missing")
    assert watchglass("check", run, "--allow-unfinished").status == 0
    junit = ET.fromstring(watchglass("check", run, "--format", "junit").out)
    assert junit.get("errors") == "1"
    sarif = sarif_of(watchglass("check", run, "--format", "sarif").out)["runs"][0]
    assert sarif["invocations"][0]["executionSuccessful"] is False
    assert "records are missing" in watchglass("check", run, "--format", "markdown").out


def test_a_damaged_compaction_manifest_is_no_clean_answer(watchglass: Watchglass, healthy: Path) -> None:
    assert main(["compact", str(healthy)]) == 0
    assert watchglass("check", healthy).status == 0
    (manifest,) = healthy.glob("compacted/*/manifest.json")
    manifest.write_text("{")
    said = watchglass("check", healthy)
    assert said.status == 2
    assert "not a manifest of compacted data" in said.err


def test_damage_in_a_run_with_findings_is_a_run_with_findings(watchglass: Watchglass, broken: Path) -> None:
    (segment,) = broken.glob("attempts/0000/segments/*/*")
    data = bytearray(segment.read_bytes())
    data[-40] ^= 0xFF
    segment.write_bytes(bytes(data))
    said = watchglass("check", broken, "--format", "json")
    assert said.status == 1
    assert json.loads(said.out)["records_missing"]


def test_the_torn_end_of_a_killed_writer_is_nothing_missing(watchglass: Watchglass, resumed: Path) -> None:
    segment = first_segment(resumed)
    segment.write_bytes(segment.read_bytes() + segment.read_bytes()[:37])
    said = watchglass("check", resumed, "--format", "json")
    assert said.status == 0
    found = json.loads(said.out)
    assert "ends within a frame" in found["problems"][0]
    assert not found["records_missing"]


def test_the_torn_end_of_a_killed_writer_is_nothing_missing_although_the_training_went_on_later(
    watchglass: Watchglass, tmp_path: Path
) -> None:
    """What was not written yet when it was killed was never handed over; the seam tells of the gap."""
    run = resumed_run(tmp_path / "run", start_step=70)
    segment = first_segment(run)
    segment.write_bytes(segment.read_bytes() + segment.read_bytes()[:37])
    found = json.loads(watchglass("check", run, "--format", "json").out)
    assert (found["status"], found["records_missing"]) == ("no issues found", False)


@pytest.mark.parametrize(("cut", "status"), [(0, "no issues found"), (40, "damaged")])
def test_a_file_that_was_cut_before_its_successor_is_no_clean_answer(
    watchglass: Watchglass, resumed: Path, cut: int, status: str
) -> None:
    segment = first_segment(resumed)
    data = segment.read_bytes()
    half = _frame_in_the_middle(data)
    segment.write_bytes(data[: half - cut])
    segment.with_name("worker_0-00000001").write_bytes(data[half:])
    found = json.loads(watchglass("check", resumed, "--format", "json").out)
    assert (found["status"], found["records_missing"]) == (status, bool(cut))


def _frame_in_the_middle(data: bytes) -> int:
    """Where a flush in the middle of a segment ends: behind the first of its frames with ends of steps."""
    before = None
    for frame in scan(data).frames:
        if frame.offset > len(data) // 3 and before == FrameKind.STEP_ENDS:
            return frame.offset
        before = frame.kind
    raise AssertionError("one flush only")
