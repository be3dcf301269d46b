"""What is said of the cost of watching."""

from __future__ import annotations

import pytest

from watchglass.view import capture_lines

COUNTERS = {
    "callback_ns": 600_000_000, "recorder_cpu_ns": 300_000_000, "train_ns": 100_000_000_000, "train_steps": 1000,
    "overhead_budget": 0.01, "allowance_ns": 500_000_000, "interval": 8, "captured_steps": 125, "fixed_interval": False,
    "observed_extra_ns": 8_000_000.0,
    "bytes_written": 2_000_000, "peak_bytes": {"cpu": 5_000_000, "cuda:0": 1_000_000},
}  # fmt: skip


def test_the_bound_is_reported_in_seconds_with_what_is_allowed_and_what_was_observed() -> None:
    first, second = capture_lines(COUNTERS)
    assert first == "capture cost at most 0.9 s of 1 min 40 s (0.9 %); budget 0.5 s + 1 %"
    assert second == (
        "statistics of 125 of 1,000 steps, 2.0 MB written, at most 5.0 MB of memory, at most 1.0 MB of memory on cuda:0"
    )


def test_in_a_short_run_the_bound_stands_beside_its_budget_and_not_as_a_share() -> None:
    """Most of that budget is the half second for the start, which would be an alarming share of a run of a second."""
    short = {**COUNTERS, "callback_ns": 480_000_000, "recorder_cpu_ns": 20_000_000, "train_ns": 440_000_000}
    first, _ = capture_lines({**short, "observed_extra_ns": None})
    assert first == "capture cost at most 0.5 s; budget 0.5 s + 1 % of 0.4 s"


def test_in_brief_only_what_was_lost_or_asked_for_is_stated() -> None:
    dropped = {**COUNTERS, "dropped": {"raw": 3}, "recovered_steps": 2, "phases": {"data": 0.38}}
    assert list(capture_lines(dropped, brief=True)) == [
        line for line in capture_lines(dropped) if "cost" not in line and "written, at most" not in line
    ]
    assert len(list(capture_lines(dropped, brief=True))) == 3
    assert list(capture_lines(COUNTERS, brief=True)) == []


def test_what_one_of_several_workers_cost_is_said_of_that_one() -> None:
    first, second = capture_lines({**COUNTERS, "worker": "worker_0"})
    assert first.startswith("on worker_0: capture cost at most 0.9 s of 1 min 40 s")
    assert second.startswith("on worker_0: statistics of 125 of 1,000 steps")


def test_an_uncertain_observation_and_a_fixed_interval_say_nothing_of_themselves() -> None:
    first, second = capture_lines({**COUNTERS, "observed_extra_ns": None, "fixed_interval": True})
    assert first == "capture cost at most 0.9 s of 1 min 40 s (0.9 %)"
    assert second.startswith("statistics every 8 steps, ")


def test_how_many_steps_have_a_loss_is_stated_where_not_all_have() -> None:
    _, second = capture_lines({**COUNTERS, "recorded_steps": 250})
    assert second.startswith("statistics of 125 of 1,000 steps, the loss of 250 of 1,000 steps, ")


def test_where_every_step_has_statistics_nothing_is_said_of_it() -> None:
    _, second = capture_lines({**COUNTERS, "captured_steps": 1000})
    assert second.startswith("2.0 MB written")


def test_work_of_devices_is_in_the_bound_and_reported() -> None:
    first, *_ = capture_lines({**COUNTERS, "device_ns": 1_100_000_000, "observed_extra_ns": None})
    assert first == "capture cost at most 2.0 s of 1 min 40 s (2 %), 1.1 s of it on devices; budget 0.5 s + 1 %"
    assert next(capture_lines({**COUNTERS, "device_ns": 0})) == next(capture_lines(COUNTERS))


def test_what_launcher_and_evaluator_took_stands_beside_it() -> None:
    first, *_ = capture_lines({**COUNTERS, "observed_extra_ns": None, "beside_cpu_ns": 680_000_000})
    assert first.endswith("budget 0.5 s + 1 %; launcher and evaluator used 0.7 s of processor time")


def test_a_run_of_an_earlier_release_had_no_allowance() -> None:
    earlier = {name: value for name, value in COUNTERS.items() if name not in ("allowance_ns", "captured_steps")}
    first, second = capture_lines(earlier)
    assert first == "capture cost at most 0.9 s of 1 min 40 s (0.9 %); budget 1 %"
    assert second.startswith("statistics every 8 steps, ")


@pytest.mark.parametrize(
    ("ratio", "said"), [(0.0083, "0.83 %"), (0.994, "99 %"), (0.996, "100 %"), (1.51, "151 %"), (15.1, "1,510 %")]
)
def test_very_short_steps_cost_more_than_all_of_their_time(ratio: float, said: str) -> None:
    (line,) = capture_lines({"callback_ns": ratio * 1e9, "train_ns": 1e9})
    assert line.endswith(f" of 1.0 s ({said})")


def test_a_notable_wait_for_data_is_stated() -> None:
    shares = {"data": 0.3812, "forward": 0.6}
    assert list(capture_lines({"phases": shares})) == ["38 % of a typical training step is a wait for data"]
    assert list(capture_lines({"phases": {**shares, "data": 0.04}})) == []
    assert list(capture_lines({"phases": "damaged"})) == []


def test_windows_that_were_not_profiled_are_named_with_the_reason() -> None:
    refused = {"window": "5000:5005", "reason": "the training run ended before step 5000", "request": None}
    assert list(capture_lines({"refused_windows": [refused]})) == [
        "not profiled: steps 5000:5005: the training run ended before step 5000"
    ]


def test_models_whose_modules_are_not_timed_are_named_with_the_reason() -> None:
    untimed = {"model": "Net", "reason": "it is compiled"}
    lines = ["not timed: modules of Net: it is compiled"]
    assert list(capture_lines({"untimed_modules": [untimed, "damaged"]})) == lines
    assert list(capture_lines({"untimed_modules": "damaged"})) == []
