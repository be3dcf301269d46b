"""docs/ci.md: every command, both pipelines, the tests and the rules of alerts on it, run as they stand."""

from __future__ import annotations

import inspect
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import jsonschema
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from command_line import training
from watchglass.cli import main
from watchglass.evaluate import MetricsServer
from watchglass.evaluate.live.snapshot import RunSnapshot
from watchglass.evaluate.many.metrics import MOST_RUNS, MOST_SCALARS, MOST_WORKERS
from watchglass.testing import assert_trains_healthy, build_run
from watchglass.view import json_schema

pytestmark = pytest.mark.usefixtures("preloaded_python")

SCRIPT = """
import sys
import torch

torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=float(open("rate").read()))
x = torch.randn(64, 4)
for _ in range(40):
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
    optimizer.step()
"""


@pytest.fixture(scope="module")
def page(repository: Path) -> str:
    return (repository / "docs" / "ci.md").read_text()


def section(page: str, title: str) -> str:
    (found,) = re.findall(rf"^##+ {re.escape(title)}\n(.*?)(?=^##+ |\Z)", page, re.MULTILINE | re.DOTALL)
    return str(found)


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def test_every_command_of_the_page_does_what_it_says(
    page: str, in_tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build_run("runs/ci", training(broken_at=80), modules={"fc": "Linear"})
    (shown,) = blocks(section(page, "check in CI"), "console")
    commands = re.findall(r"^\$ watchglass (.*)$", shown, re.MULTILINE)
    assert len(commands) >= 10
    for command in commands:
        words = shlex.split(command)
        assert main(words) == (0 if "--schema" in words else 1), command
        said = capsys.readouterr()
        assert bool(said.out) != ("--output" in words), command
    assert json.loads(Path("check.json").read_text())["outcome"] == "findings"
    assert ET.parse("check.xml").getroot().tag == "testsuites"


def test_the_json_that_is_shown_is_as_the_schema_says(page: str) -> None:
    (shown,) = blocks(section(page, "json"), "json")
    checker = jsonschema.Draft202012Validator(json.loads(json_schema()))
    assert list(checker.iter_errors(json.loads(shown))) == []


def test_every_key_of_the_json_is_described(page: str) -> None:
    table = "".join(line for line in section(page, "json").splitlines(keepends=True) if line.startswith("|"))
    named = set(re.findall(r"`(\w+)`", table))
    keys = set(json.loads(json_schema())["$defs"]["verdict"]["properties"])
    assert keys - named == set()


@pytest.mark.parametrize("rate", ["0.05", "50"])
@pytest.mark.slow
def test_the_github_workflow_runs(page: str, in_tmp_path: Path, rate: str) -> None:
    (text,) = blocks(section(page, "GitHub Actions"), "yaml")
    job = yaml.safe_load(text)["jobs"]["train"]
    status = 0
    folder = pipeline(in_tmp_path, rate)
    for step in job["steps"]:
        if "run" in step and ("if" not in step or (in_tmp_path / "check.md").exists()):
            done = shell(folder, step["run"], NUMBER="7")
            status = status or done.returncode
            assert done.returncode == 0 or step.get("id") == "check", done.stderr
    assert status == (0 if rate == "0.05" else 1)
    for name in ("check.sarif", "check.xml", "check.md"):
        assert (in_tmp_path / name).stat().st_size
    (location,) = {
        json.dumps(result["locations"][0]["physicalLocation"]["artifactLocation"])
        for result in json.loads((in_tmp_path / "check.sarif").read_text())["runs"][0]["results"]
    } or {json.dumps({"uri": "train.py", "uriBaseId": "%SRCROOT%"})}
    assert json.loads(location)["uri"] == "train.py"
    called = (in_tmp_path / "called").read_text()
    assert "gh pr comment 7 --edit-last --create-if-none --body-file check.md" in called
    uploads = [step for step in job["steps"] if "upload-sarif" in step.get("uses", "")]
    assert uploads[0]["with"]["sarif_file"] == "check.sarif"


@pytest.mark.parametrize("rate", ["0.05", "50"])
@pytest.mark.slow
def test_the_gitlab_job_runs(page: str, in_tmp_path: Path, rate: str) -> None:
    (text,) = blocks(section(page, "GitLab"), "yaml")
    job = yaml.safe_load(text)["train"]
    done = shell(pipeline(in_tmp_path, rate), "\n".join(job["script"]))
    assert done.returncode == (0 if rate == "0.05" else 1), done.stderr
    assert ET.parse(job["artifacts"]["reports"]["junit"]).getroot().tag == "testsuites"
    assert "--data-urlencode body@check.md" in (in_tmp_path / "called").read_text()


def pipeline(folder: Path, rate: str) -> Path:
    """What a repository with a training run has, and stand-ins for the programs that would reach the network."""
    (folder / "train.py").write_text(SCRIPT)
    (folder / "rate").write_text(rate)
    programs = folder / "programs"
    programs.mkdir()
    for name in ("pip", "gh", "curl"):
        (programs / name).write_text(f'#!/bin/sh\necho {name} "$@" >>called\n')
    (programs / "watchglass").write_text(f'#!/bin/sh\nexec {sys.executable} -m watchglass "$@"\n')
    for program in programs.iterdir():
        program.chmod(0o755)
    return programs


def shell(programs: Path, script: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **variables, "PATH": f"{programs}:{os.environ['PATH']}"}
    return subprocess.run(
        ["bash", "-eo", "pipefail", "-c", script], capture_output=True, text=True, env=environment, check=False
    )


@pytest.mark.slow
def test_the_tests_of_the_page_pass(page: str, in_tmp_path: Path) -> None:
    (code,) = blocks(section(page, "In pytest"), "python")
    (in_tmp_path / "test_page.py").write_text(code)
    (in_tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as tests:
        try:
            output, _ = tests.communicate(timeout=200)
        except subprocess.TimeoutExpired:
            tests.send_signal(signal.SIGABRT)  # pytest's handler prints where each thread hangs
            output, _ = tests.communicate()
    assert "3 passed" in output, output


def test_every_argument_of_the_fixture_is_described(page: str) -> None:
    table = section(page, "In pytest")
    for name, parameter in inspect.signature(assert_trains_healthy).parameters.items():
        if parameter.kind is parameter.KEYWORD_ONLY:
            assert f"`{name}`" in table, name


def test_every_metric_is_described(page: str) -> None:
    text = section(page, "Prometheus")
    with (
        MetricsServer(lambda: [RunSnapshot("runs/mine")], port=0) as server,
        urllib.request.urlopen(server.url, timeout=30) as answer,
    ):
        families = list(text_string_to_metric_families(answer.read().decode()))
    for family in families:
        if family.name.startswith("watchglass"):
            ending = {"counter": "_total"}.get(family.type, "")
            (row,) = re.findall(rf"^\| `{family.name}{ending}\{{.*?\| (\w+) \|", text, re.MULTILINE)
            assert row == ("info" if family.name.endswith("_info") else family.type)
    assert (MOST_RUNS, MOST_WORKERS, MOST_SCALARS) == (200, 64, 64)
    assert re.search(r"200 runs, .* 64 workers .* 64 scalars", text, re.DOTALL)


PROMTOOL = shutil.which("promtool")


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed (Debian's package prometheus)")
def test_prometheus_takes_the_configuration_and_the_alerts(page: str, in_tmp_path: Path) -> None:
    assert PROMTOOL is not None
    configuration, alerts = blocks(section(page, "Prometheus"), "yaml")
    Path("prometheus.yml").write_text(configuration)
    Path("runs.yml").write_text(alerts)
    done = subprocess.run(
        [PROMTOOL, "check", "config", "prometheus.yml"], capture_output=True, text=True, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "4 rules found" in done.stdout
    expressions: list[dict[str, Any]] = yaml.safe_load(alerts)["groups"][0]["rules"]
    known = set(re.findall(r"`(watchglass_\w+)\{", page))
    assert {name for rule in expressions for name in re.findall(r"watchglass_\w+", rule["expr"])} <= known


def test_exit_statuses_are_those_of_check(
    repository: Path, in_tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build_run("healthy", training(), modules={"fc": "Linear"})
    build_run("killed", training(), modules={"fc": "Linear"}, status=None)
    build_run("broken", training(broken_at=80), modules={"fc": "Linear"})
    rows = dict(
        re.findall(
            r"^\| (\d) \| (.*) \|$", section((repository / "docs" / "cli.md").read_text(), "check"), re.MULTILINE
        )
    )
    assert list(rows) == ["0", "1", "2"]
    for run, status in (("healthy", 0), ("broken", 1), ("killed", 2), ("nowhere", 2)):
        assert main(["check", run]) == status
    capsys.readouterr()
