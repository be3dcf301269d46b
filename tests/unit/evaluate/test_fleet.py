"""Many runs in one process: found while it goes, each in its turn, none in the way of another."""

from __future__ import annotations

import gc
import json
import time
import weakref
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import pytest

from clocks import Now
from evaluators.fleets import HEALTHY, IMPATIENT, RULES, SICK, Heard, following, turn_until
from moments import FollowedCase
from watchglass.config import TIMING, EvaluatorConfig
from watchglass.errors import InvalidValueError, StoreError
from watchglass.evaluate import Snapshots, replay
from watchglass.evaluate.live.evaluator import Evaluator
from watchglass.evaluate.live.snapshot import RunSnapshot
from watchglass.evaluate.many.fleet import Fleet
from watchglass.evaluate.many.member import State
from watchglass.records import Mode, Severity, Status
from watchglass.run import open_run
from watchglass.run.search import MOST_FOLDERS
from watchglass.store import JournalWriter, LocalStore, layout, lease_holder, this_process
from watchglass.store.media.objects import ObjectStore
from watchglass.testing import RunBuilder, Step, build_run


def test_runs_are_judged_each_in_its_own_journal_also_those_that_come_later(tmp_path: Path, heard: Heard) -> None:
    build_run(tmp_path / "healthy", HEALTHY)
    build_run(tmp_path / "group" / "sick", SICK)
    with following(tmp_path, heard) as fleet:
        turn_until(fleet, lambda: len(heard.ends) == 2)
        with RunBuilder(tmp_path / "late") as builder:
            for step in SICK:
                builder.step(step)
                fleet.turn()
            turn_until(fleet, lambda: open_run(tmp_path / "late").journal.findings)
            assert "late" not in heard.ends
            builder.leave()
        turn_until(fleet, lambda: len(heard.ends) == 3)
        assert fleet.members == []
    assert {name: (end.ended, len(end.evaluation.findings)) for name, end in heard.ends.items()} == {
        "healthy": ("finished", 0), "group/sick": ("finished", 1), "late": ("finished", 1),
    }  # fmt: skip
    for name in ("group/sick", "late"):
        expected = [finding.to_json() for finding in replay(tmp_path / name, RULES).findings]
        assert [finding.to_json() for finding in open_run(tmp_path / name).journal.findings] == expected
        assert lease_holder(LocalStore(tmp_path / name)) is None


def test_what_is_wrong_with_one_run_is_reported_once_and_harms_no_other(tmp_path: Path, heard: Heard) -> None:
    build_run(tmp_path / "well", HEALTHY)
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "run.json").write_text("{")
    build_run(tmp_path / "future", HEALTHY)
    manifest = json.loads((tmp_path / "future" / "run.json").read_text())
    (tmp_path / "future" / "run.json").write_text(json.dumps({**manifest, "format": [99, 0]}))
    build_run(tmp_path / "odd", HEALTHY)

    class AtFault(Evaluator):
        def turn(self, *args: Any) -> bool:
            if "odd" in self.snapshot().run:
                raise ZeroDivisionError("by chance")
            return super().turn(*args)

    with following(tmp_path, heard, evaluator=AtFault) as fleet:
        turn_until(fleet, lambda: "well" in heard.ends and len(heard.left_out) == 3)
        for _ in range(50):
            time.sleep(min(0.01, fleet.turn()))
    assert "is not JSON" in heard.left_out["damaged"]
    assert "upgrade watchglass" in heard.left_out["future"]
    assert "ZeroDivisionError: by chance" in heard.left_out["odd"]
    assert lease_holder(LocalStore(tmp_path / "odd")) is None
    assert heard.sentences == []


def test_a_run_that_has_ended_and_was_judged_is_not_opened_again_until_it_goes_on(tmp_path: Path, heard: Heard) -> None:
    build_run(tmp_path / "old", SICK)
    with following(tmp_path, heard) as fleet:
        turn_until(fleet, lambda: heard.ends)
    again = Heard()
    with following(tmp_path, again) as fleet:
        turn_until(fleet, lambda: fleet.judged_before == 1)
        for _ in range(20):
            time.sleep(min(0.01, fleet.turn()))
        assert again.followed == []
        with RunBuilder(tmp_path / "old") as builder:
            builder.step(HEALTHY[0])
            turn_until(fleet, lambda: again.followed == ["old"])
            builder.leave()
        turn_until(fleet, lambda: again.ends)
    assert again.ends["old"].ended == "finished"
    assert Status.ISSUES_FOUND in {status.status for status in again.ends["old"].evaluation.statuses}


