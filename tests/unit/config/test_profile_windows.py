"""Windows of profiled steps, as users write them."""

from __future__ import annotations

import pytest

from watchglass.config import SessionConfig
from watchglass.errors import InvalidValueError


def test_windows_are_sorted_and_half_open() -> None:
    config = SessionConfig("run", profile_steps=("100:105", " 3 : 4 "))
    assert config.profile_windows == (range(3, 4), range(100, 105))
    assert SessionConfig("run").profile_windows == ()
    assert SessionConfig("run", profile_steps=("1:5", "5:9")).profile_windows == (range(1, 5), range(5, 9))


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (("5",), "profile_steps must be START:STOP, such as 100:105 for five training steps, but got '5'"),
        (("-1:5",), "but got '-1:5'"),
        (("0:5",), "must begin at step 1 or later"),
        (("5:5",), "must have 1 to 1000 steps, STOP excluded, but got 5:5"),
        (("1:1002",), "but got 1:1002"),
        (("8:12", "5:9"), "windows must not overlap but got 5:9 and 8:12; use 5:12"),
    ],
)
def test_other_windows_are_refused_in_one_line(texts: tuple[str, ...], message: str) -> None:
    with pytest.raises(InvalidValueError) as refused:
        SessionConfig("run", profile_steps=texts)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)
