"""Answers of ``watchglass mcp`` are those of the run, asked by the client of the protocol's SDK in this process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest
from mcp.client import Client
from mcp.server import MCPServer

from dashboards import HOSTILE, finding, steps
from watchglass.cli import main
from watchglass.errors import MissingExtraError
from watchglass.questions import Questions, make_server
from watchglass.records import Mode, RuleStatus, Status
from watchglass.run import identifier_of, open_run
from watchglass.store import JournalWriter
from watchglass.testing import RunBuilder, Step, build_run

Ask = Callable[..., Any]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    journal = [finding("DeadRelu", HOSTILE), RuleStatus("DeadRelu", Status.ISSUES_FOUND)]
    build_run(tmp_path / "runs" / "sick", steps(), modules={HOSTILE: "Linear"}, journal=journal)
    build_run(tmp_path / "runs" / "well", [*steps(7), Step({"loss": 0.5}, mode=Mode.EVAL)])
    build_run(tmp_path / "runs" / "torn", steps(1))
    (tmp_path / "runs" / "torn" / "run.json").write_text("{")
    return tmp_path / "runs"


def ask(folder: Path, tool: str, *, actions: bool = False, **arguments: Any) -> tuple[Any, str]:
    """The answer, or the sentence with which it was refused."""

    async def call() -> tuple[Any, str]:
        async with Client(make_server(str(folder), allow_actions=actions)) as client:
            answer = await client.call_tool(tool, arguments)
            text = answer.content[0].text if answer.is_error else ""  # type: ignore[union-attr]
            return answer.structured_content, text

    return anyio.run(call)


def test_runs_are_listed_with_their_verdict(folder: Path) -> None:
    answer, _ = ask(folder, "list_runs")
    assert answer["matching"] == 3
    by_name = {each["name"]: each for each in answer["runs"]}
    assert by_name["sick"]["headline"] == "issues found: 1 error"
    assert (by_name["sick"]["run"], by_name["sick"]["train_steps"]) == (identifier_of("sick"), 20)
    assert by_name["sick"]["loss"] == pytest.approx(0.1)
    assert by_name["torn"]["state"] == "unreadable"
    assert by_name["torn"]["problem"]
    answer, _ = ask(folder, "list_runs", search="SI ck", limit=1)
    assert [each["name"] for each in answer["runs"]] == ["sick"]


def test_there_may_be_no_run_yet(tmp_path: Path) -> None:
    answer, _ = ask(tmp_path / "runs", "list_runs")
    assert (answer["runs"], answer["matching"]) == ([], 0)
    assert f"{tmp_path / 'runs'} holds no runs" in answer["note"]
    refused = ask(tmp_path / "runs", "verdict", run="a")[1]
    assert "there is no run 'a'" in refused
    assert "holds no runs" in refused


def test_a_folder_without_runs_is_named_where_the_server_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[str] = []
    monkeypatch.setattr(MCPServer, "run", lambda server, transport: served.append(transport))
    assert main(["mcp", str(tmp_path / "runs")]) == 0
    assert served == ["stdio"]
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{tmp_path / 'runs'} holds no runs" in line


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("read_series", {"name": "los"}),
        ("read_tensor", {"name": "weight"}),
        ("read_series", {"name": "reward", "mode": "eval"}),
        ("read_series", {"name": f"{HOSTILE}/reward", "mode": "eval"}),
    ],
)
def test_a_name_that_is_not_there_is_refused_with_the_tool_that_lists_names(
    folder: Path, tool: str, arguments: dict[str, str]
) -> None:
    refused = ask(folder, tool, run="well", **arguments)[1]
    assert refused.endswith("; find_names lists them")
    assert "tensor_names" not in refused


def test_a_verdict_cites_run_and_step(folder: Path) -> None:
    answer, _ = ask(folder, "verdict", run=identifier_of("sick"))
    assert (answer["name"], answer["last_step"], answer["findings_total"]) == ("sick", 19, 1)
    (found,) = answer["findings"]
    assert (found["rule"], found["step"], found["last_step"], found["value"]) == ("DeadRelu", 12, 19, 7.0)
    assert answer["evaluated"]
    assert not ask(folder, "verdict", run="well")[0]["evaluated"]


def test_a_finding_is_explained_by_its_rule(folder: Path) -> None:
    answer, _ = ask(folder, "explain_finding", run="sick", finding="0123456789ab")
    assert answer["finding"]["message"] == HOSTILE
    assert "ReLU" in answer["looks_at"]
    assert ask(folder, "explain_finding", run="sick", finding="ffff")[1]


def test_a_rule_of_a_journal_is_not_executed(tmp_path: Path) -> None:
    (tmp_path / "evil.py").write_text("raise SystemExit('executed')")
    name = f"{tmp_path}/evil.py:Evil"
    build_run(
        tmp_path / "runs" / "a",
        steps(),
        modules={HOSTILE: "Linear"},
        journal=[finding(name), RuleStatus(name, Status.ISSUES_FOUND)],
    )
    answer, _ = ask(tmp_path / "runs", "explain_finding", run="a", finding="0123")
    assert answer["looks_at"] == ""
    for tool, arguments in (("rule", {"name": name}), ("backtest_rule", {"rule": name, "runs": ["a"]})):
        assert "there is no built-in rule" in ask(tmp_path / "runs", tool, **arguments)[1]


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({"window": "1,evil.py:Evil"}, "window must be a value without commas"),
        ({"window": "1\x00"}, "window must be a value without commas"),
        ({"windw": "1"}, 'has no parameter "windw"'),
        ({"window": "many"}, "window must be a whole number but got 'many'"),
    ],
)
def test_parameters_are_checked_before_a_process_starts(
    folder: Path, parameters: dict[str, str], expected: str
) -> None:
    assert expected in ask(folder, "backtest_rule", rule="DeadRelu", runs=["sick"], parameters=parameters)[1]


def test_a_series_keeps_extremes_and_what_is_not_finite(tmp_path: Path) -> None:
    losses = [1.0, 9.0, float("nan"), 0.5] * 10
    build_run(tmp_path / "a", [Step({"loss": value}) for value in losses])
    answer, _ = ask(tmp_path / "a", "read_series", run="a", points=4)
    assert (answer["first_step"], answer["last_step"], answer["values"]) == (0, 39, 40)
    assert len(answer["points"]) <= 4
    assert all((point["low"], point["high"]) == (0.5, 9.0) for point in answer["points"])
    assert sum(point["not_finite"] for point in answer["points"]) == 10
    answer, _ = ask(tmp_path / "a", "read_series", run="a", first=2, last=2)
    assert [point["last"] for point in answer["points"]] == ["NaN"]
    assert ask(tmp_path / "a", "read_series", run="a", first=50)[0]["points"] == []


def test_an_evaluation_is_a_point_at_its_training_step(folder: Path) -> None:
    answer, _ = ask(folder, "read_series", run="well", mode="eval")
    assert [(point["step"], point["last"]) for point in answer["points"]] == [(6, 0.5)]
    assert 'mode must be "train" or "eval"' in ask(folder, "read_series", run="well", mode="x")[1]


def test_statistics_of_a_tensor_are_those_of_the_run(folder: Path) -> None:
    name = f"gradient/{HOSTILE}.weight"
    names, _ = ask(folder, "find_names", run="sick", search="gradient", role="gradient")
    assert names["tensors"] == [name]
    answer, _ = ask(folder, "read_tensor", run="sick", name=name, statistic="max", points=200)
    steps_of, values = open_run(folder / "sick").tensor(name).reductions("max")
    assert [point["step"] for point in answer["points"]] == steps_of.tolist()
    assert [point["last"] for point in answer["points"]] == pytest.approx(values.tolist(), rel=1e-5)
    assert "a reduction must be one of" in ask(folder, "read_tensor", run="sick", name=name, statistic="x")[1]


def test_two_runs_are_compared(tmp_path: Path) -> None:
    for name, slope, lr in (("a", 0.1, 0.1), ("b", 0.2, 0.5)):
        weights = [np.full(4, 1.0 + (n >= 3) * slope, np.float32) for n in range(6)]
        build_run(
            tmp_path / "runs" / name, [Step({"loss": 1.0}, statistics={"fc1.weight": each}) for each in weights],
            modules={"fc1": "Linear"}, facts={"optimizer": {"type": "SGD", "groups": [{"lr": lr}]}},
        )  # fmt: skip
    answer, _ = ask(tmp_path / "runs", "compare_runs", run="a", other="b")
    assert (answer["first_different_step"], answer["first_different"]) == (3, "fc1.weight l2")
    assert answer["settings"] == [{"name": "lr", "run": "0.1", "other": "0.5"}]
    same, _ = ask(tmp_path / "runs", "compare_runs", run="a", other="a")
    assert (same["first_different_step"], same["settings"]) == (None, [])


def test_runs_are_named_and_never_found_by_path(folder: Path, tmp_path: Path) -> None:
    build_run(tmp_path / "secret", steps(1))
    for name in ("../secret", str(tmp_path / "secret"), "", ".", "s3://bucket/a"):
        assert "there is no run" in ask(folder, "verdict", run=name)[1]


def test_waiting_ends_with_the_next_finding(tmp_path: Path) -> None:
    with RunBuilder(tmp_path / "a") as builder:
        builder.step({"scalars": {"loss": 1.0}})

        def find(seconds: float) -> None:
            with JournalWriter(builder.store) as writer:
                writer.write([finding()])

        news = Questions(str(tmp_path / "a"), sleep=find).wait_for_finding("a")
        assert [each.finding for each in news.findings] == ["0123456789ab"]
        assert not news.ended
        again = Questions(str(tmp_path / "a"), sleep=lambda _: None).wait_for_finding("a", timeout_s=0)
        assert again.findings == []
    assert ask(tmp_path / "a", "wait_for_finding", run="a")[0]["ended"]


def test_nothing_can_be_changed_unless_it_is_allowed(folder: Path) -> None:
    async def tools(allowed: bool) -> dict[str, bool]:
        async with Client(make_server(str(folder), allow_actions=allowed)) as client:
            return {tool.name: bool(tool.annotations.read_only_hint) for tool in (await client.list_tools()).tools}  # type: ignore[union-attr]

    assert all(anyio.run(tools, False).values())
    assert {name for name, reads in anyio.run(tools, True).items() if not reads} == {"stop_run", "profile_steps"}
    assert "Unknown tool" in ask(folder, "stop_run", run="sick", reason="x")[1]
    assert "has ended, so it cannot be stopped" in ask(folder, "stop_run", actions=True, run="sick", reason="x")[1]


def test_a_missing_sdk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("mcp.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'watchglass\[mcp\]'"):
        make_server(str(tmp_path))


def test_the_reason_of_a_stop_is_in_the_verdict(tmp_path: Path) -> None:
    with RunBuilder(tmp_path / "runs" / "a") as builder:
        builder.step(steps(1)[0])
        assert ask(tmp_path / "runs", "stop_run", actions=True, run="a", reason="the loss is flat")[0]
        builder.leave("stopped")
    answer, _ = ask(tmp_path / "runs", "verdict", run="a")
    assert (answer["status"], answer["stop_reason"]) == ("stopped", "the loss is flat")
