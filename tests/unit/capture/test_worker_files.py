"""A process gets its place in a run however often the store fails meanwhile, and with few requests."""

from __future__ import annotations

import json
import os
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stores.faulty_stores import Recorded, quick, spools
from waiting import until
from watchglass.capture.limits import CaptureLimits
from watchglass.capture.process.worker_files import WorkerOpening
from watchglass.config import SessionConfig
from watchglass.control import BackgroundMailbox, Commit, Stop, StoreMailbox
from watchglass.errors import MissingFileError, NotARunError, RunExistsError, StoreError
from watchglass.store import (
    FrameKind,
    LocalStore,
    PollingIntervals,
    RawTensor,
    SegmentWriter,
    Store,
    claim_worker,
    claims_of_worker,
    create_attempt,
    create_run,
    decode_lifecycle,
    encode_lifecycle,
    layout,
    read_claims,
    release_worker,
    scan,
    spool_exists,
)

__all__ = ["spools"]


class Remote(LocalStore):
    """A folder that takes only whole objects, counts requests, and fails on demand."""

    appends = False

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.asked: Counter[str] = Counter()
        self.failures: list[str] = []
        self.lost_answers: list[str] = []
        self.after_look: Callable[[], None] | None = None
        self.removers: set[str] = set()

    def _ask(self, name: str, path: str) -> None:
        self.asked[name] += 1
        if self.failures and self.failures[0] in ("", name):
            self.failures.pop(0)
            raise StoreError("the store is unreachable; see to it")

    def read(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        self._ask("read", path)
        try:
            return super().read(path, start, end)
        except MissingFileError:
            if self.after_look is not None and path == layout.worker_claim(0, "worker_0"):
                after, self.after_look = self.after_look, None
                after()
            raise

    def write(self, path: str, data: Any, *, replace: bool = False) -> None:
        self._ask("write", path)
        super().write(path, data, replace=replace)
        if self.lost_answers and self.lost_answers[0] in path:
            self.lost_answers.pop(0)
            raise StoreError("the answer was lost")

    def list(self, prefix: str = "", after: str = "") -> Any:
        self._ask("list", prefix)
        return super().list(prefix, after)

    def size(self, path: str) -> int | None:
        self._ask("size", path)
        return super().size(path)

    def delete(self, path: str) -> None:
        self.removers.add(threading.current_thread().name)
        super().delete(path)


class Opened:
    """What a worker was opened with."""

    def __init__(self) -> None:
        self.controls: list[Any] = []
        self.attempts: list[int] = []

    def __call__(self, control: Any, attempt: int) -> None:
        self.controls.append(control)
        self.attempts.append(attempt)


@pytest.fixture
def remote(tmp_path: Path, spools: Path) -> Remote:
    return Remote(tmp_path / "run")


def opening(store: Store, rank: int = 0, **settings: Any) -> tuple[WorkerOpening, Opened]:
    observer, limits = Opened(), CaptureLimits(timing=quick())
    config = SessionConfig(store.location, **settings)
    return WorkerOpening(config, limits, lambda: rank, observer, lambda location: store), observer


def end(writer: Any, observer: Opened) -> None:
    observer.controls[0].close()
    if writer.rings is not None:
        writer.rings.close(discard=True)
    writer.close()


@pytest.mark.parametrize("answered", [False, True], ids=["refused", "answer lost"])
def test_whichever_request_fails_the_worker_gets_one_place_in_one_attempt(
    tmp_path: Path, spools: Path, answered: bool
) -> None:
    failed = 0
    for number in range(30):
        store = Failing(tmp_path / str(number), number, answered=answered)
        opened, observer = opening(store)
        writer = None
        while writer is None:
            try:
                writer = opened()
            except StoreError:
                failed += 1
        store.number = -1
        end(writer, observer)
        assert observer.attempts == [0]
        claims = read_claims(store, 0)
        assert list(claims) == ["worker_0"]
        assert claims["worker_0"].released
        assert LocalStore(store.root).folders("attempts") == ["0000"]
        assert len(Recorded(store).segments) == 1
    assert failed >= 4


def test_the_rank_is_that_of_the_first_training_step(remote: Remote) -> None:
    ranks: list[int | None] = [None]
    observer = Opened()
    config, limits = SessionConfig(remote.location), CaptureLimits(timing=quick())
    opened = WorkerOpening(config, limits, lambda: ranks[-1], observer, lambda location: remote)
    ranks.append(3)  # a group is formed before the first training step
    remote.lost_answers = ["worker_3.json"]
    with pytest.raises(StoreError, match="the answer was lost"):
        opened()
    ranks.append(None)  # and has ended before the store can be reached again
    end(opened(), observer)
    assert list(read_claims(remote, 0)) == ["worker_3"]
    frames = [
        frame for path in Recorded(remote, worker="worker_3").segments for frame in scan(remote.read(path)).frames
    ]
    (joined,) = (decode_lifecycle(frame.payload) for frame in frames if frame.kind == FrameKind.LIFECYCLE)
    assert joined["alone"] is False


class Failing(Remote):
    """One request of the first ones fails; with ``answered`` it has been done all the same."""

    def __init__(self, root: Path, number: int, *, answered: bool) -> None:
        super().__init__(root)
        self.number = number
        self.answered = answered

    def _fails(self) -> bool:
        # Requests of other threads come in any order.
        if threading.current_thread() is not threading.main_thread():
            return False
        self.number -= 1
        return self.number == -1

    def read(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        if self._fails():
            raise StoreError("the store is unreachable; see to it")
        return super().read(path, start, end)

    def list(self, prefix: str = "", after: str = "") -> Any:
        if self._fails():
            raise StoreError("the store is unreachable; see to it")
        return super().list(prefix, after)

    def write(self, path: str, data: Any, *, replace: bool = False) -> None:
        fails = self._fails()
        if not fails or self.answered:
            super().write(path, data, replace=replace)
        if fails:
            raise StoreError("the store is unreachable; see to it")


def test_a_claim_whose_answer_was_lost_is_ours(remote: Remote) -> None:
    remote.lost_answers = ["worker_0.json"]
    opened, observer = opening(remote)
    with pytest.raises(StoreError, match="the answer was lost"):
        opened()
    (before,) = read_claims(remote, 0).values()
    writer = opened()
    assert read_claims(remote, 0)["worker_0"] == before
    assert observer.attempts == [0]
    assert spool_exists(before.spool)
    end(writer, observer)


@pytest.mark.parametrize("flight_recorder", [True, False])
def test_a_place_that_is_given_up_leaves_no_file(remote: Remote, spools: Path, flight_recorder: bool) -> None:
    create_run(remote, command=[])
    opened, _ = opening(remote, flight_recorder=flight_recorder)
    for _ in range(3):
        remote.failures = ["write"]
        with pytest.raises(StoreError):
            opened()
        if not remote.failures:
            remote.failures = []
    claims = read_claims(remote, 0)
    opened.abandon()
    assert not any(spool_exists(claim.spool) for claim in claims.values())
    assert list(spools.glob("watchglass-*/*")) == []


def test_what_waiting_does_not_help_is_an_error_of_its_own(remote: Remote, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.txt").write_text("mine")
    with pytest.raises(NotARunError):
        opening(remote)[0]()


def test_who_had_this_rank_is_seen_without_reading_everybodys_claim(remote: Remote) -> None:
    create_run(remote, command=[])
    create_attempt(remote, "")
    for rank in range(1, 200):
        claim_worker(remote, 0, f"worker_{rank}")
    remote.asked.clear()
    opened, observer = opening(remote, attempt=0)
    writer = opened()
    assert observer.attempts == [0]
    assert remote.asked["read"] + remote.asked["list"] + remote.asked["size"] <= 6
    end(writer, observer)


def test_who_joins_a_launch_by_itself_reads_no_claims_either(remote: Remote) -> None:
    create_run(remote, command=[])
    workers = []
    for rank in range(50):
        opened, observer = opening(remote, rank)
        remote.asked.clear()
        writer = opened()
        assert observer.attempts == [0]
        assert remote.asked["read"] <= 8
        assert remote.asked["list"] <= 2
        workers.append((writer, observer))
    for writer, observer in workers:
        end(writer, observer)


def test_a_rank_that_is_taken_is_another_attempt(remote: Remote) -> None:
    first, observer = opening(remote)
    one = first()
    second, second_observer = opening(remote)
    other = second()
    assert (observer.attempts, second_observer.attempts) == ([0], [1])
    end(one, observer)
    end(other, second_observer)


def test_a_launch_that_a_process_has_left_is_over(remote: Remote) -> None:
    first, observer = opening(remote, rank=1)
    end(first(), observer)
    second, second_observer = opening(remote, rank=0)
    end(second(), second_observer)
    assert second_observer.attempts == [1]


def test_the_pace_is_that_of_the_store_and_the_number_of_workers(
    remote: Remote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "1024")
    opened, observer = opening(remote)
    writer = opened()
    assert (writer.flush_s, writer.urgent_s) == (60.0, 12.0)
    end(writer, observer)
    local = LocalStore(tmp_path / "local")
    opened, observer = opening(local)
    writer = opened()
    assert (writer.flush_s, writer.urgent_s, writer.patience_s) == (0.5, 0.0, 0.0)
    assert isinstance(observer.controls[0], StoreMailbox)
    end(writer, observer)


def commit(store: Store) -> None:
    store.write(layout.control_request("stop", 0), b"{}")
    store.write(layout.control_commit("stop", 0), json.dumps({"at_step": 9, "reason": "because"}).encode())


def test_a_look_for_a_change_is_one_question_about_a_size_for_each_kind(remote: Remote) -> None:
    control = StoreMailbox(remote, 0, "worker_0")
    for _ in range(10):
        assert control.poll(3) == []
    assert remote.asked == {"size": 2 * 10}
    remote.write(layout.control_request("stop", 0), b"{}")
    assert control.poll(4) == []
    assert json.loads(remote.read(layout.control_seen("stop", 0, 0, "worker_0")))["train_step"] == 4
    commit_only = json.dumps({"at_step": 9, "reason": "because"}).encode()
    remote.write(layout.control_commit("stop", 0), commit_only)
    assert control.poll(5) == [Commit(9, Stop("because"))]


def test_who_asks_patiently_never_waits_for_the_store(remote: Remote) -> None:
    intervals = PollingIntervals(flush_s=1, control_s=0.01, answer_s=0.01, poll_s=1, liveness_s=1)
    remote.failures = ["size"] * 3
    control = BackgroundMailbox(StoreMailbox(remote, 0, "worker_0"), intervals)
    assert control.poll(7) == []
    commit(remote)
    assert until(lambda: control.poll(7)) == [Commit(9, Stop("because"))]
    assert control.poll(7) == []
    control.close()
    assert json.loads(remote.read(layout.control_seen("stop", 0, 0, "worker_0")))["train_step"] == 7


def test_a_process_that_ends_looks_for_no_stop(remote: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", start)
    control = BackgroundMailbox(StoreMailbox(remote, 0, "worker_0"), PollingIntervals(0.01, 0.01, 0.01, 0.01, 0.01))
    assert control.poll(3) == []
    control.close()


def test_raw_tensors_are_not_removed_by_the_recorder(remote: Remote) -> None:
    """To remove is to ask the store, which may take its time."""
    make, observer = opening(remote, raw_keep_bytes=2000)
    writer = make()
    for number in range(5):
        writer.write_tensors([(number, RawTensor(1, np.ones(200)))])
    end(writer, observer)
    assert remote.removers == {"watchglass-uploader"}
    assert len(remote.list("attempts/0000/tensors")) == 1


def test_a_place_that_another_process_writes_to_is_not_waited_for(remote: Remote) -> None:
    make, observer = opening(remote)
    writer = make()
    assert writer.patience_s > 0
    until(lambda: bool(Recorded(remote).segments))
    (first,) = Recorded(remote).segments
    for bucket in range(3):
        name = layout.parse_segment(first)
        remote.write(layout.segment(0, name.bucket + bucket, "worker_0", 1), b"of somebody else")
    writer.write([b"ours"])

    def refused() -> bool:
        try:
            writer.write([b"ours"])
        except RunExistsError as error:
            return "give each process its own rank" in str(error)
        return False

    until(refused)
    assert writer.patience_s == 0.0
    end(writer, observer)


def test_an_object_store_is_polled_as_rarely_as_it_is_written_to(remote: Remote) -> None:
    intervals = remote.policy.intervals(1024)
    control = BackgroundMailbox(StoreMailbox(remote, 0, "worker_0"), intervals)
    until(lambda: remote.asked["size"] == 2)  # for its messages, and for requests to all workers
    for _ in range(100):
        control.poll(1)
    assert remote.asked["size"] == 2
    control.close()


def test_a_predecessor_in_the_same_place_is_written_behind(remote: Remote) -> None:
    """It took the place between our look and our claim, and died."""
    create_run(remote, command=[])
    create_attempt(remote, "")

    def predecessor() -> None:
        claim_worker(remote, 0, "worker_0")
        SegmentWriter(remote, 0, "worker_0").write([encode_lifecycle({"event": "joined", "worker": "worker_0"})])
        release_worker(remote, 0, "worker_0")

    remote.after_look = predecessor
    opened, observer = opening(remote, attempt=0)
    writer = opened()
    assert observer.attempts == [0]
    assert len(claims_of_worker(remote, 0, "worker_0")) == 3
    end(writer, observer)
    assert len(Recorded(remote).segments) == 2


def test_of_many_tries_for_a_place_the_last_says_why(tmp_path: Path, spools: Path) -> None:
    class Taken(Remote):
        """Another process always claims the place first."""

        def write(self, path: str, data: Any, *, replace: bool = False) -> None:
            if "worker_0.json" in path:
                LocalStore.write(self, path, json.dumps({**json.loads(data), "pid": os.getppid()}).encode())
            super().write(path, data, replace=replace)

    with pytest.raises(RunExistsError, match="just taken"):
        opening(Taken(tmp_path / "run"))[0]()
