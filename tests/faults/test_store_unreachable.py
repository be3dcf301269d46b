"""A store that is unreachable, slow or forbidden costs the training run no time and no record, while there is room."""

from __future__ import annotations

import logging
import shutil
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from servers.proxy import Proxy
from stores.faulty_stores import (
    Faulty,
    FaultyBucket,
    ObservedStore,
    Recorded,
    arrived,
    child,
    faulty,
    hook_of,
    impatient,
    kind_of_store,
    quick,
    spools,
    train,
)
from waiting import PATIENCE_S, until
from watchglass import Hook
from watchglass.capture.limits import CaptureLimits
from watchglass.record import harvest
from watchglass.store import Content, layout, open_store, read_claims, spool_exists
from watchglass.store.media.credentials import RequestPatience
from watchglass.store.policy import OBJECTS, StorePolicy

__all__ = ["faulty", "kind_of_store", "spools"]

WORKERS = {"watchglass-recorder", "watchglass-uploader", "watchglass-control"}


def assert_whole(faulty: Faulty, losses: list[float]) -> None:
    found = Recorded(faulty.store())
    assert found.steps == list(range(len(losses)))
    assert found.losses == losses
    assert [end["status"] for end in found.ends] == ["finished"]
    assert not any(found.ends[0]["counters"]["dropped"].values())
    assert read_claims(faulty.store(), 0)["worker_0"].released
    assert set(faulty.threads) <= WORKERS, "the training's thread asks no store"


def test_a_store_that_is_unreachable_from_the_start_gets_everything_later(faulty: Faulty) -> None:
    faulty.cut()
    with hook_of(faulty) as hook:
        losses = train(hook, range(50))
        until(lambda: bool(faulty.threads))
        faulty.restore()
        losses += train(hook, range(50, 60))
    assert_whole(faulty, losses)


def test_an_unreachable_store_for_a_while_loses_nothing(faulty: Faulty, caplog: pytest.LogCaptureFixture) -> None:
    with hook_of(faulty) as hook:
        losses = train(hook, range(5))
        until(lambda: arrived(faulty))
        faulty.cut()
        losses += train(hook, range(5, 100), after=lambda step: time.sleep(0.002))
        # Until it was tried again, and more than once.
        before = sum(faulty.threads.values())
        until(lambda: sum(faulty.threads.values()) > before + 5)
        faulty.restore()
        losses += train(hook, range(100, 110))
    assert_whole(faulty, losses)
    messages = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    messages = [message for message in messages if "stop requests" not in message]
    assert len(messages) == 1, "one line for one time that it was unreachable"
    assert "buffered" in messages[0]


def test_permission_that_is_lost_and_given_back_loses_nothing(faulty: Faulty) -> None:
    with hook_of(faulty) as hook:
        losses = train(hook, range(5))
        until(lambda: arrived(faulty))
        faulty.forbid()
        losses += train(hook, range(5, 50), after=lambda step: time.sleep(0.002))
        faulty.restore()
    assert_whole(faulty, losses)


def test_a_slow_store_delays_no_step_and_gets_everything(faulty: Faulty) -> None:
    with hook_of(faulty) as hook:
        losses = train(hook, range(5))
        until(lambda: arrived(faulty))
        faulty.slow_down(100_000)
        losses += train(hook, range(5, 200), after=lambda step: time.sleep(0.001))
    assert_whole(faulty, losses)


def test_what_is_written_waits_on_the_disk_and_not_for_the_store(faulty: Faulty, spools: Path) -> None:
    """The recorder's thread hands over; it never waits for a network."""
    if faulty.appends:
        pytest.skip("a folder is written to")
    with hook_of(faulty) as hook:
        losses = train(hook, range(5))
        until(lambda: arrived(faulty))
        before = faulty.threads["watchglass-recorder"]
        faulty.cut()
        (folder,) = spools.glob("watchglass-*/*.spool")
        # As many steps as it takes: a slow machine writes several of them at once.
        for step in range(5, 20_000):
            losses += train(hook, range(step, step + 1), after=lambda step: time.sleep(0.001))
            if step >= 200 and len(list(folder.glob("*~*"))) > 3:
                break
        else:
            pytest.fail("what is written does not wait in several pieces")
        assert faulty.threads["watchglass-recorder"] == before
        faulty.restore()
    assert_whole(faulty, losses)
    assert not list(spools.glob("watchglass-*/*.spool"))


