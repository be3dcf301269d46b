"""The stop protocol: ask, wait for answers, commit a step that all have before them, signal only as a last resort."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from watchglass.actions import Stopping, StopTraining
from watchglass.control import WorkerProgress
from watchglass.errors import MissingFileError, StoreError
from watchglass.records import Finding, Mode, Severity
from watchglass.store import LocalStore, create_attempt, create_run, layout, this_process


class FakeClock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s

    def time_ns(self) -> int:
        return 1_700_000_000_000_000_000


FINDING = Finding(
    id="abcdefabcdef", rule="ExplodingTensor", severity=Severity.ERROR, step=7, last_step=7, count=1, mode=Mode.TRAIN,
    worker="worker_0", tensors=("loss",), value=float("nan"), limit=None, message="the loss became NaN",
)  # fmt: skip


class Protocol:
    """A stop with a clock, a list of signals, and workers that answer on demand."""

    def __init__(self, folder: Path, workers: int, **options) -> None:
        self.store = options.pop("store", None) or LocalStore(folder)
        if options.pop("create", True):
            create_run(self.store, command=["train.py"])
            create_attempt(self.store, "")
        self.clock = FakeClock()
        self.signals: list[tuple[int, int]] = []
        self.stop = Stopping(
            self.store,
            options.pop("attempt", 0),
            clock=self.clock,
            send_signal=options.pop("send_signal", self.sent),
            **options,
        )
        self.workers = [WorkerProgress(f"worker_{n}", True, 7, 0.05, this_process()) for n in range(workers)]

    def sent(self, worker: WorkerProgress, number: int) -> str:
        self.signals.append((worker.claim.pid, number))
        return ""

    def answers(self, rank: int, train_step: int) -> None:
        data = json.dumps({"train_step": train_step, "wall_ns": 1}).encode()
        self.store.write(layout.control_seen("stop", 0, 0, f"worker_{rank}"), data, replace=True)

    def tick(self, after_s: float = 0.1) -> list[str]:
        self.clock.now_s += after_s
        return [observation.kind for observation in self.stop.tick(self.workers)]

    def commit(self) -> dict | None:
        try:
            return json.loads(self.store.read(layout.control_commit("stop", 0)))
        except MissingFileError:
            return None

    def leaves(self, rank: int) -> None:
        self.workers[rank] = replace(self.workers[rank], active=False)


def test_one_worker_stops_at_its_next_boundary(tmp_path: Path) -> None:
    protocol = Protocol(tmp_path, 1)
    (observation,) = protocol.stop.found(FINDING)
    assert observation.kind == "stop_requested"
    request = json.loads(protocol.store.read(layout.control_request("stop", 0)))
    assert request["finding"] == FINDING.id
    assert request["reason"] == "ExplodingTensor: the loss became NaN"
    assert protocol.tick() == ["stop_committed"], "it has no other worker to wait for, so it is not asked"
    assert protocol.commit()["at_step"] == 8
    protocol.leaves(0)
    assert protocol.tick() == []
    assert not protocol.stop.busy
    assert protocol.signals == []


def test_two_workers_get_one_step_that_both_have_before_them(tmp_path: Path) -> None:
    protocol = Protocol(tmp_path, 2)
    protocol.stop.found(FINDING)
    protocol.answers(0, 12)
    assert protocol.tick() == [], "one of two has answered"
    protocol.answers(1, 11)
    assert protocol.tick() == ["stop_committed"]
    # 0.6 s from an answer to the last reading of the commit are 12 steps of 0.05 s.
    assert protocol.commit()["at_step"] >= 12 + 12


def test_a_slow_training_has_a_margin_of_two_steps(tmp_path: Path) -> None:
    protocol = Protocol(tmp_path, 2)
    protocol.workers = [replace(worker, step_s=60.0) for worker in protocol.workers]
    protocol.stop.found(FINDING)
    protocol.answers(0, 12)
    protocol.answers(1, 12)
    protocol.tick()
    assert protocol.commit()["at_step"] == 14


def test_a_worker_that_does_not_answer_is_not_waited_for(tmp_path: Path) -> None:
    protocol = Protocol(tmp_path, 2)
    protocol.stop.found(FINDING)
    protocol.answers(1, 9)
    assert protocol.tick(4.0) == []
    assert protocol.tick(2.0) == ["stop_committed"]
    assert protocol.commit()["at_step"] > 9


def test_a_worker_that_has_left_is_not_asked(tmp_path: Path) -> None:
    protocol = Protocol(tmp_path, 2)
    protocol.leaves(1)
    protocol.stop.found(FINDING)
    assert protocol.tick() == ["stop_committed"]
    assert protocol.commit()["at_step"] == 8


@pytest.mark.parametrize("answer", [b'{"train_st', b'{"train_step": Infinity}', b"[" * 100_000, b'"train_step"'])
def test_torn_answers_are_read_again(tmp_path: Path, answer: bytes) -> None:
    protocol = Protocol(tmp_path, 2)
    protocol.stop.found(FINDING)
    protocol.answers(1, 9)
    protocol.store.write(layout.control_seen("stop", 0, 0, "worker_0"), answer)
    assert protocol.tick() == []
    protocol.answers(0, 9)
    assert protocol.tick() == ["stop_committed"]


def test_no_boundary_in_the_grace_time_means_signals(tmp_path: Path) -> None:
    protocol = Protocol(tmp_path, 1, grace_s=30.0)
    protocol.stop.found(FINDING)
    protocol.tick()
    pid = this_process().pid
    assert protocol.tick(29.0) == []
    assert protocol.tick(2.0) == ["worker_stopped"]
    assert protocol.tick(9.0) == []
    assert protocol.tick(2.0) == ["worker_stopped"]
    assert protocol.tick(60.0) == []
    assert protocol.signals == [(pid, signal.SIGTERM), (pid, signal.SIGKILL)]


def test_only_findings_that_are_bad_enough_and_of_its_rules_concern_it() -> None:
    default = StopTraining()
    assert default.concerned_by(FINDING)
    assert not default.concerned_by(replace(FINDING, severity=Severity.WARNING))
    chosen = StopTraining(severity="warning", rules="Overfit,DeadRelu")
    assert not chosen.concerned_by(FINDING)
    assert chosen.concerned_by(replace(FINDING, severity=Severity.WARNING, rule="DeadRelu"))
    assert not chosen.concerned_by(replace(FINDING, severity=Severity.INFO, rule="DeadRelu"))


def test_the_first_finding_stops_and_the_rest_change_nothing(tmp_path: Path) -> None:
    protocol = Protocol(tmp_path, 1)
    assert len(protocol.stop.found(replace(FINDING, severity=Severity.WARNING))) == 1
    assert protocol.stop.found(FINDING) == []
    assert protocol.stop.found(replace(FINDING, attempt=1)) == []


class Unreachable(LocalStore):
    """A store that refuses writes and reads on demand."""

    unreachable = False

    def write(self, path, data, *, replace=False):
        if self.unreachable:
            raise StoreError("unreachable")
        super().write(path, data, replace=replace)

    def read(self, path, start=0, end=None):
        if self.unreachable:
            raise StoreError("unreachable")
        return super().read(path, start, end)


def test_a_store_that_is_unreachable_delays_a_stop_and_does_not_lose_it(tmp_path: Path) -> None:
    protocol = Protocol(tmp_path, 2, store=Unreachable(tmp_path))
    protocol.store.unreachable = True
    assert protocol.stop.found(FINDING) == []
    assert protocol.tick() == []
    assert protocol.stop.busy
    protocol.store.unreachable = False
    assert protocol.tick() == ["stop_requested"]
    protocol.answers(0, 9)
    protocol.answers(1, 9)
    protocol.store.unreachable = True
    assert protocol.tick() == []
    protocol.store.unreachable = False
    assert protocol.tick() == ["stop_committed"]


def test_an_evaluator_that_takes_over_commits_no_other_step(tmp_path: Path) -> None:
    """Ranks that have read the first commit stop there, so all have to."""
    first = Protocol(tmp_path, 2)
    first.stop.found(FINDING)
    first.answers(0, 9)
    first.answers(1, 9)
    first.tick()
    committed = first.commit()
    second = Protocol(tmp_path, 2, create=False)
    second.answers(0, 900)
    assert second.stop.found(replace(FINDING, id="another")) == []
    assert second.tick() == []
    assert second.commit() == committed
    second.leaves(0)
    second.leaves(1)
    second.tick()
    assert not second.stop.busy


def test_every_attempt_is_stopped_where_none_is_named(tmp_path: Path) -> None:
    protocol = Protocol(tmp_path, 1, attempt=None)
    assert len(protocol.stop.found(FINDING)) == 1
    assert len(protocol.stop.found(replace(FINDING, attempt=1))) == 1
    protocol.workers = [replace(protocol.workers[0], active=False), replace(protocol.workers[0], attempt=1)]
    assert protocol.tick() == ["stop_committed"]
    assert protocol.commit() is None
    assert json.loads(protocol.store.read(layout.control_commit("stop", 1)))["at_step"] == 8


def test_on_an_object_store_the_margin_covers_its_slower_pace(tmp_path: Path) -> None:
    class Objects(LocalStore):
        appends = False

    protocol = Protocol(tmp_path, 2, store=Objects(tmp_path))
    intervals = protocol.store.policy.intervals(2)
    protocol.stop.found(FINDING)
    protocol.answers(0, 100)
    assert protocol.tick(intervals.control_s) == [], "the other has not had the time to look"
    protocol.answers(1, 90)
    assert protocol.tick(intervals.answer_s) == ["stop_committed"]
    # A worker looks again after answer_s, an evaluator after poll_s, both twice at worst; steps take 0.05 s.
    assert protocol.commit()["at_step"] >= 100 + 2 * (intervals.answer_s + intervals.poll_s) / 0.05
