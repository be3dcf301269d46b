"""``watchglass check``: its output for people and programs, and its exit status."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

import pytest

from command_line import Watchglass
from watchglass.records import RuleStatus, Status
from watchglass.testing import Step, build_run

WARNS = """
from watchglass import Finding, Rule, Severity

class Warns(Rule):
    \"""Always warns.\"""

    severity: str = "warning"

    def check(self, view):
        yield self.finding(view, severity=Severity(self.severity), message="as ever", value=float("nan"))

class Raises(Rule):
    \"""Never comes to an end.\"""

    def check(self, view):
        raise RuntimeError("a fault in the rule")
"""


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(WARNS)
    return tmp_path / "mine.py"


def test_a_healthy_run_exits_0(watchglass: Watchglass, healthy: Path) -> None:
    said = watchglass("check", healthy)
    assert (said.status, said.err) == (0, "")
    assert said.out.startswith("no issues found in 120 steps (120 examined): ")


def test_reasons_are_those_of_the_rules_that_ran_or_were_asked_for(
    watchglass: Watchglass, tmp_path: Path, rules: Path
) -> None:
    ran = [
        RuleStatus("Mine", Status.STARVED, "the scalar reward never came"), RuleStatus("Other", Status.ERROR, ""),
        RuleStatus("InputBound", Status.NO_ISSUES_FOUND),
    ]  # fmt: skip
    losses = [Step(scalars={"loss": 1 / n}) for n in range(1, 9)]
    run = build_run(tmp_path / "followed", losses, journal=ran)
    said = watchglass("check", "-v", run).out
    assert "Mine could not be evaluated: the scalar reward never came (when the run was followed)\n" in said
    assert "Other failed: no reason given (when the run was followed)\n" in said
    assert "InputBound" not in said
    chosen = " ".join(watchglass("check", run, "--rules", "DeadRelu,InputBound").out.split())
    assert f"why: watchglass check -v {run} --rules " in chosen
    assert "Mine" not in watchglass("check", "-v", run, "--rules", "DeadRelu").out


def test_a_broken_run_exits_1_and_says_since_when(watchglass: Watchglass, broken: Path) -> None:
    said = watchglass("check", broken)
    assert said.status == 1
    assert "ExplodingTensor" in said.out
    assert "step 80" in said.out


def test_json_is_one_object_with_the_documented_keys(watchglass: Watchglass, broken: Path) -> None:
    said = watchglass("check", broken, "--format", "json")
    result = json.loads(said.out)
    assert said.status == 1
    assert {"run", "status", "findings", "capture"} < result.keys()
    assert result["capture"] == {"dropped_rows": 0, "steps": 120}
    assert (result["run"], result["status"], result["outcome"]) == (str(broken), "issues found", "findings")
    first = result["findings"][0]
    assert (first["rule"], first["severity"], first["step"], first["mode"]) == ("ExplodingTensor", "error", 80, "TRAIN")


def test_json_is_strict_where_a_value_is_not_a_number(watchglass: Watchglass, healthy: Path, rules: Path) -> None:
    said = watchglass("check", healthy, "--rules", f"{rules}:Warns", "--format", "json")
    (found,) = json.loads(said.out, parse_constant=pytest.fail)["findings"]
    assert found["value"] == "NaN"


@pytest.mark.parametrize(
    ("severity", "fail_on", "status"),
    [
        ("warning", "warning", 1), ("warning", "error", 0), ("warning", "never", 0), ("error", "error", 1),
        ("error", "never", 0), ("info", "warning", 0),
    ],
)  # fmt: skip
def test_the_exit_status_follows_fail_on(
    watchglass: Watchglass, healthy: Path, rules: Path, severity: str, fail_on: str, status: int
) -> None:
    said = watchglass("check", healthy, "--rules", f"{rules}:Warns:severity={severity}", "--fail-on", fail_on)
    assert said.status == status
    assert "as ever" in said.out


def test_a_rule_that_fails_is_no_clean_run(watchglass: Watchglass, healthy: Path, rules: Path) -> None:
    said = watchglass("check", healthy, "--rules", f"{rules}:Raises")
    assert said.status == 2
    assert "Raises failed: raised at TRAIN step 0 of worker_0" in said.err


def test_a_run_that_was_killed_without_findings_is_no_clean_run(watchglass: Watchglass, killed: Path) -> None:
    said = watchglass("check", killed, "--format", "json")
    assert said.status == 2
    assert json.loads(said.out)["status"] == "failed"
    (line,) = said.err.splitlines()
    assert line.startswith(f"watchglass: error: {killed}: the run failed: its process ended without reporting why")
    assert watchglass("check", killed, "--allow-unfinished").status == 0


def test_a_run_is_not_changed(watchglass: Watchglass, broken: Path) -> None:
    before = {path: path.read_bytes() for path in broken.rglob("*") if path.is_file()}
    watchglass("check", broken)
    assert {path: path.read_bytes() for path in broken.rglob("*") if path.is_file()} == before


def test_a_damaged_segment_is_reported_and_the_rest_evaluated(watchglass: Watchglass, broken: Path) -> None:
    (segment,) = broken.glob("attempts/0000/segments/*/*")
    data = bytearray(segment.read_bytes())
    data[-40] ^= 0xFF
    segment.write_bytes(bytes(data))
    said = watchglass("check", broken)
    assert said.status == 1
    assert "ExplodingTensor" in said.out
    assert segment.name in said.err
    assert all(line.startswith("watchglass: warning: ") for line in said.err.splitlines())


def test_the_command_that_explains_a_verdict_explains_that_one(
    watchglass: Watchglass, healthy: Path, rules: Path
) -> None:
    said = watchglass("check", healthy, "--rules", f"{rules}:Warns", "--calibration", "sagemaker")
    command = shlex.split(said.out.split("evidence:")[1].split("page:")[0])
    assert command[:3] == ["watchglass", "explain", str(healthy)]
    assert "as ever" in watchglass(*command[1:]).out


def test_a_command_to_be_copied_is_not_broken_at_hyphens(watchglass: Watchglass, broken: Path, tmp_path: Path) -> None:
    run = tmp_path / "-".join(["a"] * 60)
    shutil.copytree(broken, run)
    assert watchglass("check", run).out.endswith(f"{run}\n")


def test_quiet_says_nothing_but_the_exit_status(watchglass: Watchglass, healthy: Path, broken: Path) -> None:
    assert watchglass("check", "-q", healthy) == (0, "", "")
    assert watchglass("check", "--quiet", broken) == (1, "", "")
    assert watchglass("check", "-q", healthy, "--format", "json", "-o", "out.json") == (0, "", "")
    assert Path("out.json").read_text().startswith("{")
    assert watchglass("check", "-q", "nowhere").error.startswith("nowhere does not exist")
