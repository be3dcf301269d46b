"""The account of the cost of watching (callbacks, the recorder's thread, devices), as the budget and the run get it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from watchglass.capture.limits import DEFAULT_LIMITS
from watchglass.capture.planning.cost import Cost
from watchglass.capture.planning.plan import Plan
from watchglass.config import Collection, SessionConfig
from watchglass.record import OpenStep
from watchglass.record.recording_cost import ThreadTime
from watchglass.records import FACTS, Mode

US, MS = 1_000, 1_000_000


@dataclass
class Thread:
    """Stands for the recorder."""

    work: ThreadTime = field(default_factory=ThreadTime)
    pressure: bool = False
    peak_bytes: int = 0

    def report(self) -> dict[str, Any]:
        return {"recorder_cpu_ns": int(self.work.captures_cpu_ns), "bytes_written": 77}


@dataclass
class Account:
    """Steps of a training run as its hook accounts for them."""

    config: SessionConfig = field(default_factory=lambda: SessionConfig("run"))
    capture_ns: float = MS
    background_ns: float = 0.0
    device_ns: int = 0
    device_turn: int = 1
    step_ns: float = 5 * MS
    facts: list[tuple[int, str, dict[str, Any]]] = field(default_factory=list)
    captured: list[int] = field(default_factory=list)
    number: int = 0
    now_ns: float = 0.0

    def __post_init__(self) -> None:
        self.plan = Plan(self.config)
        self.thread = Thread()
        self.cost = Cost(self.plan, self.thread, DEFAULT_LIMITS.cost_report_ns)  # type: ignore[arg-type]
        self._late_ns = 0

    def run(self, steps: int) -> Account:
        for _ in range(steps):
            due = self.plan.due(Mode.TRAIN, self.number)
            step = OpenStep(self.number, Mode.TRAIN, self.number, self.number, int(self.now_ns), due=due)
            cost_ns = self.capture_ns if due else 0
            self.now_ns += self.step_ns + cost_ns
            step.end_ns = int(self.now_ns)
            self.cost.callbacks_ns += int(cost_ns)
            self.thread.work.captures_cpu_ns += self.background_ns if due else 0
            self.thread.work.cpu_ns = int(self.thread.work.captures_cpu_ns)
            # Measured for one capture in so many, and known when the next step is already under way.
            self.cost.device_ns += self._late_ns
            timed = due and len(self.captured) % self.device_turn == 0
            self._late_ns = self.device_turn * self.device_ns if timed else 0
            self.cost.step_ended(step, step.mode_step)
            self.facts += [(self.number, kind, fact.to_data()) for kind, _, fact in step.records.rows[FACTS]]
            self.captured += [self.number] if due else []
            self.number += 1
        return self

    def facts_of(self, kind: str) -> list[tuple[int, dict[str, Any]]]:
        return [(number, data) for number, found, data in self.facts if found == kind]


def test_every_change_of_the_interval_is_reported_with_the_step_from_which_it_holds() -> None:
    account = Account().run(3000)
    interval = 1
    for (number, data), following in zip(
        account.facts_of("capture_interval"), [*account.facts_of("capture_interval")[1:], (3000, {})], strict=True
    ):
        interval = data["interval"]
        later = range(max(number + 1, 16 * interval), following[0])
        assert [step for step in account.captured if step in later] == [s for s in later if s % interval == 0]
    assert interval == account.plan.budget.interval == 32


def test_the_thread_s_work_since_the_last_capture_is_the_capture_s() -> None:
    account = Account(capture_ns=0.0, background_ns=MS).run(3000)
    assert account.plan.budget.interval == 32


@pytest.mark.parametrize("turn", [1, 8])
def test_what_devices_work_is_the_capture_s_however_late_it_is_known(turn: int) -> None:
    """A millisecond of work on the device at steps of five: at 1 % that is paid by 32 steps, as on the host."""
    account = Account(capture_ns=0.0, device_ns=MS, device_turn=turn).run(3000)
    assert account.plan.budget.interval == 32
    assert account.cost.report()["device_ns"] == pytest.approx(len(account.captured) * MS, abs=turn * MS)
    changes = [data["interval"] for _, data in account.facts_of("capture_interval")]
    assert max(changes) == 32, "one report for several captures must not lengthen the interval too far"


def test_work_of_devices_and_of_the_host_adds_up() -> None:
    quarter = MS // 4
    account = Account(capture_ns=2 * quarter, background_ns=quarter, device_ns=quarter, device_turn=8).run(3000)
    assert account.plan.budget.interval == 32


def test_devices_that_work_no_more_let_captures_come_more_often() -> None:
    account = Account(capture_ns=0.01 * MS, device_ns=4 * MS, device_turn=8).run(4000)
    assert account.plan.budget.interval == 128
    account.device_ns = 0
    account.run(20_000)
    assert account.plan.budget.interval <= 2


def test_device_time_that_arrives_while_steps_end_is_not_lost() -> None:
    """The recorder's thread adds, the training's reads."""
    account = Account(capture_ns=0.0)
    account.plan.configure(SessionConfig("run", save_interval=1))
    found: list[float] = []
    account.plan.budget.spent = lambda *args, **known: found.append(known["device_ns"]) or False  # type: ignore[method-assign,func-returns-value]

    def add() -> None:
        for _ in range(20_000):
            account.cost.device_ns += 8

    thread = threading.Thread(target=add)
    thread.start()
    while thread.is_alive():
        account.run(1)
    thread.join()
    account.run(16)
    assert sum(found) == account.cost.report()["device_ns"] == 160_000


def test_callbacks_of_captured_steps_count_by_processor_time_and_others_by_the_clock() -> None:
    """The account of two steps on a machine where everything takes five times its processor time."""
    used_ns = [0]
    plan = Plan(SessionConfig("run", save_interval=2))
    cost = Cost(plan, Thread(), DEFAULT_LIMITS.cost_report_ns, lambda: 5 * used_ns[0], lambda: used_ns[0])  # type: ignore[arg-type]

    def callback(work: Callable[[], None] = lambda: None) -> None:
        """As the guard reports it: a tenth of a millisecond, then ``work``, then another tenth."""
        started = cost.now_ns()
        if cost.measures:
            cost.entered(started)
        used_ns[0] += MS // 10
        work()
        used_ns[0] += MS // 10
        ended = cost.now_ns()
        cost.callbacks_ns += ended - started
        if cost.measures:
            cost.left(ended)

    found: list[dict[str, Any]] = []
    plan.budget.spent = lambda cost_ns, step_ns, **known: found.append({**known, "cost_ns": cost_ns}) or False  # type: ignore[method-assign,func-returns-value]
    for number in range(3):
        step = OpenStep(number, Mode.TRAIN, number, number, 0, due=number % 2 == 0)
        callback(lambda step=step: cost.step_opened(due=step.due))
        callback()
        callback(lambda step=step: cost.step_ended(step, step.mode_step))
    assert [each["cost_ns"] for each in found] == [4 * MS // 10] * 3, "from where the step opened to where it ended"
    assert [each["took_ns"] for each in found] == [5 * 4 * MS // 10] * 3
    assert [each["between_ns"] for each in found] == [0, 5 * MS // 10, 5 * MS // 10], "after it ended"


def test_pressure_relieves_and_is_reported() -> None:
    account = Account(capture_ns=0.01 * MS).run(200)
    assert account.facts_of("capture_interval") == [(7, {"interval": 1, "captures_per_doubling": 8})]
    account.thread.pressure = True
    account.run(1)
    assert account.facts_of("capture_interval")[1:] == [(200, {"interval": 2, "captures_per_doubling": 8})]
    account.run(8)
    assert account.plan.budget.interval == 4
    account.thread.pressure = False
    account.run(50)
    assert account.plan.budget.interval == 4


def test_what_has_an_interval_of_its_own_neither_teaches_nor_relieves_the_budget() -> None:
    """A cheap collection at every other step says nothing of what a capture of everything costs."""
    config = SessionConfig("run", collections=(Collection("weights"), Collection("biases", save_interval=2)))
    account = Account(config)
    for number in range(6000):
        account.capture_ns = MS if account.plan.budget.due(number) else US
        account.run(1)
    assert account.plan.budget.interval == 32
    account.thread.pressure = True
    number = next(n for n in range(6000, 6100) if n % 2 == 0 and n % 32)
    account.run(number - 6000)
    before = account.plan.budget.interval
    account.run(1)
    assert account.plan.budget.interval == before


def test_another_configuration_keeps_the_loop_closed() -> None:
    """A script that is launched says more of its own: from there on another budget is at work."""
    account = Account()
    account.plan.configure(SessionConfig("run", overhead_budget=0.1))
    account.run(3000)
    assert account.plan.budget.interval == 2
    assert account.cost.report()["overhead_budget"] == 0.1


def test_the_report_has_bound_interval_and_peak_memory_by_device() -> None:
    account = Account().run(100)
    account.thread.peak_bytes = 1000
    account.cost.memory.hold("cpu", 300)
    account.cost.memory.hold("cuda:0", 500)
    account.cost.memory.hold("cuda:0", -500)
    account.cost.memory.hold("cuda:0", 200)
    report = account.cost.report()
    assert report["train_steps"] == 100
    assert report["callback_ns"] == len(account.captured) * MS
    assert report["train_ns"] == account.now_ns
    assert (report["interval"], report["fixed_interval"], report["overhead_budget"]) == (32, False, 0.01)
    assert report["peak_bytes"] == {"cpu": 1300, "cuda:0": 500}


def test_now_and_then_a_captured_step_reports_what_was_spent_so_far() -> None:
    """A killed run writes no final counters: these remain."""
    account = Account(step_ns=100 * MS).run(1000)
    facts = account.facts_of("capture_cost")
    assert all(number in account.captured for number, _ in facts)
    assert [round(account.step_ns * number / 1e10) for number, _ in facts] == list(range(1, len(facts) + 1))
    assert len(facts) in (9, 10)
    number, last = facts[-1][0], facts[-1][1]["counters"]
    assert last["train_steps"] == number + 1
    assert last["bytes_written"] == 77
    assert last["overhead_budget"] == 0.01


def test_steps_on_the_shortest_path_are_steps_of_the_training() -> None:
    account = Account().run(50)
    before = account.cost.report()
    start_ns = int(account.now_ns)
    account.now_ns += 30 * 5 * MS
    account.cost.steady_steps_ended(30, start_ns, int(account.now_ns), 10 * US)
    after = account.cost.report()
    assert after["train_steps"] - before["train_steps"] == 30
    assert after["train_ns"] - before["train_ns"] == 150 * MS
    assert after["callback_ns"] - before["callback_ns"] == 10 * US
    account.run(1)
    assert account.cost.report()["train_ns"] - after["train_ns"] == 5 * MS, "the next step begins where they ended"
