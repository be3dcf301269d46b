"""The dashboard, ``mcp``, ``top`` and lists on runs in an object store, which are read in place."""

from __future__ import annotations

import json
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest
import torch
from mcp.client import Client
from starlette.testclient import TestClient
from torch import nn

from dashboards import COOKIE, HOSTILE, TOKEN, finding, steps
from waiting import until
from watchglass.capture import Hook
from watchglass.capture.pytorch import PyTorchAdapter
from watchglass.cli import main
from watchglass.dashboard.application import application
from watchglass.dashboard.listing import Listing
from watchglass.dashboard.run_pages import RUN_PAGES
from watchglass.questions import make_server
from watchglass.records import RuleStatus, Status
from watchglass.store import LocalStore, open_store
from watchglass.testing import build_run

pytestmark = pytest.mark.slow
#: Headers of the page's own requests.
OURS = {"X-Watchglass": "1", "Sec-Fetch-Site": "same-origin"}


@pytest.fixture
def runs(s3_location: str, tmp_path: Path) -> str:
    """A prefix with two runs."""
    journal = [finding("DeadRelu"), RuleStatus("DeadRelu", Status.ISSUES_FOUND)]
    build_run(tmp_path / "sick", steps(), modules={HOSTILE: "Linear"}, journal=journal)
    build_run(tmp_path / "well", steps(7))
    for name in ("sick", "well"):
        source = LocalStore(tmp_path / name)
        with closing(open_store(f"{s3_location}/{name}")) as store:
            for each in source.list():
                store.write(each.path, source.read(each.path))
    return s3_location


def ask(location: str, tool: str, **arguments: Any) -> Any:
    async def call() -> Any:
        async with Client(make_server(location, allow_actions=True)) as client:
            answer = await client.call_tool(tool, arguments)
            assert not answer.is_error, answer.content
            return answer.structured_content

    return anyio.run(call)


def test_each_page_of_the_dashboard(runs: str) -> None:
    listing = Listing(runs)
    listing.look()
    rows = {row.listed.name: row for row in listing.rows}
    assert {name: (row.state, row.train_steps, row.problem) for name, row in rows.items()} == {
        "sick": ("finished", 20, ""), "well": ("finished", 7, ""),
    }  # fmt: skip
    client = TestClient(
        application(listing, token=TOKEN, cookie=COOKIE), base_url="http://127.0.0.1:8420", cookies={COOKIE: TOKEN}
    )
    try:
        assert "issues found: 1 error" in client.get("/").text
        run, other = rows["sick"].identifier, rows["well"].identifier
        until(lambda: "is being opened" not in client.get(f"/r/{run}").text)
        for page in RUN_PAGES:
            assert client.get(f"/r/{run}/{page}".rstrip("/")).status_code == 200, page
        assert "1 error" in client.get(f"/r/{run}").text
        assert client.get(f"/compare?run={run}&run={other}").status_code == 200
        assert json.loads(client.get(f"/r/{run}/verdict.json").text)["headline"] == "issues found: 1 error"
        refused = client.post(f"/r/{run}/stop", data={"confirmed": "yes"}, headers=OURS)
        assert "has ended, so it cannot be stopped" in refused.text
    finally:
        listing.stopping.set()


def test_each_question(runs: str) -> None:
    listed = ask(runs, "list_runs")
    assert {each["name"]: each["train_steps"] for each in listed["runs"]} == {"sick": 20, "well": 7}
    verdict = ask(runs, "verdict", run="sick")
    assert verdict["findings"][0]["rule"] == "DeadRelu"
    assert ask(runs, "explain_finding", run="sick", finding=verdict["findings"][0]["finding"])["looks_at"]
    assert ask(runs, "read_series", run="sick")["values"] == 20
    tensor = f"gradient/{HOSTILE}.weight"
    assert tensor in ask(runs, "find_names", run="sick", role="gradient")["tensors"]
    assert ask(runs, "read_tensor", run="sick", name=tensor)["values"] == 20
    assert ask(runs, "compare_runs", run="sick", other="well")["headlines"][0] == "issues found: 1 error"
    assert ask(runs, "wait_for_finding", run="sick", timeout_s=5)["ended"]
    assert ask(runs, "check_run", run="well")["evaluated"]
    assert ask(runs, "backtest_rule", rule="DeadRelu", runs=["sick", "well"])["runs"]


def test_top_and_lists(runs: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", f"{runs}/sick", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["headline"] == "issues found: 1 error"
    assert main(["top", f"{runs}/sick", "--once"]) == 0
    assert "20 training steps" in capsys.readouterr().out
    assert main(["show", runs, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["runs"]
    assert {row["name"]: row["headline"] for row in rows}["sick"] == "issues found: 1 error"


def test_a_job_is_listed_and_followed_while_it_goes_on(s3_location: str) -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    ended = threading.Event()

    def step() -> None:
        optimizer.zero_grad()
        model(torch.ones(2, 4)).mean().backward()
        optimizer.step()
        ended.wait(0.02)

    with Hook(run=f"{s3_location}/job", flight_recorder=False, strict=True) as hook:
        PyTorchAdapter(hook.port, discover=False).attach(model)
        step()

        def listed() -> Any:
            step()
            return ask(s3_location, "list_runs")["runs"]

        (run,) = until(listed)
        assert run["state"] in ("not finished", "no data")
        listing = Listing(s3_location)
        try:
            watched = listing.runs.opened(f"{s3_location}/job")
            first = watched.newest.verdict.train_steps

            def grown() -> bool:
                step()
                watched.look()
                return watched.newest.verdict.train_steps > first

            until(grown)
        finally:
            listing.stopping.set()
