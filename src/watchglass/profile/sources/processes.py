"""The processes of the run: processor time, memory, threads, traffic of disks, open files."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import psutil

from watchglass.profile.metrics import Metric, MetricReading, MetricSource, Rates, SourceUnavailableError

#: Processes that are shown one by one, the oldest first; further ones count in the totals.
MOST_SHOWN = 32
#: Modules whose processes, with all their children, are not processes of the run: evaluator, sampler.
_BESIDE = ("watchglass.evaluate", "watchglass.profile")
_NAN = float("nan")
_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096

_TOTALS = {
    "cpu": Metric("processes.utilization", "%"),
    "memory": Metric("processes.memory", "bytes", exact=True),
    "threads": Metric("processes.threads"),
    "read": Metric("processes.read", "bytes/s"),
    "write": Metric("processes.write", "bytes/s"),
}
_COUNT = Metric("processes.count")


class ProcessTree:
    """The processes of a run: the descendants of a root, without those of watchglass. For one thread.

    Args:
        root: Id of the root.
        with_root: Whether the root is a process of the run.
    """

    def __init__(self, root: int, with_root: bool) -> None:
        self._with_root = with_root
        try:
            self._root = psutil.Process(root)
        except psutil.Error as error:
            raise SourceUnavailableError(f"process {root} of the run cannot be read: {error}") from error
        self.found: list[psutil.Process] = []  #: The members as of the last search; some may have ended.
        self._ours: dict[psutil.Process, bool] = {}
        self._inner: dict[psutil.Process, bool] = {}

    def search(self) -> list[psutil.Process]:
        """Its members now, by age. Looks at every process of the machine."""
        self.found = self._members()
        return self.found

    def _members(self) -> list[psutil.Process]:
        found: list[psutil.Process] = [self._root] if self._with_root else []
        try:
            below = self._root.children(recursive=True)
        except psutil.Error:  # the root has ended
            return []
        beside: set[int] = set()
        for process in sorted(below, key=lambda each: (each.create_time(), each.pid)):
            # A process object equals another one with the same id and start time: each command line is read once.
            if process not in self._ours:
                self._ours[process] = _is_beside(process)
                self._inner[process] = _is_launcher(process)
            if self._ours[process] or _parent(process) in beside:
                beside.add(process.pid)
            elif not self._inner[process]:
                found.append(process)
        alive = {*below}
        for known in (self._ours, self._inner):
            for gone in [each for each in known if each not in alive]:
                del known[gone]
        return found


class SearchSource(MetricSource):
    """``processes.count``. The other sources read the processes that it has found.

    Args:
        tree: The processes.
    """

    name = "search for processes"
    core_share = 0.001

    def __init__(self, tree: ProcessTree) -> None:
        self._tree = tree

    def read(self, now_ns: int) -> Sequence[MetricReading]:
        """See :meth:`MetricSource.read`."""
        return [MetricReading(_COUNT, [len(self._tree.search())])]


class ProcessesSource(MetricSource):
    """``processes.utilization`` and further totals, and ``process.utilization`` and ``process.memory`` by process id.

    100 % is one core. Resident memory counts pages that several processes share once for each of them.

    Args:
        tree: The processes.
    """

    name = "processes"
    core_share = 0.001

    def __init__(self, tree: ProcessTree) -> None:
        self._tree, self._rates = tree, Rates()

    def read(self, now_ns: int) -> Sequence[MetricReading]:
        """See :meth:`MetricSource.read`."""
        rows: dict[str, dict[str, float]] = {}
        for process in self._tree.found:
            with suppress(psutil.Error, OSError, ValueError, IndexError):  # it has ended since
                rows[str(process.pid)] = self._row(process, now_ns)
        shown = list(rows)[:MOST_SHOWN]
        totals = [MetricReading(metric, [_sum(row[name] for row in rows.values())]) for name, metric in _TOTALS.items()]
        instances = tuple(shown)
        return [
            *totals,
            MetricReading(Metric("process.utilization", "%", instances), [rows[each]["cpu"] for each in shown]),
            MetricReading(
                Metric("process.memory", "bytes", instances, exact=True), [rows[each]["memory"] for each in shown]
            ),
        ]  # fmt: skip

    def _row(self, process: psutil.Process, now_ns: int) -> dict[str, float]:
        begun, cpu_s, memory_bytes, threads = _state_of(process)
        key = f"{process.pid} {begun}"
        row = {
            "cpu": 100 * self._rates.of(f"{key} cpu", cpu_s, now_ns),
            "memory": memory_bytes, "threads": threads, "read": _NAN, "write": _NAN,
        }  # fmt: skip
        # Some containers, and other users' processes, have no /proc/<pid>/io; macOS has none at all.
        with suppress(psutil.Error, OSError, AttributeError):
            traffic = process.io_counters()
            row["read"] = self._rates.of(f"{key} read", traffic.read_bytes, now_ns)
            row["write"] = self._rates.of(f"{key} write", traffic.write_bytes, now_ns)
        return row


def _state_of(process: psutil.Process) -> tuple[float, float, float, float]:
    """Start, processor time in seconds, resident bytes and threads of a process."""
    if not sys.platform.startswith("linux"):
        with process.oneshot():
            times = process.cpu_times()
            return process.create_time(), times.user + times.system, process.memory_info().rss, process.num_threads()
    # One file instead of three, since this is most of the cost of a sample (proc_pid_stat(5)).
    with open(f"/proc/{process.pid}/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    user, system, threads, begun, pages = (int(fields[number - 3]) for number in (14, 15, 20, 22, 24))
    return begun, (user + system) / _TICKS, float(pages * _PAGE), float(threads)


class OpenFilesSource(MetricSource):
    """``processes.open_files``: open files, sockets and pipes of all processes of the run.

    Args:
        tree: The processes.
    """

    name = "open files"
    core_share = 0.0005

    def __init__(self, tree: ProcessTree) -> None:
        self._tree = tree

    def read(self, now_ns: int) -> Sequence[MetricReading]:
        """See :meth:`MetricSource.read`."""
        counts = [_count(process.num_fds) for process in self._tree.found]
        return [MetricReading(Metric("processes.open_files"), [_sum(counts)])]


def _count(ask: Callable[[], Any]) -> float:
    try:
        return float(ask())
    except (psutil.Error, OSError, AttributeError):
        return _NAN


def _sum(values: Sequence[float] | Iterator[float]) -> float:
    """The sum of the known numbers; NaN where none is known."""
    known = [each for each in values if each == each]
    return sum(known) if known else _NAN


def _is_beside(process: psutil.Process) -> bool:
    words = _words(process)
    return any(word in _BESIDE for word in words[:8])


def _is_launcher(process: psutil.Process) -> bool:
    """Whether it is a launcher of another rank, between the root and the processes of the run."""
    words = _words(process)[:8]
    begins = [place for place, word in enumerate(words) if os.path.basename(word) == "watchglass"]
    return any("run" in words[place + 1 :][:1] for place in begins)


def _words(process: psutil.Process) -> list[str]:
    try:
        return [str(word) for word in process.cmdline()]
    except (psutil.Error, OSError):
        return []


def _parent(process: psutil.Process) -> int:
    try:
        return int(process.ppid())
    except (psutil.Error, OSError):
        return 0
