"""The share of this machine that the run may use: cores and memory, by control groups (1 and 2) and affinity."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

#: Version 1 writes "no limit" as a number near 2^63.
_UNLIMITED_BYTES = 1 << 60


@dataclass(frozen=True)
class CgroupLimits:
    """The limits of the control groups of this process, of all levels that it can see."""

    cores: float | None = None  #: Processor time per time, in cores; None for no limit.
    memory_bytes: int | None = None  #: None for no limit.
    cpu_usage: Path | None = None  #: File with the processor time of the group that limits ``cores``.
    memory_folder: Path | None = None  #: Folder of the group that limits ``memory_bytes``.

    def cpu_seconds(self) -> float | None:
        """Processor time that the group has used; None where nothing limits it.

        Raises:
            OSError: The file has vanished.
            ValueError: It has other content.
        """
        if self.cpu_usage is None:
            return None
        text = self.cpu_usage.read_text()
        if self.cpu_usage.name == "cpuacct.usage":
            return int(text) / 1e9
        return int(_fields(text)["usage_usec"]) / 1e6

    def memory_used_bytes(self) -> int | None:
        """Memory that the group uses without files that can be dropped; None where nothing limits it.

        Raises:
            OSError: A file has vanished.
            ValueError: It has other content.
        """
        if self.memory_folder is None:
            return None
        first = self.memory_folder / "memory.current"
        if not first.exists():
            first = self.memory_folder / "memory.usage_in_bytes"
        fields = _fields((self.memory_folder / "memory.stat").read_text())
        dropped = int(fields.get("total_inactive_file", fields.get("inactive_file", 0)))
        return max(0, int(first.read_text()) - dropped)


def read_limits(proc: Path = Path("/proc"), mounted: Path = Path("/sys/fs/cgroup")) -> CgroupLimits:
    """The limits of this process; none where the system has no control groups.

    Args:
        proc: Where the process file system is mounted.
        mounted: Where control groups are mounted.
    """
    paths: dict[str, str] = {}
    with suppress(OSError, UnicodeDecodeError):
        for line in (proc / "self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            paths.update(dict.fromkeys(controllers.split(","), path))
    cores, usage = _least(_cores_of_two(mounted, paths), _cores_of_one(mounted, paths))
    memory, folder = _least(_memory_of_two(mounted, paths), _memory_of_one(mounted, paths))
    return CgroupLimits(cores, None if memory is None else int(memory), usage, folder)


def usable_cores() -> list[int]:
    """Numbers of the cores that this process may run on, ascending."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _least(*found: Iterator[tuple[float, Path]]) -> tuple[float | None, Path | None]:
    """The least limit of all levels, with its group."""
    limits = [each for level in found for each in level]
    return min(limits, key=lambda each: each[0], default=(None, None))


def _levels(root: Path, path: str) -> Iterator[Path]:
    """The folder of a group and those above it. In a container the path may be that on the host, and not exist."""
    folder = root / path.strip("/")
    while folder != root and root in folder.parents:
        if folder.is_dir():
            yield folder
        folder = folder.parent
    yield root


def _cores_of_two(mounted: Path, paths: dict[str, str]) -> Iterator[tuple[float, Path]]:
    for folder in _levels(mounted, paths.get("", "/")):
        with suppress(OSError, ValueError, ZeroDivisionError):
            quota, period = (folder / "cpu.max").read_text().split()
            if quota != "max" and "usage_usec" in _fields((folder / "cpu.stat").read_text()):
                yield int(quota) / int(period), folder / "cpu.stat"


def _cores_of_one(mounted: Path, paths: dict[str, str]) -> Iterator[tuple[float, Path]]:
    for folder in _levels(mounted / "cpu", paths.get("cpu", "/")):
        with suppress(OSError, ValueError, ZeroDivisionError):
            quota = int((folder / "cpu.cfs_quota_us").read_text())
            usage = mounted / "cpuacct" / folder.relative_to(mounted / "cpu") / "cpuacct.usage"
            if quota > 0 and usage.exists():
                yield quota / int((folder / "cpu.cfs_period_us").read_text()), usage


def _memory_of_two(mounted: Path, paths: dict[str, str]) -> Iterator[tuple[float, Path]]:
    for folder in _levels(mounted, paths.get("", "/")):
        with suppress(OSError, ValueError):
            yield int((folder / "memory.max").read_text()), folder


def _memory_of_one(mounted: Path, paths: dict[str, str]) -> Iterator[tuple[float, Path]]:
    for folder in _levels(mounted / "memory", paths.get("memory", "/")):
        with suppress(OSError, ValueError):
            limit = int((folder / "memory.limit_in_bytes").read_text())
            if limit < _UNLIMITED_BYTES:
                yield limit, folder


def _fields(text: str) -> dict[str, str]:
    return dict(line.split() for line in text.splitlines() if len(line.split()) == 2)
