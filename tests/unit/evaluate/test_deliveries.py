"""Deliveries of one action: in order, tried again, limited, buried with a reason, and never made twice."""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from watchglass.actions import Action, DeliveryOutcome, build_action
from watchglass.config import ActionSpec, EvaluatorTiming
from watchglass.errors import StoreError
from watchglass.evaluate.live import deliveries as module
from watchglass.evaluate.live.deliveries import Deliveries
from watchglass.evaluate.live.event_ids import event_id
from watchglass.records import Event, Observation
from watchglass.store import LocalStore, layout
from watchglass.testing import example_event

DONE = DeliveryOutcome(True)
REFUSED = DeliveryOutcome(False, "answered with 503")
FINAL = DeliveryOutcome(False, "answered with 400", again=False)


def event(number: int) -> Event:
    made = example_event(id=f"{number:012x}")
    return replace(made, id=f"{number:016x}")


@dataclass
class Clock:
    now_s: float = 1000.0

    def monotonic(self) -> float:
        return self.now_s

    def time_ns(self) -> int:
        return int((1_700_000_000 + self.now_s) * 1e9)


@dataclass
class Couriers:
    """Stands for processes: each delivery ends as the test demands, at its first poll."""

    outcomes: list[DeliveryOutcome] = field(default_factory=list)
    started: list[str] = field(default_factory=list)
    arrived: list[list[int]] = field(default_factory=list)
    ended: int = 0
    hanging: bool = False

    def start(self, spec: ActionSpec, event: Event, timeout_s: float, *, arrived: Collection[int]) -> Couriers:
        self.started.append(event.id)
        self.arrived.append(sorted(arrived))
        return self

    def poll(self) -> DeliveryOutcome | None:
        if self.hanging:
            return None
        return self.outcomes.pop(0) if self.outcomes else DONE

    def end(self) -> None:
        self.ended += 1


class Line:
    """The deliveries of a webhook, with a clock that the test moves."""

    def __init__(
        self,
        folder: Path,
        *outcomes: DeliveryOutcome,
        store: LocalStore | None = None,
        action: Action | None = None,
        couriers: Couriers | None = None,
        **parameters,
    ) -> None:
        self.clock, self.couriers = Clock(), couriers or Couriers(list(outcomes))
        self.store = store or LocalStore(folder)
        spec = ActionSpec("Webhook", {"url": "http://localhost/", **parameters})
        self.deliveries = Deliveries(
            "Webhook", spec, action or build_action(spec), self.store,
            start=self.couriers.start, clock=self.clock, jitter=lambda: 0.5, timing=EvaluatorTiming(),
        )  # fmt: skip
        self.observed: list[Observation] = []

    def add(self, *numbers: int) -> list[str]:
        observed = [seen for number in numbers for seen in self.deliveries.add(event(number))]
        self.observed += observed
        return [seen.kind for seen in observed]

    def after(self, seconds: float = 0.1, may_start: bool = True) -> list[str]:
        self.clock.now_s += seconds
        observed = [*self.deliveries.summary(now=False), *self.deliveries.tick(may_start)]
        self.observed += observed
        return [seen.kind for seen in observed]

    def letter(self, number: int) -> dict:
        return json.loads(self.store.read(layout.dead_letter("Webhook", f"{number:016x}")))


def test_events_are_delivered_in_their_order_one_at_a_time(tmp_path: Path) -> None:
    line = Line(tmp_path)
    assert line.add(1, 2) == ["action_due", "action_due"]
    assert line.after() == []
    assert line.after() == ["action_done"]
    assert line.after() == ["action_done"]
    assert line.couriers.started == [f"{1:016x}", f"{2:016x}"]
    assert line.deliveries.counts["done"] == 2
    assert line.deliveries.waiting == 0
    assert line.deliveries.next_s() is None


def test_an_event_that_is_known_is_not_accepted_again(tmp_path: Path) -> None:
    line = Line(tmp_path)
    assert line.add(1) == ["action_due"]
    assert line.add(1) == []


