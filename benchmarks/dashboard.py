"""What the dashboard costs on long runs and on runs of many workers: first page, views of 20 clients, memory, rest.

    python benchmarks/dashboard.py
    python benchmarks/dashboard.py --quick
    python benchmarks/dashboard.py --json long workers

Runs are simulated (simulated_runs.py) and written into a temporary folder; a server of its own process shows them to
clients in threads of this one. README.md in this folder explains the result. Leaves with status 1 where a target is
missed.
"""

from __future__ import annotations

import http.client
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import psutil
from numpy.typing import NDArray

from figures import Result, arguments, measure
from simulated_runs import Simulated, Tensors, flush_frames, simulate, with_scalars
from watchglass.records import Finding, Mode, RuleStatus, Severity, Status
from watchglass.store import (
    JournalWriter,
    LocalStore,
    SegmentWriter,
    claim_worker,
    create_attempt,
    create_run,
    encode_catalog,
    encode_lifecycle,
    layout,
    this_process,
)

_CLIENTS, _TENSORS = 20, 300
#: Seconds of a client between two pages, as the script has when a run goes on.
_PAUSE_S = 1.0


class Server:
    """A dashboard of a folder with one run, and what it takes."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-m", "watchglass", "dashboard", str(folder), "--port", "0"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.link = self._process.stdout.readline().strip()
        parts = urlsplit(self.link)
        self._host = parts.netloc
        answer = self._get(f"{parts.path}?{parts.query}", {})
        self._headers = {"Cookie": str(answer.headers["set-cookie"]).partition(";")[0]}
        (self.run,) = {
            word.split("/r/")[1][:16] for word in self.page("/").decode().split('"') if word.startswith("/r/")
        }

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.terminate()
        self._process.wait()

    def page(self, path: str) -> bytes:
        """A page."""
        answer = self._get(path, self._headers)
        text = answer.read()
        if answer.status != 200:
            raise SystemExit(f"{path}: {answer.status} {text[:300]!r}")
        return text

    def seconds(self, path: str) -> float:
        """How long a page takes."""
        begun = time.perf_counter()
        self.page(path)
        return time.perf_counter() - begun

    @contextmanager
    def listening(self) -> Iterator[None]:
        """A page of the run is open."""
        connection = http.client.HTTPConnection(self._host, timeout=60)
        connection.request("GET", f"/events?run={self.run}", headers=self._headers)
        answer = connection.getresponse()

        def read() -> None:
            try:
                while answer.readline():
                    pass
            except (OSError, ValueError, AttributeError, http.client.HTTPException):  # closed below
                pass

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        yield
        connection.sock.shutdown(2)
        thread.join()

    @property
    def spent_s(self) -> float:
        """Processor time so far."""
        times = psutil.Process(self._process.pid).cpu_times()
        return float(times.user + times.system)

    @property
    def peak_bytes(self) -> int:
        """The most memory that it ever had."""
        lines = Path(f"/proc/{self._process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))

    def _get(self, path: str, headers: dict[str, str]) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection(self._host, timeout=60)
        connection.request("GET", path, headers=headers)
        return connection.getresponse()


def long(folder: Path, *, quick: bool) -> Iterator[Result]:
    """A run of 10,000 steps of 300 tensors that goes on while 20 clients look at it."""
    steps = 500 if quick else 10_000
    growing = Growing(folder / "runs" / "long", steps)
    whole = None if quick else 1.0
    yield from _looked_at("long", folder / "runs", growing.go_on, 6.0 if quick else 40.0, whole)


def workers(folder: Path, *, quick: bool) -> Iterator[Result]:
    """A finished run of 1,024 workers."""
    count = 32 if quick else 1024
    simulate(LocalStore(folder / "runs" / "workers"), Simulated(100, 12, count), kinds=8)
    yield from _looked_at(
        "workers", folder / "runs", lambda stopping: None, 4.0 if quick else 20.0, None if quick else 1.0
    )


class Growing:
    """A run that goes on: its process is this one.

    Args:
        path: Its folder.
        steps: Steps that it has before anyone looks.
    """

    def __init__(self, path: Path, steps: int) -> None:
        store, process = LocalStore(path), this_process()
        create_run(store, command=["train.py"])
        attempt, name = create_attempt(store, ""), layout.worker_name(0)
        claim_worker(store, attempt, name, process)
        self._writer, self._tensors, self._steps = SegmentWriter(store, attempt, name), Tensors(_TENSORS), 0
        about = {"worker": name, "time_ns": 0, "wall_ns": 0, "pid": process.pid}
        self._writer.write([encode_lifecycle({"event": "joined", **about})])
        self._writer.write([encode_catalog(with_scalars(self._tensors.catalog()))])
        while self._steps < steps:
            self._flush()
        with JournalWriter(store) as journal:
            journal.write(_journal(steps))

    def _flush(self) -> None:
        steps = range(self._steps, self._steps + 8)
        random = np.random.default_rng(self._steps)
        losses = 2.0 + 8.0 * 0.999 ** np.asarray(steps) + random.normal(0, 0.05, len(steps))
        self._writer.write(flush_frames(self._tensors, steps, losses, scalars=True))
        self._steps = steps.stop

    def go_on(self, stopping: threading.Event) -> None:
        """Write eight steps a second."""
        while not stopping.wait(1.0):
            self._flush()


def _journal(steps: int) -> list[Finding | RuleStatus]:
    """Findings of two rules, as an evaluator writes them."""
    rules = ("ExplodingGradient", "LossNotDecreasing")
    findings = [
        Finding(
            id=f"{number:012x}", rule=rules[number % 2], severity=Severity.WARNING, step=step, last_step=step + 7,
            count=8, mode=Mode.TRAIN, worker="worker_0", tensors=("gradient/blocks.0.linear_3.weight",),
            value=7.0, limit=1.0, message="the gradient norm grew 100-fold",
        )
        for number, step in enumerate(range(steps // 4, steps, max(1, steps // 40)))
    ]  # fmt: skip
    return [*findings, *(RuleStatus(rule, Status.ISSUES_FOUND) for rule in rules)]


def views(run: str) -> dict[str, str]:
    """Addresses of what is measured, by what they show."""
    from watchglass.dashboard.run_pages import RUN_PAGES
    from watchglass.view import LAYER_FIELDS

    pages = {page.title.lower(): f"/r/{run}/{name}".rstrip("/") for name, page in RUN_PAGES.items()}
    fields = {f"layers, {field.name}": f"/r/{run}/layers?field={name}" for name, field in LAYER_FIELDS.items()}
    return {**pages, **fields}


def _looked_at(
    name: str, runs: Path, go_on: Callable[[threading.Event], None], seconds: float, whole: float | None
) -> Iterator[Result]:
    with Server(runs) as server:
        paths = views(server.run)
        begun = time.perf_counter()
        yield Result(name, "first paint of a run", server.seconds(paths["run"]), "s", whole)
        while b"is being opened" in server.page(paths["run"]):
            time.sleep(0.1)  # a browser waits for an event
        yield Result(name, "all of its page", time.perf_counter() - begun, "s")
        stopping = threading.Event()
        first = {title: server.seconds(path) for title, path in paths.items()}
        slowest = max(first, key=lambda title: first[title])
        yield Result(name, f"slowest of {len(paths)} views when first drawn: {slowest}", first[slowest], "s")
        writing = threading.Thread(target=go_on, args=(stopping,))
        writing.start()
        before_s, begun = server.spent_s, time.monotonic()
        times = _clients(server, paths, seconds)
        spent = (server.spent_s - before_s) / (time.monotonic() - begun)
        everything = np.concatenate(list(times.values()))
        worst = max(times, key=lambda title: float(np.percentile(times[title], 95)))
        limit = 100 if whole else None
        yield Result(name, f"any view, {_CLIENTS} clients, median", 1e3 * float(np.median(everything)), "ms")
        yield Result(
            name, f"any view, {_CLIENTS} clients, 95 %", 1e3 * float(np.percentile(everything, 95)), "ms", limit
        )
        yield Result(name, f"slowest view, 95 %: {worst}", 1e3 * float(np.percentile(times[worst], 95)), "ms")
        yield Result(name, "server with these clients", 100 * spent, "% of a core")
        yield Result(name, "processor time of a view", 1e3 * spent * seconds / len(everything), "ms")
        stopping.set()
        writing.join()
        with server.listening():
            time.sleep(3.0)
            before_s, begun = server.spent_s, time.monotonic()
            time.sleep(4.0 if whole is None else 20.0)
            idle = (server.spent_s - before_s) / (time.monotonic() - begun)
        yield Result(name, "one client, nothing new", 100 * idle, "% of a core", 1.0 if whole else None)
        yield Result(name, "memory of the server at most", server.peak_bytes / 1e6, "MB", 400 if whole else None)


def _clients(server: Server, paths: dict[str, str], seconds: float) -> dict[str, NDArray[np.float64]]:
    """Times of each view for clients who look at one after another for some seconds."""
    found: dict[str, list[float]] = {title: [] for title in paths}
    until = time.monotonic() + seconds
    order = list(paths)

    def look(number: int) -> None:
        time.sleep(_PAUSE_S * number / _CLIENTS)
        while time.monotonic() < until:
            title = order[number % len(order)]
            found[title].append(server.seconds(paths[title]))
            number += 1
            time.sleep(_PAUSE_S)

    threads = [threading.Thread(target=look, args=(number,)) for number in range(_CLIENTS)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return {title: np.array(times) for title, times in found.items() if times}


BENCHMARKS: dict[str, Callable[..., Iterator[Result]]] = {"long": long, "workers": workers}


def main() -> None:
    """Measure what the arguments ask for; leaves with status 1 where a target is missed."""
    parser = arguments(__doc__, BENCHMARKS, "small runs, in half a minute")
    measure(parser, parser.parse_args(), BENCHMARKS)


if __name__ == "__main__":
    main()