def test_an_evaluator_beside_the_training_says_that_the_run_was_judged(tmp_path: Path, heard: Heard) -> None:
    build_run(tmp_path / "run", HEALTHY)
    evaluator = Evaluator(EvaluatorConfig(str(tmp_path / "run"), 0, RULES))
    evaluator.open(lambda _: False)
    while evaluator.turn():
        pass
    evaluator.finish()
    with following(tmp_path, heard) as fleet:
        turn_until(fleet, lambda: fleet.judged_before == 1)
    assert heard.followed == []


def test_an_evaluation_that_was_broken_off_judges_nothing(tmp_path: Path, heard: Heard) -> None:
    with RunBuilder(tmp_path / "run") as builder:
        builder.step(HEALTHY[0])
        with following(tmp_path, heard) as fleet:
            turn_until(fleet, lambda: fleet.members and fleet.members[0].caught_up)
        assert heard.ends["run"].left_off == "interrupted"
        assert heard.ends["run"].ended == ""
        assert LocalStore(tmp_path / "run").size(layout.JUDGED) is None


def test_a_run_that_another_evaluator_follows_is_left_to_it(tmp_path: Path, heard: Heard) -> None:
    build_run(tmp_path / "run", HEALTHY)
    build_run(tmp_path / "ours", HEALTHY)
    with JournalWriter(LocalStore(tmp_path / "run")), following(tmp_path, heard) as fleet:
        turn_until(fleet, lambda: "ours" in heard.ends)
        turn_until(fleet, lambda: [member.state for member in fleet.members] == [State.HELD])
        for _ in range(5):
            fleet.turn()
        assert heard.followed == ["ours"]
        (sentence,) = heard.sentences
        assert sentence.startswith("[run] is followed by process ")
        assert fleet.idle_s == 0.0, "it is still to be judged by somebody"


def test_a_run_whose_evaluator_elsewhere_has_gone_is_taken_over_after_its_lease(tmp_path: Path, heard: Heard) -> None:
    build_run(tmp_path / "run", SICK)
    store, now = LocalStore(tmp_path / "run"), Now()
    store.write(layout.LEASE, json.dumps({**this_process().to_json(), "host": "another-machine"}).encode())
    with following(tmp_path, heard, clock=now) as fleet:
        for second in range(25):
            now.s += 1
            if second % 10 == 0:  # it lives
                store.write(layout.LEASE_RENEWED, str(second).encode(), replace=True)
            fleet.turn()
        for _ in range(25):
            now.s += 1
            fleet.turn()
        assert heard.followed == []
        assert len(heard.sentences) == 1
        for _ in range(40):
            now.s += 1
            fleet.turn()
        assert heard.followed == ["run"]
        assert heard.ends["run"].ended == "finished"


def test_a_run_that_loses_its_lease_is_left_to_the_other(tmp_path: Path, heard: Heard) -> None:
    with RunBuilder(tmp_path / "run") as builder:
        builder.step(HEALTHY[0])
        now = Now()
        with following(tmp_path, heard, clock=now) as fleet:
            turn_until(fleet, lambda: heard.followed)
            store = LocalStore(tmp_path / "run")
            claim = json.loads(store.read(layout.LEASE))
            store.write(f"{layout.LEASE}.1", json.dumps({**claim, "pid": 1, "host": "elsewhere"}).encode())
            now.advance(TIMING.lease_renewal_s)
            turn_until(fleet, lambda: fleet.members[0].state is State.HELD)
        assert "[run] is followed by process 1 on elsewhere and left to it" in heard.sentences


def test_a_run_without_a_step_is_reported_and_followed_when_it_begins(tmp_path: Path, heard: Heard) -> None:
    now = Now()
    builder = RunBuilder(tmp_path / "run", workers=0)
    with following(tmp_path, heard, clock=now, wait_s=60.0) as fleet:
        for _ in range(70):
            now.s += 1
            fleet.turn()
        assert "no training step came within 60 s" in heard.left_out["run"]
        assert lease_holder(LocalStore(tmp_path / "run")) is None
        assert fleet.idle_s > 0
        assert heard.followed == ["run"]
        with RunBuilder(tmp_path / "run") as later:
            assert later.attempt == builder.attempt + 1
            later.step(HEALTHY[0])
            for _ in range(10):
                now.s += 1
                fleet.turn()
            assert heard.followed == ["run", "run"]


