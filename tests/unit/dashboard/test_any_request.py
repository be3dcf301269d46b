"""Any request that fits the description of the addresses is answered in a way that a person understands."""

from __future__ import annotations

import warnings

import pytest
from hypothesis import HealthCheck, given, settings, strategies
from starlette.testclient import TestClient

from dashboards import COOKIE, HOSTILE, TOKEN
from watchglass.dashboard.application import Dashboard
from watchglass.dashboard.listing import Listing
from watchglass.dashboard.run_pages import RUN_PAGES

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    schemathesis = pytest.importorskip("schemathesis", reason="the package schemathesis is not installed")

OURS = {"X-Watchglass": "1", "Sec-Fetch-Site": "same-origin", "Cookie": f"{COOKIE}={TOKEN}"}
ANSWERS = {200, 303, 400, 403, 404, 405, 409, 413, 414, 503}


def operations(listing: Listing) -> list[str]:
    return [f"{each.method} {each.path}" for each in Dashboard(listing).endpoints()]


def test_each_address_is_described(client: TestClient, listing: Listing) -> None:
    found = client.get("/openapi.json").json()
    described = {f"{method.upper()} {path}" for path, methods in found["paths"].items() for method in methods}
    assert described == set(operations(listing))


def test_any_request_is_answered(client: TestClient, identifiers: dict[str, str]) -> None:
    schema = schemathesis.openapi.from_dict(client.get("/openapi.json").json())
    known = strategies.sampled_from(list(identifiers.values()))
    for found in schema.get_all_operations():
        operation = found.ok()

        @given(case=operation.as_strategy(), run=known, page=strategies.sampled_from(list(RUN_PAGES)))
        @settings(
            max_examples=12, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
        )
        def answered(case: schemathesis.Case, run: str, page: str) -> None:
            if "identifier" in case.path_parameters:
                case.path_parameters["identifier"] = run
            if page and len(case.path_parameters.get("page", "")) % 2:
                case.path_parameters["page"] = page
            if case.path == "/events":
                case.query["limit"] = "1"
            path = case.formatted_path
            body = case.body if isinstance(case.body, dict) else {}
            answer = client.request(case.method, path, params=case.query, data=body, headers=OURS)
            assert answer.status_code in ANSWERS, (case.method, path, answer.text)
            assert "default-src 'none'" in answer.headers["content-security-policy"]
            if answer.headers.get("content-type", "").startswith("text/plain"):
                assert answer.text.count("\n") == 1
                assert len(answer.text) < 2000
            if answer.headers.get("content-type", "").startswith("text/html"):
                assert HOSTILE not in answer.text

        answered()
