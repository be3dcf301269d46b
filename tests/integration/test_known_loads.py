"""Known loads through the whole sampler, compared with what the kernel says that the process did: within a tenth."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from processes import Processes, ended
from waiting import until
from watchglass.config import SamplerConfig
from watchglass.errors import UnknownNameError
from watchglass.records import Finding
from watchglass.run import open_run
from watchglass.store import LocalStore, create_attempt, create_run
from watchglass.supervise import CompanionProcess

pytestmark = pytest.mark.slow

#: Bytes that one order reads, and that one step keeps.
READ_BYTES, KEPT_BYTES = 16 << 20, 1_000_000

#: A process that waits for a load, carries it out, and says what the kernel has counted.
LOADED = """
import json, os, resource, sys, threading, time

def counted():
    own = resource.getrusage(resource.RUSAGE_SELF)
    pages = int(open("/proc/self/statm").read().split()[1])
    found = {"cpu_s": own.ru_utime + own.ru_stime, "memory": pages * resource.getpagesize(), "course": course}
    try:
        rows = dict(line.split(": ") for line in open("/proc/self/io").read().splitlines())
        found["read"] = int(rows["read_bytes"])
    except OSError:
        pass
    print(json.dumps(found), flush=True)

def burn(times):
    for _ in range(times):
        begun = time.process_time()
        while time.process_time() - begun < 0.05:
            pass
        time.sleep(0.05)
        course.append((time.monotonic(), time.process_time()))

def read(path):
    file = os.open(path, os.O_RDONLY)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    while os.read(file, 1 << 20):
        time.sleep(0.02)

def keep(steps):
    for _ in range(steps):
        kept.append(b"x" * 1_000_000)
        time.sleep(0.02)

kept, course = [], []
for line in sys.stdin:
    name, value = json.loads(line)
    counted()
    thread = threading.Thread(target={"burn": burn, "read": read, "keep": keep}[name], args=(value,))
    thread.start()
    thread.join()
    counted()
"""


class Loaded:
    """The process, and a sampler that watches it."""

    def __init__(self, run: Path) -> None:
        self.run = run
        store = LocalStore(run)
        create_run(store, command=[])
        create_attempt(store, "")
        self.process = subprocess.Popen(
            [sys.executable, "-c", LOADED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        config = SamplerConfig(str(run), 0, self.process.pid, with_root=True, interval_s=0.1)
        self.sampler = CompanionProcess(config, os.environ)

    def carry_out(self, load: str, value: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Carry out a load between two samples at least on each side; what the kernel counted before and after it."""
        self._wait_for_samples()
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([load, value]) + "\n")
        self.process.stdin.flush()
        before, after = (json.loads(self.process.stdout.readline()) for _ in range(2))
        self._wait_for_samples()
        return before, after

    def _wait_for_samples(self) -> None:
        count = self._samples()
        until(lambda: self._samples() >= count + 2, pause_s=0.1)

    def _samples(self) -> int:
        try:
            return len(open_run(self.run).samples("process.memory"))
        except UnknownNameError:
            return 0

    def course(self, metric: str) -> tuple[Any, Any]:
        """Times in seconds and known values of a metric of the process."""
        found = open_run(self.run).samples(metric)
        values = found.values if not found.instances else found.values[:, found.instances.index(str(self.process.pid))]
        known = np.isfinite(values)
        return found.time_ns[known] / 1e9, values[known]

    def total(self, metric: str) -> float:
        """The integral of a rate, which is the mean since the value before."""
        times_s, rates = self.course(metric)
        return float((rates[1:] * np.diff(times_s)).sum())

    def close(self) -> None:
        self.sampler.let_go()
        self.sampler.wait(30)
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def loaded(tmp_path: Path) -> Iterator[Loaded]:
    made = Loaded(tmp_path / "run")
    yield made
    made.close()


def test_a_process_at_half_a_core_has_the_time_that_the_kernel_counts(loaded: Loaded) -> None:
    before, after = loaded.carry_out("burn", 20)
    spent_s = after["cpu_s"] - before["cpu_s"]
    assert spent_s == pytest.approx(1.0, rel=0.1)
    assert loaded.total("process.utilization") / 100 == pytest.approx(spent_s, rel=0.1, abs=0.03)
    # While it burned, what the samples add up to is what it had got until then. Between two readings of a clock and a
    # counter the machine may stop a process, so a few of them may be wrong.
    times_s, percent = loaded.course("process.utilization")
    added_s = np.cumsum(percent[1:] / 100 * np.diff(times_s))
    noted_s, cpu_s = np.array(after["course"]).T
    during = (times_s[1:] > noted_s[0]) & (times_s[1:] < noted_s[-1])
    assert during.sum() > 5
    errors_s = added_s[during] - np.interp(times_s[1:][during], noted_s, cpu_s - before["cpu_s"])
    assert float(np.median(np.abs(errors_s))) < 0.1 * spent_s


def test_a_thread_that_reads_the_disk_is_read_as_the_kernel_counts_it(loaded: Loaded, tmp_path: Path) -> None:
    file = tmp_path / "data"
    with file.open("wb") as writing:
        writing.write(os.urandom(READ_BYTES))
        writing.flush()
        os.fsync(writing.fileno())  # only clean pages are dropped
    before, after = loaded.carry_out("read", str(file))
    if "read" not in before:
        pytest.skip("this kernel has no /proc/<pid>/io")
    read_bytes = after["read"] - before["read"]
    if not read_bytes:
        pytest.skip("the kernel reads this file from memory: its file system is on no disk")
    assert read_bytes == pytest.approx(READ_BYTES, rel=0.1)
    assert loaded.total("processes.read") == pytest.approx(read_bytes, rel=0.1)


def test_memory_that_grows_by_1_mb_a_step_is_sampled(loaded: Loaded) -> None:
    before, after = loaded.carry_out("keep", 60)
    _, sizes = loaded.course("process.memory")
    assert sizes[-1] - sizes[0] == pytest.approx(after["memory"] - before["memory"], rel=0.1)
    assert sizes[-1] - sizes[0] == pytest.approx(60 * KEPT_BYTES, rel=0.1)


LEAKING = """
import os, sys, time
import torch
from torch import nn
torch.set_num_threads(1)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
kept = []
log = open("sizes", "w", buffering=1)
while not os.path.exists("end"):
    model(torch.ones(4, 8)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    kept.append(b"x" * 1_000_000)
    print(open("/proc/self/statm").read().split()[1], file=log)
    time.sleep(0.04)
"""


def test_the_slope_of_a_memory_leak_is_what_each_step_keeps(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LEAKING)
    options = ["--run", "run", "--rules", "MemoryLeak:window_s=1", "--sample-interval", "0.1", "--save-interval", "16"]
    processes = Processes()

    def findings() -> list[Finding]:
        return open_run(tmp_path / "run").journal.findings

    try:
        launcher = processes.start("-m", "watchglass", "run", *options, "train.py", cwd=tmp_path)
        until(findings, pause_s=0.2, despite=(UnknownNameError, OSError))
        (tmp_path / "end").touch()
        status, _, errors = ended(launcher)
    finally:
        processes.close()
    assert status == 0, errors
    (finding,) = findings()
    pages = np.array((tmp_path / "sizes").read_text().split(), float)
    kernel = np.polyfit(np.arange(len(pages) - 20), pages[20:] * os.sysconf("SC_PAGE_SIZE"), 1)[0]
    assert finding.evidence["bytes_per_step"] == pytest.approx(kernel, rel=0.1)
    assert finding.evidence["bytes_per_step"] == pytest.approx(KEPT_BYTES, rel=0.1)