def test_memory_of_a_run_that_has_ended_is_a_few_words(tmp_path: Path, heard: Heard) -> None:
    for number in range(3):
        build_run(tmp_path / f"run{number}", SICK)
    snapshots, kept = Snapshots(), weakref.WeakSet[Evaluator]()

    def made(*args: Any, **more: Any) -> Evaluator:
        evaluator = Evaluator(*args, **more)
        kept.add(evaluator)
        return evaluator

    with following(tmp_path, heard, snapshots=snapshots, evaluator=made) as fleet:
        turn_until(fleet, lambda: kept)
        turn_until(fleet, lambda: len(heard.ends) == 3)
        gc.collect()
        assert not kept
    assert sorted(found.name for found in snapshots.newest) == ["run0", "run1", "run2"]
    (found, *_) = snapshots.newest
    assert (found.ended, found.attempt, dict(found.train_steps)) == ("finished", 0, {"worker_0": 15})
    assert [finding.rule for finding in found.findings] == ["ExplodingTensor"]
    assert found.run == str(tmp_path / found.name)
    assert {status.rule for status in found.statuses} == {rule.name for rule in RULES}


def test_the_last_value_of_a_scalar_is_known_while_the_run_goes_on(tmp_path: Path, heard: Heard) -> None:
    snapshots = Snapshots()
    with RunBuilder(tmp_path / "run") as builder, following(tmp_path, heard, snapshots=snapshots) as fleet:
        builder.step(scalars={"loss": 0.5})
        turn_until(fleet, lambda: snapshots.newest and snapshots.newest[0].scalars.get("loss") == 0.5)
        before = snapshots.newest
        builder.step(scalars={"loss": 0.25})
        turn_until(fleet, lambda: snapshots.newest[0].scalars["loss"] == 0.25)
        assert before[0].scalars["loss"] == 0.5, "no thread changes what another may be reading"


def test_a_snapshot_says_what_a_run_that_is_opened_says(tmp_path: Path, heard: Heard) -> None:
    """Also of what was recorded once, long ago: the scalars are those that rules look back on."""
    steps = [Step({"loss": 1.0 - n / 200, **({"once": 7.0} if n == 3 else {})}) for n in range(150)]
    snapshots = Snapshots()
    with following(tmp_path, heard, snapshots=snapshots) as fleet:
        build_run(tmp_path / "run", [*steps, *SICK], workers=2)
        turn_until(fleet, lambda: heard.ends)
    (found,), run = snapshots.newest, open_run(tmp_path / "run").snapshot()
    assert found.findings
    assert [each.to_json() for each in found.findings] == [each.to_json() for each in run.journal.findings]
    assert (found.attempt, list(found.statuses)) == (run.attempt, run.journal.statuses)
    assert found.train_steps == {worker: len(run.steps(worker=worker)) for worker in run.workers}
    last = {name: run.scalars(name)[1][-1] for name in run.tensor_names() if len(run.scalars(name)[1])}
    assert found.scalars.keys() == last.keys() >= {"loss", "once"}
    assert [str(found.scalars[name]) for name in last] == [str(value) for value in last.values()]


def test_a_snapshot_has_the_scalars_of_the_first_worker_that_trains(tmp_path: Path, heard: Heard) -> None:
    steps = [Step({"loss": 9.0}, mode=Mode.EVAL), Step({"loss": 0.5}, workers=[1])]
    snapshots = Snapshots()
    with following(tmp_path, heard, snapshots=snapshots) as fleet:
        build_run(tmp_path / "run", steps, workers=2)
        turn_until(fleet, lambda: heard.ends)
    assert snapshots.newest[0].scalars == {"loss": 0.5}


def test_the_scalars_of_the_attempt_before_stay_until_the_next_one_trains(run_path: Path) -> None:
    case = FollowedCase(run_path, ())
    case.write(Step({"loss": 0.5}))
    assert case.evaluator.snapshot().scalars == {"loss": 0.5}
    case.builder.leave()
    case.builder.close()
    with RunBuilder(run_path) as builder:
        builder.step(Step({"loss": 9.0}, mode=Mode.EVAL))
        case.wait(1.0)
        before, newest = case.made.judging.workers.values()
        assert not before.views, "nothing is kept of an attempt that is over"
        assert newest.views
        assert case.evaluator.snapshot().scalars == {"loss": 0.5}
        builder.step(scalars={"loss": 0.25})
        case.wait(1.0)
        assert case.evaluator.snapshot().scalars == {"loss": 0.25}
    case.evaluator.close()


