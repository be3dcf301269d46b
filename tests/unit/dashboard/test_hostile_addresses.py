"""Whatever an address is, it is answered: with a page, or in a line that says why not."""

from __future__ import annotations

from urllib.parse import quote

from hypothesis import HealthCheck, given, settings, strategies as st
from starlette.testclient import TestClient

words = st.text(max_size=30)
numbers = st.sampled_from(["0", "-1", "1e9", "99999999999999999999", "٣", "0x10", "NaN"])
#: Fixtures are not made again for each example, which is right for a server.
sturdy = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True
)


def check(client: TestClient, address: str) -> None:
    answer = client.get(address)  # an exception in the application is raised here
    assert answer.status_code in (200, 303, 404, 414), (address, answer.text)
    if answer.status_code >= 400:
        assert answer.text.startswith("watchglass: ")
        assert answer.text.count("\n") == 1


@sturdy
@given(q=words, sort=words | st.sampled_from(["-", "--run", "run"]), page=words | numbers)
def test_the_table_takes_any_query(client: TestClient, q: str, sort: str, page: str) -> None:
    check(client, f"/?q={quote(q)}&sort={quote(sort)}&page={quote(page)}")


@sturdy
@given(page=words, field=words, other=words)
def test_a_run_takes_any_page(
    client: TestClient, identifiers: dict[str, str], page: str, field: str, other: str
) -> None:
    run = identifiers["healthy"]
    check(client, f"/r/{run}/{quote(page, safe='')}?{quote(other)}={quote(field)}")
    check(client, f"/r/{run}/layers?field={quote(field)}")
    check(client, f"/r/{quote(page, safe='')}")
    check(client, f"/static/{quote(page, safe='')}")


@sturdy
@given(run=words, after=words | st.sampled_from(["-", "a-", "-1", "a-99999999999999999999999"]))
def test_events_take_any_state(client: TestClient, identifiers: dict[str, str], run: str, after: str) -> None:
    check(client, f"/events?run={identifiers['healthy']}&after={quote(after)}&limit=1")
    check(client, f"/events?run={quote(run)}&after={quote(after)}&limit=1")
