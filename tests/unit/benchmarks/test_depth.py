"""The benchmark of large models prints a line for each size, with times of every kind of step."""

from __future__ import annotations

import pytest

import depth


def test_each_size_has_a_line_with_times(capsys: pytest.CaptureFixture[str]) -> None:
    depth.main(["--modules", "3", "--parameters", "5"])
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split()[:2] == ["bare", "ms"]
    assert [line.split()[:2] for line in lines] == [["3", "modules"], ["5", "parameters"]]
    assert all(float(number) > 0 for line in lines for number in line.split()[2:6])