def test_an_unreachable_store_at_the_end_gets_the_rest_by_a_harvest(
    faulty: Faulty, caplog: pytest.LogCaptureFixture, spools: Path
) -> None:
    code = (
        "import sys; sys.path[:0] = sys.argv[2:]\n"
        "from stores import faulty_stores\n"
        "from watchglass import Hook\n"
        "limits = faulty_stores.CaptureLimits(timing=faulty_stores.quick(0.2))\n"
        "settings = dict(save_interval=1, flush_interval_s=0.02)\n"
        "hook = Hook(sys.argv[1], limits=limits, open_store=faulty_stores.impatient, **settings)\n"
        "faulty_stores.train(hook, range(5))\n"
        "print('begun', flush=True)\n"
        "sys.stdin.readline()\n"
        "faulty_stores.train(hook, range(5, 60))\n"
        "hook.close()\n"
    )
    if faulty.appends:
        pytest.skip("test_flight_recorder.py: what a folder does not take stays in the rings")
    with child(code, faulty.location) as process:
        assert process.stdout.readline() == "begun\n"
        until(lambda: arrived(faulty))
        faulty.cut()
        process.stdin.write("\n")
        process.stdin.close()
        said = process.stderr.read()
        assert process.wait(PATIENCE_S) == 0
    assert "bytes of worker_0 are buffered in" in said
    assert "watchglass follow" in said
    faulty.restore()
    store = faulty.store()
    assert len(Recorded(store).steps) < 60
    (claim,) = read_claims(store, 0).values()
    assert spool_exists(claim.spool)
    (found,) = harvest(store, by="test")
    assert (found.steps, found.objects > 0) == (0, True)
    whole = Recorded(store)
    assert whole.steps == list(range(60))
    assert [end["status"] for end in whole.ends] == ["finished"]
    assert not spool_exists(claim.spool)
    assert harvest(store, by="test") == []


KILLED = (
    "import sys; sys.path[:0] = sys.argv[2:]\n"
    "import time\n"
    "from stores import faulty_stores\n"
    "from watchglass import Hook\n"
    "limits = faulty_stores.CaptureLimits(timing=faulty_stores.quick(), spool_reserve_bytes=0)\n"
    "settings = dict(save_interval=1, flush_interval_s=0.02)\n"
    "hook = Hook(sys.argv[1], limits=limits, open_store=faulty_stores.impatient, **settings)\n"
    "faulty_stores.train(hook, range(5))\n"
    "print('begun', flush=True)\n"
    "sys.stdin.readline()\n"
    "faulty_stores.train(hook, range(5, 1_000_000), after=lambda step: (print(step, flush=True), time.sleep(0.001)))\n"
)


@pytest.mark.parametrize("steps", [1, 400])
def test_a_training_run_killed_while_its_spool_holds_data_has_lost_no_step(
    faulty: Faulty, spools: Path, steps: int
) -> None:
    with child(KILLED, faulty.location) as process:
        assert process.stdout.readline() == "begun\n"
        until(lambda: arrived(faulty))
        if not faulty.appends:
            faulty.cut()
        process.stdin.write("\n")
        process.stdin.flush()
        for _ in range(steps):
            process.stdout.readline()
        while steps > 1 and not faulty.appends and not list(spools.glob("*/*.spool/*~*")):
            process.stdout.readline()
        process.kill()
        said = process.stdout.read().split()
        process.wait()
    last = max([4 + steps, *(int(line) for line in said)])
    faulty.restore()
    store = faulty.store()
    (claim,) = read_claims(store, 0).values()
    assert bool(claim.spool) is not faulty.appends
    recovered = harvest(store, by="test")
    if steps > 1 and not faulty.appends:
        assert recovered[0].objects > 0, "what was handed over is sent, not recorded again"
    found = Recorded(store)
    assert found.steps in (list(range(last + 1)), list(range(last + 2)))
    assert found.losses == [1.0 / (step + 1) for step in found.steps]
    assert not spool_exists(claim.spool)
    assert harvest(store, by="test") == []


def test_a_spool_that_is_full_drops_raw_tensors_first_and_counts(faulty: Faulty, spools: Path) -> None:
    """A folder has no spool: there, what waits in memory is bounded, by the same policy."""
    with hook_of(faulty, spool_bytes=60_000, queue_bytes=100_000, save_raw=True) as hook:
        losses = train(hook, range(5))
        until(lambda: arrived(faulty))
        faulty.cut()
        losses += train(hook, range(5, 300), size=1000, after=lambda step: time.sleep(0.002))
        faulty.restore()
    found = Recorded(faulty.store())
    dropped = found.ends[0]["counters"]["dropped"]
    assert dropped["raw"] > 100
    assert found.steps == list(range(300))
    assert dropped["steps"] == 0
    assert len(found.losses) == 300 - dropped["scalars"]
    assert set(found.losses) <= set(losses)