def test_events_that_do_not_concern_the_action_are_not_accepted(tmp_path: Path) -> None:
    line = Line(tmp_path, rules="Overfit")
    assert line.add(1) == []
    line = Line(tmp_path, on="status")
    assert line.add(1) == []


class Raises(Action):
    """An action of a user whose filter has a fault."""

    def wants(self, event: Event) -> bool:
        raise ZeroDivisionError

    def act(self, event: Event) -> None: ...


def test_a_filter_that_raises_keeps_nothing_back(tmp_path: Path) -> None:
    line = Line(tmp_path, action=Raises())
    assert line.add(1) == ["action_due"]


def test_a_failure_is_tried_again_ever_later(tmp_path: Path) -> None:
    line = Line(tmp_path, REFUSED, REFUSED, REFUSED, retries=3)
    line.add(1)
    begun: list[float] = []
    while line.deliveries.waiting:
        before = len(line.couriers.started)
        line.after(0.25)
        if len(line.couriers.started) > before:
            begun.append(line.clock.now_s)
    pauses = [begun[place + 1] - begun[place] for place in range(len(begun) - 1)]
    assert [round(pause) for pause in pauses] == [1, 2, 4], "and a poll each"
    assert line.observed[-1].kind == "action_done"
    assert line.observed[-1].data["tries"] == 4


def test_a_pause_that_a_receiver_asks_for_is_kept(tmp_path: Path) -> None:
    line = Line(tmp_path, DeliveryOutcome(False, "answered with 429", after_s=120.0))
    line.add(1)
    line.after()
    line.after()
    line.after(119.0)
    assert len(line.couriers.started) == 1
    line.after(2.0)
    assert len(line.couriers.started) == 2


def test_a_receiver_cannot_ask_for_more_than_an_hour(tmp_path: Path) -> None:
    line = Line(tmp_path, DeliveryOutcome(False, "answered with 429", after_s=1e9))
    line.add(1)
    line.after()
    line.after()
    line.after(3601.0)
    assert len(line.couriers.started) == 2


def test_receivers_that_a_try_has_reached_are_passed_to_the_next_ones(tmp_path: Path) -> None:
    line = Line(tmp_path, replace(REFUSED, arrived=(2,)), REFUSED, DONE)
    line.add(1, 2)
    while line.deliveries.waiting:
        line.after(5.0)
    assert line.couriers.arrived == [[], [2], [2], []]


def test_what_failed_for_good_is_buried_with_its_reason(tmp_path: Path) -> None:
    line = Line(tmp_path, REFUSED, REFUSED, retries=1)
    line.add(1)
    for _ in range(10):
        line.after(5.0)
    failed = line.observed[-1]
    assert failed.kind == "action_failed"
    assert (failed.data["reason"], failed.data["tries"]) == ("answered with 503", 2)
    letter = line.letter(1)
    assert failed.data["dead_letter"] == layout.dead_letter("Webhook", f"{1:016x}")
    assert (letter["action"], letter["reason"], letter["tries"]) == ("Webhook", "answered with 503", 2)
    assert Event.from_json(letter["event"]).finding.message == "the loss became NaN at step 7"
    assert line.deliveries.counts == {"done": 0, "failed": 1, "limited": 0}


def test_what_makes_no_sense_to_try_again_is_not(tmp_path: Path) -> None:
    line = Line(tmp_path, FINAL, retries=5)
    line.add(1, 2)
    for _ in range(5):
        line.after()
    assert [seen.kind for seen in line.observed[2:]] == ["action_failed", "action_done"]
    assert line.couriers.started == [f"{1:016x}", f"{2:016x}"]


def test_a_dead_letter_goes_to_a_local_file_as_well_where_asked(tmp_path: Path) -> None:
    line = Line(tmp_path / "run", FINAL, FINAL, dead_letter=str(tmp_path / "letters.jsonl"))
    line.add(1, 2)
    for _ in range(6):
        line.after()
    rows = [json.loads(row) for row in (tmp_path / "letters.jsonl").read_text().splitlines()]
    assert [row["event"]["id"] for row in rows] == [f"{1:016x}", f"{2:016x}"]