def test_a_training_run_is_stopped_through_the_store(tmp_path: Path, heard: Heard) -> None:
    store = LocalStore(tmp_path)
    config = EvaluatorConfig(str(tmp_path), None, RULES, stop_on=Severity.ERROR, timing=IMPATIENT)
    with RunBuilder(tmp_path / "sick") as sick, RunBuilder(tmp_path / "well") as well:
        fleet = Fleet(config, store, heard)
        turn_until(fleet, lambda: len(heard.followed) == 2)
        for one, other in zip(SICK, HEALTHY, strict=False):
            sick.step(one)
            well.step(other)
        turn_until(fleet, lambda: store.size("sick/" + layout.control_commit("stop", 0)) is not None)
        assert store.size("well/" + layout.control_request("stop", 0)) is None
        fleet.close("interrupted", patience_s=0.0)


def test_too_much_below_the_prefix_is_refused(tmp_path: Path, heard: Heard) -> None:
    class Wide(LocalStore):
        def folders(self, prefix: str = "") -> list[str]:
            return [str(number) for number in range(MOST_FOLDERS)] if not prefix else []

    refused = pytest.raises(InvalidValueError, match=f"more than {MOST_FOLDERS:,} folders")
    with following(tmp_path, heard, store=Wide(tmp_path)) as fleet, refused:
        fleet.turn()


def test_a_run_that_waits_for_its_last_deliveries_lets_the_others_go_on(tmp_path: Path, heard: Heard) -> None:
    build_run(tmp_path / "a", HEALTHY)
    others: list[str] = []

    class Slow(Evaluator):
        def finish(self, *, pause: Any = None, **more: Any) -> None:
            if self.snapshot().run.endswith("a"):
                build_run(tmp_path / "b", HEALTHY)
                for _ in range(100):
                    pause(0.02)
                    if "b" in heard.ends:
                        break
                others.extend(heard.ends)
            super().finish(pause=pause, **more)

    with following(tmp_path, heard, evaluator=Slow) as fleet:
        turn_until(fleet, lambda: len(heard.ends) == 2)
    assert others == ["b"]


def test_runs_that_write_faster_than_they_are_read_keep_no_other_from_being_followed(
    tmp_path: Path, heard: Heard
) -> None:
    class Behind(Evaluator):
        def turn(self, *args: Any) -> bool:
            return super().turn(*args) or True

    for number in range(12):
        build_run(tmp_path / f"run{number:02}", HEALTHY)
    with following(tmp_path, heard, evaluator=Behind) as fleet:
        turn_until(fleet, lambda: len(heard.followed) == 12)
    assert heard.followed == [f"run{number:02}" for number in range(12)]


def test_a_quiet_run_of_a_bucket_costs_few_requests_a_minute(tmp_path: Path, heard: Heard) -> None:
    class Bucket(LocalStore):
        appends = False
        asked: ClassVar[Counter[str]] = Counter()

        def below(self, path: str) -> Bucket:
            return Bucket(self.root / path)

    def counted(name: str) -> Any:
        plain = getattr(LocalStore, name)

        def ask(self: Bucket, *words: Any, **more: Any) -> Any:
            Bucket.asked[name] += 1
            return plain(self, *words, **more)

        return ask

    for name in ("read", "write", "list", "size", "folders"):
        setattr(Bucket, name, counted(name))
    now = Now()
    with RunBuilder(tmp_path / "run") as builder:
        builder.step(HEALTHY[0])
        with following(tmp_path, heard, store=Bucket(tmp_path), clock=now) as fleet:
            pass_time(fleet, now, 6 * 60)
            Bucket.asked.clear()
            pass_time(fleet, now, 10 * 60)
            assert sum(Bucket.asked.values()) <= 400, Bucket.asked
            assert Bucket.asked["write"] <= 60


# ---------------------------------------------------------------- turns by a clock that the test moves


class Quiet:
    """A run in which happens what a test wants, instead of a real one."""

    def __init__(self, name: str, store: Any, common: Any) -> None:
        self.name, self.clock = name, common.clock.monotonic
        self.state, self.caught_up, self.busy, self.unreachable = State.LIVE, True, False, False
        self.judged_before, self.last = False, RunSnapshot(name, name=name)
        self.news_s = self.clock()
        self.turns: list[float] = []
        self.again_s = 0.1
        self.excused = 0.0
        self.writes_every_s: float | None = None

    def turn(self) -> float:
        self.turns.append(self.clock())
        if self.writes_every_s is not None and self.clock() - self.news_s >= self.writes_every_s:
            self.news_s = self.clock()
        return 15.0 if self.unreachable else self.again_s

    def excuse(self, seconds: float) -> None:
        self.excused += seconds

    def wakes(self) -> bool:
        return False

    def snapshot(self) -> RunSnapshot | None:
        return self.last

    def forget(self) -> None:
        self.last = None

    def close(self, left_off: str, patience_s: float) -> None:
        pass


