"""The table says what was measured, and believes no figure whose run does not hold what it should."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from configurations import CONFIGURATIONS, NORM_INTERVAL, Configuration
from limits import Captured
from overhead import TABLE, half_width, measure, result, show, summary
from pairs import Comparison, Estimate
from watched import Measured

NAMED = {configuration.name: configuration for configuration in CONFIGURATIONS}
EVEN = Estimate(1.0, 0.999, 1.001)


def measured(ratio: float, low: float, high: float, *complaints: str) -> Measured:
    comparison = Comparison(Estimate(ratio, low, high), EVEN, bare_ms=10.0, blocks=30, seconds=1.0)
    return Measured(comparison, Captured(tensors=3, size=4_000_000), list(complaints))


def entry(found: Measured, config: str = "statistics-10", **options: Any) -> dict[str, Any]:
    return result("mlp", NAMED[config], found, 4e9, **options)


def test_every_line_of_the_table_has_its_target() -> None:
    assert {name: dict(configuration.targets) for name, configuration in NAMED.items()} == {
        "statistics-1": {"mlp": 1.30, "transformer": 1.15},
        "statistics-10": {"mlp": 1.03, "transformer": 1.015},
        "default": {"mlp": 1.015, "transformer": 1.01},
        "t0": {"mlp": 1.005, "transformer": 1.005},
        "raw-10": {"mlp": 1.15, "transformer": 1.05},
        "compiled-10": {"compiled transformer": 1.05},
    }


@pytest.mark.parametrize("configuration", CONFIGURATIONS, ids=lambda configuration: configuration.name)
def test_blocks_are_alike(configuration: Configuration) -> None:
    assert configuration.block % configuration.turn == 0
    if configuration.interval:
        assert configuration.block % configuration.interval == 0
    if configuration.avoided:
        # Watching begins with a step, so the first that is avoided comes before the first block.
        assert (configuration.warm_up + 1) % configuration.avoided == 0
        assert (configuration.avoided - 1) % configuration.block == 0


@pytest.mark.parametrize(
    ("found", "met", "certain"),
    [
        (measured(1.02, 1.01, 1.029), True, True),
        (measured(1.02, 1.01, 1.031), True, False),
        (measured(1.031, 1.03, 1.04), False, False),
        (measured(1.04, 1.031, 1.05), False, True),
        (measured(1.02, 1.01, 1.029, "2 raw dropped"), False, True),
    ],
)
def test_met_is_the_estimate_and_certain_the_interval(found: Measured, met: bool, certain: bool) -> None:
    line = entry(found)
    assert (line["met"], line["certain"]) == (met, certain)


def test_few_blocks_are_certain_of_nothing() -> None:
    found = measured(1.02, 1.01, 1.029)
    few = dataclasses.replace(found, comparison=dataclasses.replace(found.comparison, blocks=19))
    assert (entry(few)["met"], entry(few)["certain"]) == (True, False)


def test_a_capture_is_held_against_one_read_of_its_bytes() -> None:
    line = entry(measured(1.02, 1.01, 1.03))
    # 4 MB at 4 GB/s; 2 % of ten steps of 10 ms
    assert line["limit_ms"] == pytest.approx(1.0)
    assert line["capture_ms"] == pytest.approx(2.0)
    assert (line["times_limit"], line["times_met"]) == (2.0, True)
    assert entry(measured(1.05, 1.04, 1.06))["times_met"] is False
    assert entry(measured(1.05, 1.04, 1.06), "raw-10")["times_met"] is None
    assert entry(measured(1.05, 1.04, 1.06), "default")["capture_ms"] is None


def test_other_numbers_of_threads_have_no_targets() -> None:
    line = entry(measured(1.02, 1.01, 1.03), judged=False)
    assert {line[key] for key in ("target", "met", "certain", "times_target", "times_met")} == {None}


def test_rows_have_the_width_of_the_table_and_complaints_below() -> None:
    lines = show(entry(measured(1.02, 1.01, 1.031, "2 raw dropped"))).splitlines()
    assert len(lines[0]) == len(TABLE.head.splitlines()[0]) == len(TABLE.head.splitlines()[1])
    assert lines[1].strip() == "2 raw dropped"


def test_the_summary_names_what_was_missed() -> None:
    said = summary([entry(measured(1.02, 1.01, 1.029)), entry(measured(1.5, 1.4, 1.6))])
    assert "1 of 2 targets met; missed: statistics-10 mlp: 1.5" in said
    assert "1 of 2 within 4 times the physical limit; beyond: statistics-10 mlp: 50.0" in said


def test_fine_targets_are_measured_finely_but_not_for_ever() -> None:
    assert [half_width(target) for target in (1.3, 1.015, 1.001)] == pytest.approx([0.01, 0.00375, 0.001])
    assert half_width(1.015, coarse=True) == 0.01


def quick(name: str, **changes: Any) -> Measured:
    configuration = dataclasses.replace(NAMED[name], **{"warm_up": 3, **changes})
    return measure("mlp", configuration, half_width=1.0, limit_s=0.0)


def test_a_measured_run_holds_what_its_configuration_says() -> None:
    found = quick("statistics-10")
    assert found.complaints == []
    assert found.seen.tensors == 6 + 6 + 5
    assert found.comparison.blocks == 1


def test_steps_with_the_gradient_norm_are_made_off_the_clock() -> None:
    assert quick("t0", warm_up=NORM_INTERVAL - 1).complaints == []
    assert quick("t0", warm_up=NORM_INTERVAL - 1, avoided=48).complaints == [
        "the gradient norm was due on steps that were timed"
    ]


def test_captures_that_are_missing_or_too_many_are_complained_of() -> None:
    often = quick("statistics-10", settings=NAMED["statistics-1"].settings)
    assert often.complaints == ["14 of 2 captures recorded, 12 where none was due"]
    seldom = quick("statistics-1", settings=NAMED["statistics-10"].settings, block=10)
    assert seldom.complaints == ["2 of 14 captures recorded, 0 where none was due"]


def test_tensors_that_are_missing_are_complained_of() -> None:
    few = {**NAMED["statistics-1"].settings, "collections": NAMED["statistics-1"].settings["collections"][:1]}
    assert quick("statistics-1", settings=few).complaints == ["3 of 17 tensors recorded"]


def test_records_that_were_dropped_are_complained_of() -> None:
    found = quick("raw-10", settings={**NAMED["raw-10"].settings, "queue_bytes": 1}, warm_up=31)
    assert any("dropped" in complaint for complaint in found.complaints)
