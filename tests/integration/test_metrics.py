"""``watchglass follow --metrics-port``, scraped while a training run goes on, and by a real Prometheus."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from command_line import training
from watchglass.cli import main
from watchglass.testing import RunBuilder

#: Seconds that anything may take, with other tests running beside it.
PATIENCE_S = 240.0


@contextmanager
def following(run: Path, log: Path, *options: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """``watchglass follow`` in a separate process, and the address of its metrics."""
    command = [sys.executable, "-m", "watchglass", "follow", str(run), "--metrics-port", "0", *options]
    with log.open("wb") as errors, subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors) as process:
        try:
            deadline = time.monotonic() + PATIENCE_S
            while not (found := re.search(r"metrics at (http://127\.0\.0\.1:\d+/metrics)\n", log.read_text())):
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline
                time.sleep(0.05)
            yield process, found[1]
        finally:
            if process.poll() is None:
                process.kill()


def samples(url: str) -> dict[str, float]:
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
        families = text_string_to_metric_families(answer.read().decode())
        return {
            sample.name + json.dumps({**sample.labels, "run": ""}, sort_keys=True): sample.value
            for family in families
            for sample in family.samples
        }


def wait_for(url: str, name: str, value: float) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while samples(url).get(name) != value:
        assert time.monotonic() < deadline, samples(url)
        time.sleep(0.1)


def test_metrics_of_a_run_that_is_followed(tmp_path: Path) -> None:
    steps = training(broken_at=40)
    with RunBuilder(tmp_path / "run", modules={"fc": "Linear"}) as builder:
        for step in steps[:30]:
            builder.step(step, flush=False)
        builder.flush()
        with following(tmp_path / "run", tmp_path / "log") as (process, url):
            wait_for(url, 'watchglass_train_step{"run": "", "worker": "worker_0"}', 30)
            for step in steps[30:]:
                builder.step(step, flush=False)
            builder.flush()
            wait_for(url, 'watchglass_findings{"rule": "ExplodingTensor", "run": "", "severity": "error"}', 1)
            builder.leave()
            assert process.wait(PATIENCE_S) == 1
    with pytest.raises(urllib.error.URLError):
        samples(url)


def test_metrics_of_many_runs(tmp_path: Path) -> None:
    for name in ("a", "b"):
        with RunBuilder(tmp_path / "runs" / name, modules={"fc": "Linear"}) as builder:
            for step in training(10):
                builder.step(step, flush=False)
            builder.leave()
    with following(tmp_path / "runs", tmp_path / "log", "--until-idle", "600") as (process, url):
        wait_for(url, 'watchglass_runs{"run": "", "state": "ended"}', 2)
        process.terminate()
        assert process.wait(PATIENCE_S) == 143


def test_a_port_in_use_is_one_line_and_nothing_is_followed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["follow", str(tmp_path / "run"), "--metrics-port", str(port)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"watchglass: error: metrics cannot be served at 127.0.0.1 port {port}: Address already in")


def test_a_host_without_a_port_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["follow", str(tmp_path / "run"), "--metrics-host", "0.0.0.0"]) == 2
    assert "--metrics-host 0.0.0.0 needs --metrics-port" in capsys.readouterr().err


PROMETHEUS = shutil.which("prometheus")


@pytest.mark.slow
@pytest.mark.skipif(PROMETHEUS is None, reason="Prometheus is not installed (Debian's package prometheus)")
def test_a_real_prometheus_scrapes_and_answers(tmp_path: Path) -> None:
    assert PROMETHEUS is not None
    with RunBuilder(tmp_path / "run", modules={"fc": "Linear"}) as builder:
        for step in training(60, broken_at=40):
            builder.step(step, flush=False)
        builder.flush()
        with following(tmp_path / "run", tmp_path / "log") as (process, url):
            target = urllib.parse.urlsplit(url).netloc
            with _prometheus(PROMETHEUS, target, tmp_path / "prometheus") as server:
                query = 'max by (rule) (watchglass_findings{severity="error"}) > 0'
                assert _answer(server, query) == [({"rule": "ExplodingTensor"}, 1.0)]
                (found,) = _answer(server, "watchglass_train_step == 60")
                assert found[0]["worker"] == "worker_0"
                assert _answer(server, f'up{{instance="{target}"}}')[0][1] == 1
            builder.leave()
            process.wait(PATIENCE_S)


@contextmanager
def _prometheus(program: str, target: str, folder: Path) -> Iterator[str]:
    """A Prometheus that scrapes one target every second, on loopback; ended by its process id."""
    folder.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (folder / "prometheus.yml").write_text(
        json.dumps({"scrape_configs": [{
            "job_name": "watchglass", "scrape_interval": "1s", "static_configs": [{"targets": [target]}],
        }]})
    )  # fmt: skip  # JSON is YAML
    command = [
        program, f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]  # fmt: skip
    environment = {**os.environ, "GOMAXPROCS": "1"}
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(command, stdout=log, stderr=log, env=environment) as server,
    ):
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()
            server.wait(PATIENCE_S)


def _answer(server: str, query: str) -> list[tuple[dict[str, str], float]]:
    """The result of a query, as soon as it is not empty."""
    deadline = time.monotonic() + PATIENCE_S
    address = f"{server}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
    while True:
        try:
            with urllib.request.urlopen(address, timeout=PATIENCE_S) as answer:
                found = json.load(answer)
        except (urllib.error.URLError, ConnectionError):
            found = {"data": {"result": []}}
        if found["data"]["result"]:
            return [(each["metric"], float(each["value"][1])) for each in found["data"]["result"]]
        assert time.monotonic() < deadline, query
        time.sleep(0.2)