def test_a_disk_of_the_spool_that_is_full_is_done_without(faulty: Faulty, spools: Path) -> None:
    with hook_of(faulty, reserve_bytes=1 << 60) as hook:
        losses = train(hook, range(50))
        until(lambda: arrived(faulty))
        faulty.cut()
        losses += train(hook, range(50, 100), after=lambda step: time.sleep(0.002))
        faulty.restore()
    assert_whole(faulty, losses)
    assert not list(spools.glob("watchglass-*/*.spool"))


def test_what_waited_in_memory_at_the_end_is_recovered_from_the_rings(
    s3_location: str, s3_proxy: Proxy, spools: Path
) -> None:
    """No store and no disk at the end of a training run: as much as the flight recorder holds is still not lost."""
    code = KILLED.replace("1_000_000", "60").replace("quick()", "quick(0.3)")
    with child(code, s3_location) as process:
        assert process.stdout.readline() == "begun\n"
        until(lambda: bool(Recorded(open_store(s3_location)).segments))
        s3_proxy.cut()
        (folder,) = spools.glob("*/*.spool")
        shutil.rmtree(folder)  # a disk that refuses in the middle of the run
        _, errors = process.communicate("\n", timeout=PATIENCE_S)
    assert "were buffered in memory, since the disk refused them" in errors
    s3_proxy.restore()
    store = open_store(s3_location)
    assert len(Recorded(store).steps) < 60
    harvest(store, by="test")
    assert Recorded(store).steps == list(range(60))


def test_a_fork_sends_nothing_and_removes_nothing(faulty: Faulty) -> None:
    """A data worker has the parent's spool in its memory, and none of its threads."""
    code = KILLED.replace("1_000_000", "60").replace(
        "sys.stdin.readline()\n",
        "import os\npid = os.fork()\nif pid == 0:\n    hook.close()\n    sys.exit(0)\n"
        "assert os.waitpid(pid, 0)[1] == 0\nprint('forked', flush=True)\nsys.stdin.readline()\n",
    )
    with child(code + "hook.close()\n", faulty.location) as process:
        assert process.stdout.readline() == "begun\n"
        faulty.cut()
        assert process.stdout.readline() == "forked\n"
        faulty.restore()
        _, errors = process.communicate("\n", timeout=PATIENCE_S)
        assert process.returncode == 0, errors
    found = Recorded(faulty.store())
    assert found.steps == list(range(60))
    assert [end["status"] for end in found.ends] == ["finished"]


def test_answers_that_are_lost_repeat_nothing(s3_location: str, s3_proxy: Proxy, spools: Path) -> None:
    """The server did what it was asked to, again and again, and could not say so."""
    faulty = FaultyBucket(s3_location, s3_proxy)
    s3_proxy.lose_answers(4)
    with hook_of(faulty) as hook:
        losses = train(hook, range(20))
        until(lambda: arrived(faulty))
        s3_proxy.lose_answers(5)
        losses += train(hook, range(20, 60), after=lambda step: time.sleep(0.005))
    assert_whole(faulty, losses)
    assert len(read_claims(faulty.store(), 0)) == 1
    assert open_store(s3_location).folders("attempts") == ["0000"]


class OftenAsked(ObservedStore):
    """A bucket that is asked for stop requests ten times a second."""

    @property
    def policy(self) -> StorePolicy:
        quick = replace(OBJECTS.intervals_of_one, flush_s=0.1, control_s=0.1)
        return replace(OBJECTS, intervals_of_one=quick)


def test_a_stop_is_heard_while_nothing_can_be_sent(s3_location: str, s3_proxy: Proxy, spools: Path) -> None:
    """What waits to be sent and what looks for a stop do not wait for each other."""
    faulty = FaultyBucket(s3_location, s3_proxy)
    limits = CaptureLimits(timing=quick(), spool_reserve_bytes=0)
    hook = Hook(
        s3_location,
        limits=limits,
        open_store=lambda location: OftenAsked(impatient(location), faulty),
        save_interval=1,
        flush_interval_s=0.02,
    )
    train(hook, range(5))
    until(lambda: arrived(faulty))
    began, released = threading.Event(), threading.Event()

    def hold(data: Content) -> None:
        if threading.current_thread().name == "watchglass-uploader":
            began.set()
            released.wait(PATIENCE_S)

    faulty.fault = hold
    try:
        train(hook, range(5, 10))
        until(began.is_set)
        store = faulty.store()
        store.write(layout.control_request("stop", 0), b"{}")
        until(lambda: store.size(layout.control_seen("stop", 0, 0, "worker_0")) is not None)
        store.write(layout.control_commit("stop", 0), b'{"at_step": 12, "reason": "asked for"}')
        until(lambda: hook.port.changes.stopping)
    finally:
        released.set()
    with pytest.raises(SystemExit):
        train(hook, range(10, 20))
    assert Recorded(faulty.store()).steps[:10] == list(range(10))


