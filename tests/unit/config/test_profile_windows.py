"""Windows of profiled steps, as users write them."""

from __future__ import annotations

import pytest

from watchglass.config import ProfiledRange, ProfilerConfig
from watchglass.errors import InvalidValueError


def test_windows_are_sorted_and_half_open() -> None:
    config = ProfilerConfig(profile_steps=("100:105", " 3 : 4 "))
    assert config.operator_windows == (ProfiledRange(3, 4), ProfiledRange(100, 105))
    assert ProfilerConfig().operator_windows == ()
    assert ProfilerConfig(python_profile=("1:5", "5:9")).python_windows == (ProfiledRange(1, 5), ProfiledRange(5, 9))


def test_windows_of_seconds_come_after_those_of_steps_and_are_written_as_they_are_read() -> None:
    windows = ProfilerConfig(profile_steps=("60s:65.5s", "3:4", "0s:1s")).operator_windows
    assert windows == (ProfiledRange(3, 4), ProfiledRange(0, 1, timed=True), ProfiledRange(60, 65.5, timed=True))
    assert [str(window) for window in windows] == ["3:4", "0s:1s", "60s:65.5s"]


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (
            ("5",),
            "profile_steps must be START:STOP, such as 100:105 for five training steps or 60s:65s for five seconds",
        ),
        (("-1:5",), "but got '-1:5'"),
        (("0:5",), "must begin at step 1 or later"),
        (("5:5",), "must have 1 to 1000 steps, STOP excluded, but got 5:5"),
        (("1:1002",), "but got 1:1002"),
        (("8:12", "5:9"), "windows must not overlap but got 5:9 and 8:12; use 5:12"),
        (("60s:65",), "but got '60s:65'"),
        (("65s:60s",), "must be at most 3600 seconds, and end after its begin, not 65s:60s"),
        (("0s:3601s",), "not 0s:3601s"),
        (("1s:5s", "4.5s:6s"), "windows must not overlap but got 1s:5s and 4.5s:6s; use 1s:6s"),
    ],
)
def test_other_windows_are_refused_in_one_line(texts: tuple[str, ...], message: str) -> None:
    with pytest.raises(InvalidValueError) as refused:
        ProfilerConfig(profile_steps=texts)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("operators", "functions", "instead"),
    [("5:8", "5:8", "8:11"), ("5:8", "1:6", "8:13"), ("1s:5s", "4.5s:6s", "5s:6.5s")],
)
def test_no_step_has_two_profilers(operators: str, functions: str, instead: str) -> None:
    message = f"but got {functions}, and {operators} for operators; use {instead}$"
    with pytest.raises(InvalidValueError, match=message):
        ProfilerConfig(profile_steps=("1000:1001", operators), python_profile=(functions, "2000:2001"))


def test_windows_of_two_profilers_may_follow_one_another() -> None:
    config = ProfilerConfig(profile_steps=("5:8", "0s:1s"), python_profile=("8:9", "1:5", "1s:2s"))
    assert len(config.operator_windows) + len(config.python_windows) == 5
