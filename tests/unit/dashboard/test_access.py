"""Only a browser that opened the printed link reads anything; other sites, other names and paths get nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from dashboards import COOKIE, TOKEN
from watchglass.dashboard.access import Access
from watchglass.dashboard.application import Dashboard
from watchglass.dashboard.listing import Listing
from watchglass.dashboard.shell import Links

SCRIPT = Links().asset("dashboard.js")
Browser = Callable[..., TestClient]


def test_the_token_moves_from_the_address_into_a_cookie(browser: Browser) -> None:
    client = browser(opened=False)
    answer = client.get(f"/latest?token={TOKEN}&q=a%20b")
    assert answer.status_code == 303
    assert answer.headers["location"] == "/latest?q=a+b"
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith(f"{COOKIE}={TOKEN};")
    assert {"HttpOnly", "Path=/", "SameSite=lax"} <= set(cookie.split("; "))
    assert client.get("/").status_code == 200


@pytest.mark.parametrize(
    "path", ["/", "/latest", "/r/0123456789abcdef", "/events", Links().asset("dashboard.js"), "/no"]
)
def test_nothing_is_shown_without_the_cookie(browser: Browser, path: str) -> None:
    answer = browser(opened=False).get(path)
    assert answer.status_code == 403
    assert "open the link that watchglass dashboard printed" in answer.text


@pytest.mark.parametrize("token", ["", "the-toke", "the-token2", "THE-TOKEN", "ü", "%00"])
def test_a_wrong_token_is_refused(browser: Browser, token: str) -> None:
    answer = browser(opened=False).get(f"/?token={token}")
    assert answer.status_code == 403
    assert "set-cookie" not in answer.headers


def test_the_cookie_of_another_port_is_none_of_ours(browser: Browser) -> None:
    client = browser(opened=False)
    client.cookies.set("watchglass-8421", TOKEN)
    assert client.get("/").status_code == 403


@pytest.mark.parametrize("host", ["evil.example:8420", "127.0.0.1.evil.example", "", "[::2]:8420", "0.0.0.0"])
@pytest.mark.parametrize("path", ["/", SCRIPT, f"/?token={TOKEN}"])
def test_another_name_of_the_host_is_refused_before_anything_else(client: TestClient, host: str, path: str) -> None:
    answer = client.get(path, headers={"Host": host})
    assert answer.status_code == 400
    assert "--allow-host" in answer.text


@pytest.mark.parametrize("host", ["localhost:1", "LOCALHOST:8420", "127.0.0.1", "[::1]:8420"])
def test_this_machine_may_be_called_by_any_port_which_tunnels_change(client: TestClient, host: str) -> None:
    assert client.get("/", headers={"Host": host, "Cookie": f"{COOKIE}={TOKEN}"}).status_code == 200


def test_a_redirect_never_leaves_the_server(browser: Browser) -> None:
    answer = browser(opened=False).get(f"http://127.0.0.1:8420//evil.example/?token={TOKEN}")
    assert answer.headers["location"] == "/evil.example/"


def test_every_answer_forbids_what_pages_do_not_do(client: TestClient) -> None:
    for path in ("/", "/no", "/r/x/y"):
        headers = client.get(path).headers
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none';")
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cache-control"] == "no-store"


def test_a_long_address_is_refused(client: TestClient) -> None:
    assert client.get(f"/?q={'x' * 5000}").status_code == 414


def guarded() -> TestClient:
    """What a page that changes something would be."""

    def change(request: Request) -> PlainTextResponse:
        return PlainTextResponse("changed")

    served = Starlette(routes=[Route("/stop", change, methods=["POST", "DELETE"])])
    return TestClient(Access(served, TOKEN, COOKIE), base_url="http://127.0.0.1:8420", cookies={COOKIE: TOKEN})


OURS = {"X-Watchglass": "1", "Sec-Fetch-Site": "same-origin"}


@pytest.mark.parametrize("method", ["POST", "DELETE"])
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (OURS, 200),
        ({"X-Watchglass": "1", "Origin": "http://127.0.0.1:8420"}, 200),
        ({"X-Watchglass": "1"}, 403),
        ({"X-Watchglass": "1", "Origin": "http://evil.example"}, 403),
        ({"X-Watchglass": "1", "Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "same-origin"}, 403),
        ({**OURS, "Sec-Fetch-Site": "cross-site"}, 403),
        ({**OURS, "Sec-Fetch-Site": "same-site", "Origin": "http://127.0.0.1:8420"}, 403),
    ],
)
def test_only_our_pages_may_change_something(method: str, headers: dict[str, str], status: int) -> None:
    assert guarded().request(method, "/stop", headers=headers).status_code == status


def test_the_token_in_an_address_changes_nothing() -> None:
    assert guarded().post(f"/stop?token={TOKEN}", headers={"Cookie": ""}).status_code == 403


def test_only_what_asks_something_of_a_job_is_no_get_and_read_only_takes_it_away(listing: Listing) -> None:
    for read_only, expected in ((False, [{"POST"}] * 4), (True, [])):
        routes = Dashboard(listing, read_only=read_only).routes()
        assert [route.methods for route in routes if route.methods != {"GET", "HEAD"}] == expected


@pytest.mark.parametrize(
    "path",
    ["/r/..%2f..%2fetc", "/static/..%2fserving.py", "/r/healthy", "/r/%2e%2e/layers"],
)
def test_runs_and_files_have_no_paths(client: TestClient, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 404
    assert answer.text.startswith("watchglass: there is no such")


def test_behind_a_proxy_every_address_begins_with_its_path(browser: Browser, identifiers: dict[str, str]) -> None:
    client = browser(root="/proxy/1")
    text = client.get("/proxy/1/").text
    assert text.count('href="/') == text.count('href="/proxy/1/')
    assert 'action="/proxy/1/' in text
    assert client.get("/proxy/1/latest").headers["location"].startswith("/proxy/1/r/")
    # Some proxies take their path away.
    headers = {"Cookie": f"{COOKIE}={TOKEN}"}
    assert client.get(f"/r/{identifiers['healthy']}", headers=headers).status_code == 200


@pytest.mark.parametrize("headers", [{}, {"X-Watchglass": "1", "Origin": "http://evil.example"}])
def test_another_site_cannot_have_a_job_profiled(
    client: TestClient, identifiers: dict[str, str], headers: dict[str, str]
) -> None:
    assert client.post(f"/r/{identifiers['healthy']}/profile", headers=headers).status_code == 403
