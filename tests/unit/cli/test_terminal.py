"""What people see while something takes long."""

from __future__ import annotations

import pytest

from watchglass.cli.terminal import progress


def test_a_long_wait_is_reported_once_off_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("watchglass: at it") as tick:
        tick(14.0)
        assert capsys.readouterr().err == ""
        tick(16.0)
        tick(17.0)
    assert capsys.readouterr().err == "watchglass: at it\n"


def test_who_asked_for_quiet_gets_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("watchglass: at it", enabled=False) as tick:
        tick(100.0)
    assert capsys.readouterr().err == ""