class Prefix(LocalStore):
    """A folder that counts what it is asked, and may be asked like an object store."""

    def __init__(self, root: Path, *, appends: bool = True) -> None:
        super().__init__(root)
        self.appends = appends
        self.asked: Counter[str] = Counter()
        self.fails = False

    def size(self, path: str) -> int | None:
        self.asked["size"] += 1
        if self.fails:
            raise StoreError("unreachable")
        return super().size(path)

    def folders(self, prefix: str = "") -> Any:
        self.asked["list"] += 1
        return super().folders(prefix)


class QuietRuns(dict[str, Quiet]):
    """The runs of a fleet by name, and the fleet of them."""

    def fleet(self, store: LocalStore, heard: Heard, now: Now, **more: Any) -> Fleet:
        return Fleet(EvaluatorConfig("", None, RULES), store, heard, clock=now, member=self._made, **more)

    def _made(self, name: str, store: Any, common: Any) -> Any:
        self[name] = Quiet(name, store, common)
        return self[name]


@pytest.fixture
def quiet() -> QuietRuns:
    return QuietRuns()


def many(tmp_path: Path, count: int) -> Path:
    for number in range(count):
        (tmp_path / f"run{number:03}").mkdir()
        (tmp_path / f"run{number:03}" / "run.json").write_text("{}")
    return tmp_path


def pass_time(fleet: Fleet, now: Now, seconds: float) -> int:
    """Turns for so long; returns how many."""
    end, turns = now.s + seconds, 0
    while now.s < end:
        now.s += max(fleet.turn(), 1e-6)
        turns += 1
    return turns


def test_turns_are_fair_where_every_run_has_more_to_read(tmp_path: Path, heard: Heard, quiet: QuietRuns) -> None:
    now = Now()
    fleet = quiet.fleet(LocalStore(many(tmp_path, 10)), heard, now)
    fleet.turn()
    for run in quiet.values():
        run.again_s = 0.0
    now.s += 0.01
    for _ in range(200):
        fleet.turn()
        now.s += 1e-4
    assert {len(run.turns) for run in quiet.values()} == {20}


def test_a_quiet_run_is_asked_ever_more_rarely_and_one_that_writes_is_not(
    tmp_path: Path, heard: Heard, quiet: QuietRuns
) -> None:
    now = Now()
    fleet = quiet.fleet(LocalStore(many(tmp_path, 2)), heard, now)
    fleet.turn()
    quiet["run000"].writes_every_s = 0.5
    pass_time(fleet, now, 600)
    assert len(quiet["run000"].turns) >= 5000
    asked = quiet["run001"].turns
    assert len(asked) < 260
    pauses = [after - before for before, after in pairwise(asked)]
    assert pauses[0] < 0.2
    assert 4.9 < max(pauses) < 5.2
    silence = [(at - asked[0], pause) for at, pause in zip(asked, pauses, strict=False)]
    assert all(pause <= 0.11 + 0.06 * quiet_s for quiet_s, pause in silence), "it never waits longer than its share"


@pytest.mark.parametrize(("appends", "rate"), [(True, 200.0), (False, 20.0)])
def test_all_runs_together_get_so_many_turns_a_second_and_keep_their_leases(
    tmp_path: Path, heard: Heard, quiet: QuietRuns, appends: bool, rate: float
) -> None:
    now = Now()
    store = Prefix(many(tmp_path, 200), appends=appends)
    store.below = lambda path: store  # type: ignore[method-assign]
    fleet = quiet.fleet(store, heard, now)
    fleet.turn()
    for run in quiet.values():
        run.writes_every_s = 0.5
    pass_time(fleet, now, 5)
    before = sum(len(run.turns) for run in quiet.values())
    pass_time(fleet, now, 60)
    assert sum(len(run.turns) for run in quiet.values()) - before <= 1.1 * 60 * rate
    for run in quiet.values():
        assert max(after - before for before, after in pairwise(run.turns)) <= 15.5


