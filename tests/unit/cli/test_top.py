"""``watchglass top`` in a pipe, and without its extra."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from command_line import Watchglass


def test_in_a_pipe_it_sums_up_once(watchglass: Watchglass, healthy: Path) -> None:
    said = watchglass("top", healthy)
    assert said.status == 0
    first, second, *rest = said.out.splitlines()
    assert first.startswith(f"{healthy}: finished · ")
    assert second.startswith("loss ")
    assert any("not judged: its rules have not been evaluated" in line for line in rest)
    assert json.loads(watchglass("top", healthy, "--json").out)["state"] == "finished"


def test_a_missing_extra_is_named(watchglass: Watchglass, healthy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(("watchglass.top", "textual."))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "textual", None)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    error = watchglass("top", healthy).error
    assert error.startswith("watchglass top needs textual (")
    assert error.endswith("install it with: pip install 'watchglass[top]'")
