"""Runs with hostile names, and a browser without a screen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from dashboards import COOKIE, HOSTILE, TOKEN, finding, steps
from watchglass.dashboard.application import application
from watchglass.dashboard.listing import Listing
from watchglass.records import RuleStatus, Status
from watchglass.testing import build_run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three runs: a sick one with hostile names everywhere, a healthy one, and one that cannot be read."""
    journal = [
        finding(HOSTILE, HOSTILE),
        RuleStatus(HOSTILE, Status.ISSUES_FOUND),
        RuleStatus("B", Status.STARVED, HOSTILE),
    ]
    build_run(tmp_path / "runs" / HOSTILE, steps(), modules={HOSTILE: "Linear"}, journal=journal)
    build_run(tmp_path / "runs" / "healthy", steps(7), journal=[RuleStatus("DeadRelu", Status.NO_ISSUES_FOUND)])
    build_run(tmp_path / "runs" / "torn", steps(1))
    (tmp_path / "runs" / "torn" / "run.json").write_text("{")
    return tmp_path / "runs"


@pytest.fixture
def listing(folder: Path) -> Iterator[Listing]:
    found = Listing(str(folder))
    found.look()
    yield found
    found.stopping.set()


@pytest.fixture
def browser(listing: Listing) -> Callable[..., TestClient]:
    """A browser that has opened the printed link, unless it has ``opened=False``."""

    def make(*, opened: bool = True, root: str = "", **more: object) -> TestClient:
        served = application(listing, token=TOKEN, cookie=COOKIE, root=root)
        client = TestClient(served, base_url="http://127.0.0.1:8420", follow_redirects=False, **more)  # type: ignore[arg-type]
        if opened:
            client.get(f"{root}/?token={TOKEN}")
        return client

    return make


@pytest.fixture
def client(browser: Callable[..., TestClient]) -> TestClient:
    return browser()


@pytest.fixture
def identifiers(listing: Listing) -> dict[str, str]:
    return {row.listed.name: row.identifier for row in listing.rows}