def test_a_local_file_that_cannot_be_written_is_reported_and_nothing_more(tmp_path: Path) -> None:
    line = Line(tmp_path / "run", FINAL, dead_letter=str(tmp_path / "no" / "letters"))
    line.add(1)
    for _ in range(4):
        line.after()
    assert line.observed[-1].kind == "action_failed"
    assert "No such file" in line.observed[-1].data["file_problem"]


def test_a_dead_letter_waits_for_a_store_that_is_unreachable(tmp_path: Path) -> None:
    class Unreachable(LocalStore):
        unreachable = True

        def write(self, path, data, *, replace=False):
            if self.unreachable:
                raise StoreError("unreachable")
            super().write(path, data, replace=replace)

    store = Unreachable(tmp_path)
    line = Line(tmp_path, FINAL, store=store)
    line.add(1)
    for _ in range(5):
        line.after()
    assert [seen.kind for seen in line.observed] == ["action_due"]
    store.unreachable = False
    assert line.after() == ["action_failed"]
    assert line.letter(1)["reason"] == "answered with 400"


def test_what_is_beyond_the_limit_is_counted_and_reported_in_one_summary(tmp_path: Path) -> None:
    line = Line(tmp_path, per_hour=2)
    assert line.add(1, 2, 3, 4, 5) == ["action_due"] * 2 + ["action_limited"] * 3
    for _ in range(5):
        line.after()
    assert line.deliveries.counts == {"done": 2, "failed": 0, "limited": 3}
    assert line.deliveries.left_out == 3
    assert line.after(3000.0) == []
    assert line.after(700.0) == ["action_due"]
    summary = line.observed[-1].data["content"]
    assert (summary["kind"], summary["left_out"]) == ("summary", 3)
    assert line.after() == ["action_done"]
    assert line.deliveries.left_out == 0
    assert resumed(tmp_path, line.observed, per_hour=2).deliveries.left_out == 0, "a summary has reported them"
    assert line.add(6) == ["action_due"], "an hour is over"


def test_no_limit_limits_nothing(tmp_path: Path) -> None:
    assert Line(tmp_path, per_hour=None).add(*range(1, 200)) == ["action_due"] * 199


def test_more_than_can_wait_is_buried_and_not_lost(tmp_path: Path) -> None:
    most = module.MOST_WAITING
    line = Line(tmp_path, per_hour=None)
    line.couriers.hanging = True
    line.add(*range(1, most + 2))
    line.after()
    line.couriers.hanging = False
    while line.deliveries.waiting:
        line.after()
    assert [seen.kind for seen in line.observed[most + 1 :]] == [*["action_done"] * most, "action_failed"]
    assert line.letter(most + 1)["reason"] == f"{most} others waited already"


def test_a_system_that_starts_no_process_is_asked_again(tmp_path: Path) -> None:
    class Refusing(Couriers):
        tries = 0

        def start(self, *given: Any, **more: Any) -> Couriers:
            self.tries += 1
            if self.tries < 3:
                raise OSError(11, "Resource temporarily unavailable")
            return super().start(*given, **more)

    couriers = Refusing()
    line = Line(tmp_path, couriers=couriers)
    line.add(1)
    for _ in range(10):
        line.after(5.0)
    assert line.observed[-1].kind == "action_done"
    assert couriers.tries == 3


def resumed(folder: Path, observed: list[Observation], **parameters) -> Line:
    """A line as an evaluator makes it that starts again."""
    line = Line(folder, **parameters)
    concluded = {seen.data["event"] for seen in observed if seen.kind != "action_due"}
    for seen in observed:
        data = seen.data
        open_still = data["event"] not in concluded and seen.kind == "action_due"
        known = event(int(data["event"], 16)) if open_still else None
        left_out = data.get("content", {}).get("left_out", 0)
        line.deliveries.resume(data["event"], seen.kind, data["time_ns"], known, left_out)
    return line


