"""The benchmark's statistics recover what is known."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest

from pairs import compare, estimate, summarize


@pytest.mark.parametrize("trim", [0.0, 0.1])
def test_interval_covers_the_true_ratio_about_95_times_in_100(trim: float) -> None:
    chance = np.random.default_rng(1)
    estimates = [estimate(math.log(1.3) + chance.normal(0, 0.2, 100), trim) for _ in range(1000)]
    covered = sum(e.low <= 1.3 <= e.high for e in estimates)
    assert 925 <= covered <= 970


def test_trimming_ignores_disturbed_blocks() -> None:
    quiet = np.random.default_rng(1).normal(math.log(1.02), 0.01, 200)
    disturbed = np.concatenate([quiet, np.full(10, math.log(5))])
    assert estimate(disturbed, trim=0.1).ratio == pytest.approx(1.02, abs=0.003)
    assert estimate(disturbed, trim=0.0).ratio > 1.08


def test_a_single_block_says_nothing() -> None:
    assert estimate(np.array([0.0])).half_width == math.inf


def test_the_control_is_divided_out() -> None:
    result = summarize([(2.0, 1.0, 1.25)] * 30, block=10, seconds=1.0)
    assert result.watched.ratio == pytest.approx(2.0 / 1.25)
    assert result.control.ratio == pytest.approx(1.25)


class Work:
    """Steps that take a known time on a clock of their own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.background = 0.0
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)

    def take(self, seconds: float, background: float = 0.0) -> None:
        self.now += seconds
        self.background += background


def test_compares_interleaved_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work(monkeypatch)
    result = compare(
        lambda: work.take(1.5), lambda: work.take(1.0), lambda: work.take(1.0), block=5, half_width=0.01, limit_s=1e9
    )
    assert result.watched.ratio == pytest.approx(1.5)
    assert result.control.ratio == pytest.approx(1.0)
    assert result.bare_ms == pytest.approx(1000)


def test_each_makes_a_turn_of_several_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work(monkeypatch)
    made: list[str] = []

    def step(name: str, seconds: float) -> None:
        made.append(name)
        work.take(seconds)

    result = compare(
        lambda: step("watched", 1.5),
        lambda: step("bare", 1.0),
        lambda: step("other", 1.0),
        block=6,
        turn=3,
        half_width=0.01,
        limit_s=1e9,
    )
    turns = [made[at : at + 3] for at in range(0, len(made), 3)]
    assert all(len(set(turn)) == 1 for turn in turns)
    assert all(
        {turn[0] for turn in turns[at : at + 3]} == {"watched", "bare", "other"} for at in range(0, len(turns), 3)
    )
    assert len(made) == 3 * 6 * result.blocks
    assert result.watched.ratio == pytest.approx(1.5)
    assert result.bare_ms == pytest.approx(1000)


def test_background_work_during_bare_steps_is_charged_to_the_watched_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work(monkeypatch)
    result = compare(
        lambda: work.take(1.0, background=9.0),  # in its own time already
        lambda: work.take(1.0, background=0.1),
        lambda: work.take(1.0, background=0.1),
        block=5,
        half_width=0.01,
        limit_s=1e9,
        charged_s=lambda: work.background,
    )
    assert result.watched.ratio == pytest.approx(1.2)


def test_stops_when_the_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work(monkeypatch)
    chance = np.random.default_rng(1)
    noisy = lambda: work.take(float(chance.lognormal(0, 1)))  # noqa: E731
    result = compare(noisy, noisy, noisy, block=1, half_width=1e-6, limit_s=300)
    assert result.seconds >= 300
    assert result.control.half_width > 1e-6


def test_what_is_done_before_a_block_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work(monkeypatch)
    result = compare(
        lambda: work.take(1.5),
        lambda: work.take(1.0),
        lambda: work.take(1.0),
        block=5,
        half_width=0.01,
        limit_s=1e9,
        before_block=lambda: work.take(100.0, background=100.0),
        charged_s=lambda: work.background,
    )
    assert result.watched.ratio == pytest.approx(1.5)
    assert result.seconds > 100 * result.blocks
