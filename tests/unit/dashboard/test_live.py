"""What a run records appears: in what is published, in events, in the table of runs."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from clocks import Now
from dashboards import COOKIE, TOKEN, finding, steps
from waiting import PATIENCE_S, until
from watchglass.config import Clock
from watchglass.dashboard import application as addresses, watched_run
from watchglass.dashboard.application import application
from watchglass.dashboard.listing import Listing
from watchglass.dashboard.watched_run import PARTS, UNWATCHED_S, Drawn, Published, WatchedRun, WatchedRuns
from watchglass.errors import CompactedError, MissingFileError
from watchglass.records import ModuleSeconds, RuleStatus, Status, StepModules, facts
from watchglass.store import FrameKind, JournalWriter, SegmentWriter, encode_frame, layout
from watchglass.testing import Batch, RunBuilder, Step, build_run


@pytest.fixture
def growing(tmp_path: Path) -> Iterator[RunBuilder]:
    with RunBuilder(tmp_path / "runs" / "growing") as builder:
        builder.step(steps(1)[0])
        yield builder


def test_a_look_publishes_what_was_recorded_and_names_it(growing: RunBuilder) -> None:
    watched = WatchedRun(growing.store.location)
    first = watched.newest
    assert not watched.look()
    assert watched.newest is first
    growing.step({"scalars": {"loss": 0.5}})
    assert watched.look()
    assert watched.changed_since(0) == ["steps"]
    assert watched.newest.verdict.train_steps == 2
    assert first.verdict.train_steps == 1
    with JournalWriter(growing.store) as writer:
        writer.write([finding(), RuleStatus("ExplodingGradient", Status.ISSUES_FOUND)])
    assert watched.look()
    assert watched.changed_since(1) == ["findings", "rules"]
    assert watched.changed_since(0) == ["steps", "findings", "rules"]
    assert watched.changed_since(2) == []


@pytest.mark.parametrize("number", [-1, 7])
def test_a_page_with_numbers_of_another_server_shows_everything_anew(growing: RunBuilder, number: int) -> None:
    assert WatchedRun(growing.store.location).changed_since(number) == list(PARTS)


def test_the_pulse_says_how_old_numbers_and_verdict_are(growing: RunBuilder) -> None:
    now = Now()
    watched = WatchedRun(growing.store.location, now)
    assert watched.pulse().startswith("not finished · 1 training steps · last step ")
    assert watched.pulse().endswith("rules not evaluated: watchglass check RUN does")
    with JournalWriter(growing.store) as writer:
        writer.write([RuleStatus("DeadRelu", Status.IN_PROGRESS)])
        now.advance(30)
        watched.look()
        assert "rules evaluated by a process last seen 30 s ago" in watched.pulse()
    now.advance(30)
    watched.look()
    assert watched.pulse().endswith("no process evaluates rules now")


def test_statistics_that_make_no_sense_are_found_after_the_first_page(growing: RunBuilder) -> None:
    SegmentWriter(growing.store, 0, "worker_1").write([encode_frame(FrameKind.STATISTICS, b"no Arrow stream")])
    watched = WatchedRun(growing.store.location)
    first = watched.newest
    assert first.run.problems == []
    assert first.verdict.problems == ()
    assert watched.look()
    assert watched.changed_since(0) == ["findings"]
    assert "worker_1" in watched.newest.verdict.problems[0]
    assert not watched.look()


def test_the_end_of_a_process_is_published_although_nothing_is_recorded(
    growing: RunBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = Now()
    watched = WatchedRun(growing.store.location, now)
    monkeypatch.setattr(watched_run, "state_of", lambda run: "lost")
    assert not watched.look()  # the processes are looked at now and then only
    now.advance(2)
    assert watched.look()
    assert watched.pulse().startswith("lost · ")


def test_a_run_that_cannot_be_read_for_a_while_stays_as_it_was(
    growing: RunBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = WatchedRun(growing.store.location)

    def refuse() -> None:
        raise MissingFileError("the folder is gone")

    monkeypatch.setattr(watched._run, "refresh", refuse)
    assert not watched.look()
    assert watched.pulse().endswith("cannot be read now: the folder is gone")
    assert watched.newest.verdict.train_steps == 1
    monkeypatch.undo()
    watched.look()
    assert "cannot be read" not in watched.pulse()


def test_who_would_wait_for_others_gets_the_view_as_it_was(growing: RunBuilder) -> None:
    watched = WatchedRun(growing.store.location)

    def draw(published: Published) -> Drawn:
        return Drawn((), f"look {published.number}", published.number, "")

    assert watched.drawn("a", draw).html == "look 0"
    growing.step({"scalars": {"loss": 0.5}})
    watched.look()
    begun, go_on = threading.Event(), threading.Event()

    def slow(published: Published) -> Drawn:
        begun.set()
        go_on.wait(PATIENCE_S)
        return draw(published)

    other = threading.Thread(target=watched.drawn, args=("b", slow))
    other.start()
    begun.wait(PATIENCE_S)
    assert watched.drawn("a", draw).html == "look 0"  # and its number says so
    go_on.set()
    other.join()
    assert watched.drawn("a", draw).html == "look 1"
    assert watched.drawn("b", draw).html == "look 1"


def test_who_would_wait_for_a_long_drawing_gets_the_view_as_it_was(growing: RunBuilder) -> None:
    watched = WatchedRun(growing.store.location)
    go_on, drawn = threading.Event(), threading.Event()

    def draw(published: Published) -> Drawn:
        if published.number:
            go_on.wait(PATIENCE_S)
        drawn.set()
        return Drawn((), f"look {published.number}", published.number, "")

    assert watched.drawn("a", draw).html == "look 0"
    drawn.clear()
    for value in (0.5, 0.25):
        growing.step({"scalars": {"loss": value}})
        watched.look()
        assert watched.drawn("a", draw).html == "look 0"
    go_on.set()
    drawn.wait(PATIENCE_S)
    assert until(lambda: watched.drawn("a", draw).html == "look 2")


def test_a_view_that_is_many_looks_behind_is_waited_for(growing: RunBuilder) -> None:
    watched = WatchedRun(growing.store.location)

    def draw(published: Published) -> Drawn:
        if published.number:
            threading.Event().wait(3 * watched_run._WAIT_S)
        return Drawn((), f"look {published.number}", published.number, "")

    assert watched.drawn("a", draw).html == "look 0"
    for _ in range(watched_run._MOST_BEHIND + 1):
        growing.step({"scalars": {"loss": 0.5}})
        watched.look()
    assert watched.drawn("a", draw).html == f"look {watched_run._MOST_BEHIND + 1}"


def test_a_view_that_cannot_be_drawn_says_why_and_is_tried_again(growing: RunBuilder) -> None:
    watched = WatchedRun(growing.store.location)

    def fail(published: Published) -> Drawn:
        raise CompactedError("compacted")

    for _ in range(2):
        with pytest.raises(CompactedError, match="compacted"):
            watched.drawn("a", fail)
    assert watched.drawn("a", lambda published: Drawn((), "drawn", published.number, "")).html == "drawn"


def test_a_run_that_nobody_looks_at_is_closed(growing: RunBuilder) -> None:
    now = Now()
    watched = WatchedRun(growing.store.location, now)
    now.advance(UNWATCHED_S + 1)
    assert watched.unwatched
    assert watched.newest
    assert not watched.unwatched


def test_each_run_is_read_by_one_thread_until_the_server_stops(growing: RunBuilder) -> None:
    stopping = threading.Event()
    before = threading.active_count()
    runs = WatchedRuns(stopping)
    watched = runs.watch(growing.store.location)
    assert runs.watch(growing.store.location) is watched
    growing.step({"scalars": {"loss": 0.5}})
    until(lambda: watched.newest.verdict.train_steps == 2)
    stopping.set()
    until(lambda: threading.active_count() == before)


@pytest.fixture
def listing_of() -> Iterator[Callable[[RunBuilder], Listing]]:
    """Makes the listing of the folder of a run."""
    made: list[Listing] = []

    def make(growing: RunBuilder) -> Listing:
        made.append(Listing(str(Path(growing.store.location).parent)))
        return made[-1]

    yield make
    for each in made:
        each.stopping.set()


Listings = Callable[[RunBuilder], Listing]


def client_of(listing: Listing, *, read_only: bool = False) -> tuple[TestClient, str]:
    served = application(listing, token=TOKEN, cookie=COOKIE, read_only=read_only)
    client = TestClient(served, base_url="http://127.0.0.1:8420", cookies={COOKIE: TOKEN})
    return client, listing.rows[0].identifier


def _bar(page: str) -> str:
    """The links of a page, and where it asks for the numbers under its cursor."""
    return page.partition("data-parts=")[2].partition('<p class="pulse"')[0]


def test_a_run_is_opened_once_and_its_page_comes_before(
    growing: RunBuilder, listing_of: Listings, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    go_on = threading.Event()

    class Slow(WatchedRun):
        def __init__(self, location: str, clock: Clock) -> None:
            opened.append(location)
            go_on.wait(PATIENCE_S)
            super().__init__(location, clock)

    monkeypatch.setattr(watched_run, "WatchedRun", Slow)
    monkeypatch.setattr(addresses, "_PATIENCE_S", 0.01)
    listing = listing_of(growing)
    client, run = client_of(listing)
    for _ in range(2):
        page = client.get(f"/r/{run}")
        assert page.status_code == 200
        assert "The run is being opened." in page.text
    opening = page.text
    go_on.set()
    (event,) = events(client.get(f"/events?run={run}&limit=1").text)
    assert event["event"] == "changed"
    monkeypatch.setattr(addresses, "_PATIENCE_S", 0.0)  # a run that is open is not waited for
    page = client.get(f"/r/{run}")
    assert "1 training step" in page.text
    # Only what lies in <main> is fetched again.
    assert _bar(opening) == _bar(page.text)
    assert 'href="/r/' in _bar(opening)
    listing.look()  # the table has what the page has
    assert listing.rows[0].train_steps == 1
    assert opened == [growing.store.location]


def test_the_page_of_a_run_of_many_workers_begins_with_its_worst_workers(
    tmp_path: Path, listing_of: Listings, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RunBuilder(tmp_path / "runs" / "many", workers=70) as builder:
        builder.step({"scalars": {"loss": 0.5}})
        builder.leave()
    with JournalWriter(builder.store) as writer:
        writer.write([replace(finding(), worker="worker_42")])
    go_on = threading.Event()

    class Slow(WatchedRun):
        def __init__(self, location: str, clock: Clock) -> None:
            go_on.wait(PATIENCE_S)
            super().__init__(location, clock)

    monkeypatch.setattr(watched_run, "WatchedRun", Slow)
    listing = listing_of(builder)
    client, run = client_of(listing)
    page = client.get(f"/r/{run}").text
    assert "one of 70 workers" in page
    assert "1 error" in page
    assert "loss 0.5" in page
    assert "<td>worker_42</td>" in page
    go_on.set()
    client.get(f"/events?run={run}&limit=1")
    assert "is being opened" not in client.get(f"/r/{run}").text
    listing.look()
    assert (listing.rows[0].state, listing.rows[0].workers) == ("finished", 70)


def events(text: str) -> list[dict[str, str]]:
    return [
        dict(line.split(": ", 1) for line in block.split("\n"))
        for block in text.strip().split("\n\n")
        if "event: " in block
    ]


def test_events_say_what_has_changed_since_the_page(growing: RunBuilder, listing_of: Listings) -> None:
    client, run = client_of(listing_of(growing))
    page = client.get(f"/r/{run}").text
    address = page.split('data-events="')[1].split('"')[0].replace("&amp;", "&")
    growing.step({"scalars": {"loss": 0.5}})
    answer = client.get(f"{address}&limit=1")
    assert answer.headers["content-type"].startswith("text/event-stream")
    (pulse,) = events(answer.text)
    # The page is new, so the first event may tell its age only; then comes what has changed.
    if pulse["event"] == "pulse":
        _, pulse = events(client.get(f"{address}&limit=2").text)
    assert pulse["event"] == "changed"
    assert json.loads(pulse["data"]) == {"run": run, "changed": ["steps"], "step": 1}
    # A browser that lost its connection goes on from the last event.
    (event,) = events(client.get(f"{address}&limit=1", headers={"Last-Event-ID": pulse["id"]}).text)
    assert event["event"] == "pulse"


def test_events_of_another_start_of_the_server_are_everything(growing: RunBuilder, listing_of: Listings) -> None:
    client, run = client_of(listing_of(growing))
    (event,) = events(client.get(f"/events?run={run}&after=abcdef-0&limit=1").text)
    assert json.loads(event["data"])["changed"] == list(PARTS)


def test_the_table_takes_in_new_runs_and_what_they_record(growing: RunBuilder, tmp_path: Path) -> None:
    listing = Listing(str(tmp_path / "runs"))
    listing.look()
    (row,) = listing.rows
    assert (row.train_steps, row.state, row.live) == (1, "not finished", True)
    number = listing.number
    listing.look()
    assert listing.number == number
    growing.step({"scalars": {"loss": 0.25}})
    build_run(tmp_path / "runs" / "later", steps(3))
    listing.look()
    assert listing.number > number
    later, row = listing.rows
    assert (row.train_steps, row.losses[-1]) == (2, 0.25)
    assert (later.listed.name, later.train_steps, later.live) == ("later", 3, False)


def test_the_table_waits_for_the_verdict_on_a_run_that_has_ended(tmp_path: Path) -> None:
    now = Now()
    with RunBuilder(tmp_path / "runs" / "ended") as builder, JournalWriter(builder.store) as writer:
        for step in steps(3):
            builder.step(step)
        writer.write([RuleStatus("DeadRelu", Status.IN_PROGRESS)])
        listing = Listing(str(tmp_path / "runs"), now)
        listing.look()
        builder.leave()
        now.advance(2)
        listing.look()
        assert listing.rows[0].state == "finished"
        assert listing.rows[0].headline.startswith("not judged: its rules have not been evaluated to the end")
        writer.write([RuleStatus("DeadRelu", Status.NO_ISSUES_FOUND)])
        now.advance(2)
        listing.look()
        builder.store.write(layout.JUDGED, b'{"attempt": 0}')
    now.advance(2)
    listing.look()
    assert listing.rows[0].headline == "no issues found"
    watched = listing.runs.opened(listing.rows[0].listed.location)
    assert watched.is_settled


def test_the_table_does_not_wait_for_an_evaluator_that_is_gone(tmp_path: Path) -> None:
    now = Now()
    with RunBuilder(tmp_path / "runs" / "ended") as builder, JournalWriter(builder.store) as writer:
        builder.step(steps(1)[0])
        writer.write([RuleStatus("DeadRelu", Status.IN_PROGRESS)])
        builder.leave()
        watched = WatchedRun(builder.store.location, now)
        assert not watched.is_settled
        now.advance(61)
        assert watched.is_settled


def test_the_table_has_means_of_a_long_loss_and_its_last_value(tmp_path: Path) -> None:
    build_run(tmp_path / "runs" / "long", [{"scalars": {"loss": 1.0 / (n + 1)}} for n in range(200)])
    listing = Listing(str(tmp_path / "runs"))
    listing.look()
    (row,) = listing.rows
    assert row.loss == 1 / 200
    # A single loss behind means would look like a jump.
    assert (len(row.losses), row.losses[-1]) == (60, pytest.approx((1 / 200 + 1 / 199 + 1 / 198 + 1 / 197) / 4))


def test_a_run_that_goes_on_is_no_reason_to_worry_until_it_is_lost(
    growing: RunBuilder, listing_of: Listings, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, run = client_of(listing_of(growing))
    assert '<header class="info">' in client.get(f"/r/{run}").text
    listing = listing_of(growing)
    listing.look()
    assert listing.rows[0].tone == "info"
    monkeypatch.setattr(watched_run, "state_of", lambda run: "lost")
    client, run = client_of(listing_of(growing))
    assert '<header class="warning">' in client.get(f"/r/{run}").text


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match="holds no runs; give a run, or a folder"):
        Listing(str(tmp_path))


OURS = {"X-Watchglass": "1", "Sec-Fetch-Site": "same-origin"}


def test_a_job_is_asked_for_a_profile_and_the_answer_says_of_which_steps(
    growing: RunBuilder, listing_of: Listings
) -> None:
    client, run = client_of(listing_of(growing))
    assert f'action="/r/{run}/profile"' in client.get(f"/r/{run}/time").text
    answer = client.post(f"/r/{run}/profile", data={"steps": "3"}, headers=OURS)
    assert (answer.status_code, answer.text) == (
        200, "asked for steps 1 to 3; their operators will appear below\n",
    )  # fmt: skip
    request = growing.store.list("control/profile")
    assert request


def test_a_job_is_stopped_at_a_step(growing: RunBuilder, listing_of: Listings) -> None:
    client, run = client_of(listing_of(growing))
    assert f'action="/r/{run}/stop"' in client.get(f"/r/{run}").text
    answer = client.post(f"/r/{run}/stop", data={"confirmed": "yes"}, headers=OURS)
    assert (answer.status_code, answer.text) == (200, "all workers end after step 1\n")
    assert any("stop" in entry.path for entry in growing.store.list("control"))


@pytest.mark.parametrize(
    ("given", "changed", "said"),
    [
        ({"module_times": "on"}, {"module_times": True}, "modules are timed in some steps"),
        ({"module_times": "off"}, {"module_times": False}, "modules are not timed"),
        ({"enabled": "off"}, {"enabled": False}, "the machine is not sampled, and nothing is profiled"),
    ],
)
def test_the_profiler_of_a_job_is_changed(
    growing: RunBuilder, listing_of: Listings, given: dict[str, str], changed: dict[str, bool], said: str
) -> None:
    client, run = client_of(listing_of(growing))
    page = client.get(f"/r/{run}").text
    (name,) = given
    assert f'<select name="{name}"><option' in page
    answer = client.post(f"/r/{run}/settings", data=given, headers=OURS)
    assert (answer.status_code, answer.text) == (200, f"from step 1 on {said}\n")
    (commit,) = (each for each in growing.store.list("control/profile") if "commit" in each.path)
    assert json.loads(growing.store.read(commit.path))["settings"] == changed


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "a change must have one of sample_interval_s, enabled, module_times but has none"),
        ({"enabled": "maybe"}, "enabled must be on or off but got 'maybe'"),
        ({"enabled": "on"}, "has no sampler, which only begins with the run, so enabled cannot be True"),
        ({"sample_interval_s": "soon"}, "sample_interval_s must be a number of seconds but got 'soon'"),
    ],
)
def test_changes_that_cannot_be_are_refused_in_a_line(
    growing: RunBuilder, listing_of: Listings, given: dict[str, str], said: str
) -> None:
    client, run = client_of(listing_of(growing))
    answer = client.post(f"/r/{run}/settings", data=given, headers=OURS)
    assert (answer.status_code, answer.text.count("\n")) == (409, 1)
    assert said in answer.text
    reading, _ = client_of(listing_of(growing), read_only=True)
    assert "<select" not in reading.get(f"/r/{run}").text


def test_switches_begin_with_what_was_changed_last(growing: RunBuilder, listing_of: Listings) -> None:
    changed = facts.ProfilerChanged(1, module_times=True, enabled=False, sample_interval_s=2.5)
    growing.step(Step({"loss": 1.0}, facts={"profiler_changed": changed.to_data()}))
    client, run = client_of(listing_of(growing))
    page = client.get(f"/r/{run}").text
    for name, selected in (("enabled", "off"), ("module_times", "on")):
        (select,) = re.findall(rf'<select name="{name}">(.*?)</select>', page)
        assert f"<option selected>{selected}</option>" in select
    assert 'name="sample_interval_s" value="2.5"' in page


def test_switches_begin_with_what_the_job_records(growing: RunBuilder, listing_of: Listings) -> None:
    timed = StepModules((ModuleSeconds("fc", "Linear", 0, 1, 0.001, 0.0),))
    growing.step(Step({"loss": 1.0}, facts={StepModules.KIND: timed.to_data()}))
    client, run = client_of(listing_of(growing))
    page = client.get(f"/r/{run}").text
    for name, selected in (("enabled", "off"), ("module_times", "on")):
        (select,) = re.findall(rf'<select name="{name}">(.*?)</select>', page)
        assert f"<option selected>{selected}</option>" in select


def test_the_interval_of_samples_begins_with_that_of_the_samples(growing: RunBuilder, listing_of: Listings) -> None:
    growing.batch(Batch(metrics={"cpu.utilization": [20.0] * 9}, seconds=4.5))
    client, run = client_of(listing_of(growing))
    assert 'name="sample_interval_s" value="0.5"' in client.get(f"/r/{run}").text


@pytest.mark.parametrize("steps", ["", "0", "-3", "many", "1000000"])
def test_numbers_of_steps_that_cannot_be_are_refused_in_a_line(
    growing: RunBuilder, listing_of: Listings, steps: str
) -> None:
    client, run = client_of(listing_of(growing))
    answer = client.post(f"/r/{run}/profile", data={"steps": steps}, headers=OURS)
    assert answer.status_code == 409
    assert answer.text.startswith("watchglass: steps of a profile window must be ")
    assert client.post(f"/r/{run}/profile", content=b"x" * 2000, headers=OURS).status_code == 413


def test_a_run_that_has_ended_or_must_only_be_read_is_asked_nothing(growing: RunBuilder, listing_of: Listings) -> None:
    reading, run = client_of(listing_of(growing), read_only=True)
    assert "<form" not in reading.get(f"/r/{run}/time").text
    assert reading.post(f"/r/{run}/profile", data={"steps": "3"}, headers=OURS).status_code in (404, 405)
    growing.leave()
    client, _ = client_of(listing_of(growing))
    assert "<form" not in client.get(f"/r/{run}/time").text
    answer = client.post(f"/r/{run}/profile", data={"steps": "3"}, headers=OURS)
    assert answer.status_code == 409
    assert "has ended" in answer.text