def test_an_evaluator_that_starts_again_repeats_nothing_and_goes_on(tmp_path: Path) -> None:
    first = Line(tmp_path, DONE, FINAL)
    first.add(1, 2, 3)
    for _ in range(3):
        first.after()
    second = resumed(tmp_path, first.observed)
    assert second.add(1, 2, 3) == []
    while second.deliveries.waiting:
        second.after()
    assert second.couriers.started == [f"{3:016x}"]
    assert second.add(4) == ["action_due"]


def test_the_limit_holds_over_a_restart(tmp_path: Path) -> None:
    first = Line(tmp_path, per_hour=2)
    first.add(1, 2, 3)
    second = resumed(tmp_path, first.observed, per_hour=2)
    assert second.add(4) == ["action_limited"]
    assert second.deliveries.left_out == 2
    second.clock.now_s += 3600.0
    assert second.add(5) == ["action_due"]


def test_leaving_ends_what_is_under_way_and_keeps_it_due(tmp_path: Path) -> None:
    line = Line(tmp_path)
    line.couriers.hanging = True
    line.add(1)
    line.after()
    line.deliveries.leave()
    assert (line.couriers.ended, line.deliveries.waiting, line.deliveries.underway) == (1, 1, False)
    assert [seen.kind for seen in line.observed] == ["action_due"]


def test_giving_up_buries_all_that_waits(tmp_path: Path) -> None:
    line = Line(tmp_path)
    line.couriers.hanging = True
    line.add(1, 2)
    line.after()
    line.deliveries.give_up("the training has ended")
    assert [*line.after(), *line.after()] == ["action_failed", "action_failed"]
    assert line.letter(2)["reason"] == "the training has ended"


def test_giving_up_keeps_the_reason_for_which_the_last_try_failed(tmp_path: Path) -> None:
    line = Line(tmp_path, REFUSED)
    line.add(1)
    line.after()
    line.after()
    line.deliveries.give_up("the training has ended")
    line.after()
    assert line.letter(1)["reason"] == "the training has ended; the last try: answered with 503"


def test_what_was_left_out_is_reported_by_the_next_evaluator_too(tmp_path: Path) -> None:
    line = Line(tmp_path, per_hour=1)
    stale = line.clock.time_ns() - int(3601e9)
    observed = replace(event(9), kind="summary", finding=None)
    line.deliveries.resume(event(8).id, "action_due", stale, None, 0)
    line.deliveries.resume(event(9).id, "action_limited", stale, observed, 0)
    assert line.after() == ["action_due"]
    assert line.observed[0].data["content"]["left_out"] == 1


def test_the_processes_of_many_runs_together_are_limited(tmp_path: Path) -> None:
    most = module.MOST_OF_ALL_RUNS
    lines = [Line(tmp_path / str(number)) for number in range(most + 2)]
    for line in lines:
        line.couriers.hanging = True
        line.add(1)
        line.after()
    assert [len(line.couriers.started) for line in lines] == [*[1] * most, 0, 0]
    lines[0].couriers.hanging = False
    assert lines[0].after() == ["action_done"]
    lines[1].deliveries.leave()
    for line in lines[most:]:
        line.after()
        assert len(line.couriers.started) == 1


def test_a_process_that_begins_again_leaves_no_delivery_behind(tmp_path: Path) -> None:
    lines = [Line(tmp_path / str(number)) for number in range(2)]
    for line in lines:
        line.couriers.hanging = True
        line.add(1)
        line.after()
    module.end_all()
    assert [(line.couriers.ended, line.deliveries.waiting, line.deliveries.underway) for line in lines] == [
        (1, 1, False), (1, 1, False),
    ]  # fmt: skip


def test_a_rule_that_starves_twice_for_different_reasons_is_two_events() -> None:
    ids = {event_id("run", "status", 0, "Overfit", "InProgress", "Starved", reason) for reason in ("a", "b", "b")}
    assert len(ids) == 2


def test_a_dead_letter_file_that_is_a_pipe_without_a_reader_does_not_hold_anybody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    line = Line(tmp_path / "run", FINAL, dead_letter=str(tmp_path / "pipe"))
    line.add(1)
    line.after()
    line.after()
    assert line.observed[-1].kind == "action_failed"
    assert "pipe" in line.observed[-1].data["file_problem"]