def test_a_run_that_is_unreachable_alone_leaves_the_others_their_turns(
    tmp_path: Path, heard: Heard, quiet: QuietRuns
) -> None:
    now = Now()
    store = Prefix(many(tmp_path, 3), appends=False)
    store.below = lambda path: store  # type: ignore[method-assign]
    fleet = quiet.fleet(store, heard, now)
    fleet.turn()
    alone, *others = quiet.values()
    alone.unreachable = True
    for run in others:
        run.writes_every_s = 0.5
    pass_time(fleet, now, 600)
    assert 30 <= len(alone.turns) <= 50
    assert all(len(run.turns) > 2000 and not run.excused for run in others)


def test_snapshots_of_ended_runs_are_kept_of_the_newest_only(tmp_path: Path, heard: Heard, quiet: QuietRuns) -> None:
    now, snapshots = Now(), Snapshots()
    fleet = quiet.fleet(LocalStore(many(tmp_path, 103)), heard, now, snapshots=snapshots)
    fleet.turn()
    for run in quiet.values():
        run.state = State.ASLEEP
    pass_time(fleet, now, 10)
    assert fleet.members == []
    assert [found.name for found in snapshots.newest] == list(quiet)[-100:]


def test_looking_for_new_runs_costs_two_requests_a_minute_whatever_their_number(
    tmp_path: Path, heard: Heard, quiet: QuietRuns
) -> None:
    now = Now()
    store = Prefix(many(tmp_path, 50), appends=False)
    store.below = lambda path: store  # type: ignore[method-assign]
    fleet = quiet.fleet(store, heard, now)
    fleet.turn()
    assert sum(store.asked.values()) == 52
    pass_time(fleet, now, 60)  # the first search is followed by a pause for its many requests
    store.asked.clear()
    pass_time(fleet, now, 600)
    assert store.asked == {"size": 20, "list": 20}


def test_folders_that_are_no_runs_slow_the_search_down(tmp_path: Path, heard: Heard, quiet: QuietRuns) -> None:
    for number in range(100):
        (tmp_path / f"notes{number}").mkdir()
    now, store = Now(), Prefix(tmp_path, appends=False)
    fleet = quiet.fleet(store, heard, now)
    pass_time(fleet, now, 3600)
    assert sum(store.asked.values()) <= 3600 * 1.1, "one request a second at most"


def test_an_unreachable_bucket_is_asked_by_one_run_for_all(tmp_path: Path, heard: Heard, quiet: QuietRuns) -> None:
    now = Now()
    store = Prefix(many(tmp_path, 20), appends=False)
    store.below = lambda path: store  # type: ignore[method-assign]
    fleet = quiet.fleet(store, heard, now)
    fleet.turn()
    pass_time(fleet, now, 10)
    for run in quiet.values():
        run.unreachable, run.turns = True, []
    pass_time(fleet, now, 600)
    assert sum(len(run.turns) for run in quiet.values()) < 40
    for run in quiet.values():
        run.unreachable = False
    pass_time(fleet, now, 60)
    assert all(run.turns for run in quiet.values())
    assert sum(run.excused > 500 for run in quiet.values()) >= 19, "no worker's silence counted meanwhile"


def test_a_search_that_fails_is_reported_once_and_tried_again(tmp_path: Path, heard: Heard, quiet: QuietRuns) -> None:
    now, store = Now(), Prefix(many(tmp_path, 1))
    fleet = quiet.fleet(store, heard, now)
    fleet.turn()
    store.fails = True
    pass_time(fleet, now, 120)
    assert heard.sentences == ["new runs cannot be looked for now: unreachable"]
    store.fails = False
    many(tmp_path / "more", 1) if (tmp_path / "more").mkdir() is None else None
    pass_time(fleet, now, 60)
    assert sorted(quiet) == ["more/run000", "run000"]


def test_runs_of_one_bucket_share_their_client() -> None:
    made: list[Client] = []

    class Client:
        """Knows which keys it was asked for."""

        def __init__(self) -> None:
            self.asked: list[str] = []

        def head(self, key: str) -> dict[str, int]:
            self.asked.append(key)
            return {"size": 1}

    def connect(request_s: float, tries: bool) -> Any:
        made.append(Client())
        return made[-1]

    store = ObjectStore("s3://bucket/runs", "runs", connect)
    one, other = store.below("one"), store.below("deeper/other")
    assert (one.location, other.location) == ("s3://bucket/runs/one", "s3://bucket/runs/deeper/other")
    one.size("run.json")
    one.close()
    other.size("run.json")
    store.size("run.json")
    (client,) = made
    assert client.asked == ["runs/one/run.json", "runs/deeper/other/run.json", "runs/run.json"]
