"""Pages of parts of a run, their data, the numbers under the cursor, and what they ask."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest
from starlette.testclient import TestClient

from dashboards import HOSTILE, finding, steps
from watchglass.config import BUILT_IN_COLLECTIONS
from watchglass.dashboard.listing import Listing
from watchglass.dashboard.run_pages import RUN_PAGES
from watchglass.diagnose import rule_guide
from watchglass.records import Role, RuleStatus, Status
from watchglass.run import open_run
from watchglass.testing import build_run
from watchglass.view import escaped, number

OURS = {"X-Watchglass": "1", "Sec-Fetch-Site": "same-origin"}


@pytest.fixture
def run(identifiers: dict[str, str]) -> str:
    return identifiers[HOSTILE]


@pytest.mark.parametrize("page", RUN_PAGES)
def test_each_page_is_there_as_data(client: TestClient, run: str, page: str) -> None:
    answer = client.get(f"/data/{run}/{page}".rstrip("/"))
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()[0]["type"] == "section"


def test_the_numbers_under_the_cursor_are_those_of_the_run(client: TestClient, run: str, folder: Path) -> None:
    steps, losses = open_run(folder / HOSTILE).scalars("loss")
    answer = client.get(f"/at/{run}?x=7.3&picture=0&move=2").json()
    assert (answer["x"], answer["text"]) == (9.0, "9")
    assert ["training", number(float(losses[list(steps).index(9)]))] in answer["values"][0]
    for address in ("x=&picture=0", "x=nan", "x=1&picture=-1", "x=1&move=1.5", "x=1e999"):
        assert client.get(f"/at/{run}?{address}").status_code == 400
    assert client.get(f"/at/{run}?x=1&picture=99").status_code == 404


def test_a_range_of_steps_is_in_the_address(client: TestClient, run: str) -> None:
    assert ">12<" in client.get(f"/r/{run}?steps=12:15").text
    shown = client.get(f"/data/{run}?steps=12:15").json()
    story = next(block for block in shown if block["title"] == "Story")["blocks"][0]["picture"]
    assert story["lanes"][0]["lines"][0]["x"] == [12, 13, 14]
    for wrong in ("15:12", "a:b", "3", "-1:5"):
        assert client.get(f"/r/{run}?steps={wrong}").status_code == 400


def test_a_tensor_has_a_page(client: TestClient, run: str, folder: Path) -> None:
    name = f"gradient/{HOSTILE}.weight"
    page = client.get(f"/r/{run}/tensor?name={quote(name)}&step=5")
    assert page.status_code == 200
    assert number(open_run(folder / HOSTILE).tensor(name).reduction(5, "l2")) in page.text
    assert escaped(f"/r/{run}/tensor?name={quote(HOSTILE, safe='').replace('%20', '+')}.weight") in page.text
    assert client.get(f"/r/{run}/tensor?name=nothing").status_code == 404
    # The command that a page names is one that is accepted.
    (collection,) = re.findall(r"watchglass run --save-raw (\w+) SCRIPT", page.text)
    assert BUILT_IN_COLLECTIONS[collection].roles == (Role.GRADIENT,)


def test_a_rule_that_has_found_something_is_shown_while_it_goes_on(
    client: TestClient, listing: Listing, folder: Path
) -> None:
    journal = [
        finding("ExplodingGradient"),
        RuleStatus("ExplodingGradient", Status.IN_PROGRESS),
        RuleStatus("DeadRelu", Status.IN_PROGRESS),
        RuleStatus("Overfit", Status.NO_ISSUES_FOUND),
    ]
    build_run(folder / "going_on", steps(3), journal=journal)
    listing.look()
    (run,) = (row.identifier for row in listing.rows if row.listed.name == "going_on")
    page = client.get(f"/r/{run}/rules").text
    assert "<h3>ExplodingGradient: InProgress</h3>" in page
    assert "<summary>1 rule found nothing</summary>" in page
    assert "<summary>1 rule found nothing so far</summary>" in page


def test_runs_are_compared_side_by_side(client: TestClient, identifiers: dict[str, str], run: str) -> None:
    page = client.get(f"/compare?run={run}&run={identifiers['healthy']}").text
    assert "Settings that differ" in page
    assert escaped(HOSTILE) in page
    assert "Choose two runs or more" in client.get(f"/compare?run={run}").text
    assert client.get(f"/compare?run={run}&run={identifiers['healthy']}&metric=none").status_code == 404
    assert client.get("/compare?run=../../etc").status_code == 404


def test_the_numbers_under_the_cursor_of_compared_runs_are_those_of_each(
    client: TestClient, identifiers: dict[str, str], run: str, folder: Path, browser: Callable[..., TestClient]
) -> None:
    which = f"run={run}&run={identifiers['healthy']}"
    page = client.get(f"/compare?{which}&steps=2:15")
    assert 'data-at="/compare/at"' in page.text
    answer = client.get(f"/compare/at?{which}&steps=2:15&x=7.3&picture=0&move=2").json()
    assert (answer["x"], answer["text"]) == (9.0, "9")
    for name in (HOSTILE, "healthy"):
        steps, losses = open_run(folder / name).scalars("loss")
        after = [number(float(value)) for step, value in zip(steps, losses, strict=True) if step == 9]
        # A run that ended before has none there.
        assert [value for each, value in answer["values"][0] if each == name] == after
    # So they are where the server has begun again since.
    assert browser().get(f"/compare/at?{which}&steps=2:15&x=9").json() == answer
    assert client.get(f"/compare/at?{which}&x=nan").status_code == 400
    assert client.get(f"/compare/at?{which}&x=1&picture=9").status_code == 404
    assert client.get("/compare/at?run=../../etc&x=1").status_code == 404
    assert client.get(f"/compare/at?{which}&metric=none&x=1").status_code == 404


def test_rules_have_the_parameters_that_were_used(client: TestClient, listing: Listing, folder: Path) -> None:
    journal = [
        RuleStatus("DeadRelu", Status.NO_ISSUES_FOUND, parameters={"window": 77}),
        RuleStatus("Mine", Status.NO_ISSUES_FOUND, parameters={"limit": HOSTILE}),
    ]
    build_run(folder / "with_parameters", steps(3), journal=journal)
    listing.look()
    (run,) = (row.identifier for row in listing.rows if row.listed.name == "with_parameters")
    page = client.get(f"/r/{run}/rules").text
    default = next(default for name, default, _ in rule_guide("DeadRelu").parameters if name == "window")
    assert re.search(rf"<td>window</td><td[^>]*>77</td><td[^>]*>{default}</td>", page), page
    assert 'value="window=77"' in page
    assert f"<td>{escaped(HOSTILE)}</td>" in page


def test_the_verdict_is_there_as_json(client: TestClient, run: str) -> None:
    assert client.get(f"/r/{run}/verdict.json").json()["findings"][0]["rule"] == HOSTILE


@pytest.mark.parametrize(
    ("rule", "parameters"),
    [
        ("/tmp/evil.py:Rule", ""), ("evil.py:Rule", "a=1"), (HOSTILE, ""), ("DeadRelu", "threshold=1; rm"),
        ("DeadRelu", "--labels=x"), ("DeadRelu", "a=/etc/passwd"),
    ],
)  # fmt: skip
def test_no_code_and_no_file_is_named_by_a_replay(client: TestClient, run: str, rule: str, parameters: str) -> None:
    answer = client.post(f"/r/{run}/replay", data={"rule": rule, "parameters": parameters}, headers=OURS)
    assert answer.status_code == 409
    assert answer.text.startswith(("watchglass: rule must be one", "watchglass: parameters must be"))


def test_a_stop_is_confirmed_and_only_of_a_job_that_goes_on(client: TestClient, run: str) -> None:
    answer = client.post(f"/r/{run}/stop", data={}, headers=OURS)
    assert (answer.status_code, answer.text) == (409, "watchglass: the stop must be confirmed\n")
    answer = client.post(f"/r/{run}/stop", data={"confirmed": "yes"}, headers=OURS)
    assert answer.status_code == 409
    assert "has ended" in answer.text
