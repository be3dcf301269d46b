"""What ``watchglass dashboard`` refuses, in one line each."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from command_line import Watchglass


def test_a_place_without_runs_is_refused(watchglass: Watchglass, tmp_path: Path) -> None:
    assert watchglass("dashboard", tmp_path).error.startswith(f"{tmp_path} holds no runs; give a run, or a folder")
    assert "nowhere" in watchglass("dashboard", tmp_path / "nowhere").error


def test_a_port_in_use_is_refused(watchglass: Watchglass, healthy: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        error = watchglass("dashboard", healthy, "--port", str(port)).error
    assert error.startswith(f"cannot listen on port {port} of 127.0.0.1: ")
    assert error.endswith("choose another one by --port, or --port 0 for a free one")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--port", "65536"), "--port must be 0 to 65535 but got 65536"),
        (("--root-path", "watch"), "--root-path must be a path such as /watch but got 'watch'"),
        (("--root-path", '/a"><b>'), "--root-path must be a path such as /watch"),
        (("--host", "0.0.0.0"), "--host 0.0.0.0 needs --allow-host NAME"),
        (("--host", "no such host"), "--host must be a name or an address of this machine but got 'no such host'"),
        (("--allow-host", "http://x/y"), "--allow-host must be a name without scheme and port but got 'http://x/y'"),
        (("--allow-host", "box:8420"), "--allow-host must be a name without scheme and port but got 'box:8420'"),
    ],
)
def test_options_that_cannot_be_are_refused(
    watchglass: Watchglass, healthy: Path, options: tuple[str, ...], expected: str
) -> None:
    assert watchglass("dashboard", healthy, *options).error.startswith(expected)


@pytest.mark.parametrize("package", ["starlette", "uvicorn"])
def test_a_missing_extra_is_named(
    watchglass: Watchglass, healthy: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    for name in [*sys.modules]:
        if name.startswith(("watchglass.dashboard", f"{package}.")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    error = watchglass("dashboard", healthy).error
    assert error.startswith("watchglass dashboard needs starlette and uvicorn (")
    assert error.endswith("install it with: pip install 'watchglass[dashboard]'")