def test_a_process_ends_although_its_store_never_answers(s3_location: str, s3_proxy: Proxy, spools: Path) -> None:
    code = KILLED.replace("1_000_000", "60").replace("quick()", "quick(0.5)")
    with child(code, s3_location) as process:
        assert process.stdout.readline() == "begun\n"
        until(lambda: bool(Recorded(open_store(s3_location)).segments))
        s3_proxy.silence()
        said, errors = process.communicate("\n", timeout=PATIENCE_S)
        assert process.returncode == 0, errors
    assert said.split()[-1] == "59"
    assert "buffered in" in errors
    s3_proxy.restore()
    harvest(open_store(s3_location), by="test")
    assert Recorded(open_store(s3_location)).steps == list(range(60))


@pytest.mark.parametrize("seconds", [0.0, 0.02, 0.1])
def test_a_training_run_that_is_over_at_once_is_recorded_as_its_process_ends(faulty: Faulty, seconds: float) -> None:
    """What an object store needs is imported and asked while the interpreter ends already."""
    code = (
        "import sys, time\nfrom watchglass import Hook\nhook = Hook(sys.argv[1])\n"
        "for step in range(3):\n    with hook.step('train'):\n        hook.save_scalar('loss', 1.0 / (step + 1))\n"
        f"time.sleep({seconds})\n"
    )
    with child(code, faulty.location) as process:
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, errors) == (0, "")
    found = Recorded(faulty.store())
    assert found.steps == [0, 1, 2]
    assert [end["status"] for end in found.ends] == ["finished"]


def test_what_a_notebook_could_not_send_its_next_training_or_anybody_sends(
    faulty: Faulty,
) -> None:
    """Its process lives on for days after the training's end."""
    if faulty.appends:
        pytest.skip("a folder has no spool")
    for number in range(2):
        with hook_of(faulty, patience_s=0.2) as hook:
            losses = train(hook, range(5))
            until(lambda at=number: at in map(int, faulty.store().folders("attempts")))
            until(lambda at=number: bool(Recorded(faulty.store(), at).segments))
            faulty.cut()
            losses += train(hook, range(5, 60))
        faulty.restore()
        assert len(Recorded(faulty.store(), number).steps) < 60
        assert not Recorded(faulty.store(), number).ends
    with hook_of(faulty) as hook:
        train(hook, range(5))
        until(lambda: any(Recorded(faulty.store(), at).ends for at in range(2)))
    code = "import sys\nfrom watchglass.record import harvest\nfrom watchglass.store import open_store\n"
    code += "harvest(open_store(sys.argv[1]), by='test')\n"
    with child(code, faulty.location) as process:
        assert process.wait(PATIENCE_S) == 0
    for number in range(2):
        found = Recorded(faulty.store(), number)
        assert (found.steps, found.losses) == (list(range(60)), losses)
        assert [end["status"] for end in found.ends] == ["finished"]


@pytest.mark.slow
def test_an_unreachable_store_for_longer_than_a_call_tries_with_pauses_as_they_are(
    s3_location: str, s3_proxy: Proxy, spools: Path
) -> None:
    faulty = FaultyBucket(s3_location, s3_proxy)
    limits = CaptureLimits(timing=quick(), spool_reserve_bytes=0)
    hook = Hook(
        s3_location, save_interval=1, limits=limits, open_store=lambda it: ObservedStore(open_store(it), faulty)
    )
    losses = train(hook, range(5))
    until(lambda: arrived(faulty))
    s3_proxy.cut()
    end, number = time.monotonic() + 1.5 * RequestPatience().retry_s, 5
    while time.monotonic() < end:
        losses += train(hook, range(number, number + 1), after=lambda step: time.sleep(0.02))
        number += 1
    s3_proxy.restore()
    hook.close()
    assert_whole(faulty, losses)
    # A look for a request to stop that began while the server was unreachable ends with its own time limit.
    for thread in threading.enumerate():
        if thread.name == "watchglass-control":
            thread.join(PATIENCE_S)
