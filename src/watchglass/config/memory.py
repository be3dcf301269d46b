"""How much memory this machine, or the container that this process runs in, has."""

from __future__ import annotations

import os
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")


def machine_bytes(cgroups: Path = _CGROUPS, own: Path = Path("/proc/self/cgroup")) -> int:
    """Bytes of memory that this process may ever get: the machine's, or less where a control group allows less.

    0 where the system does not report it.
    """
    found = [limit for limit in (_of_machine(), *_of_groups(cgroups, own)) if limit > 0]
    return min(found, default=0)


def _of_machine() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 0


def _of_groups(cgroups: Path, own: Path) -> list[int]:
    """Limits of the control groups that this process is in, of both versions; those above it limit it, too."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers and "memory" not in controllers.split(","):
            continue
        root, name = (cgroups / "memory", "memory.limit_in_bytes") if controllers else (cgroups, "memory.max")
        parts = [part for part in path.split("/") if part and part != ".."]
        for depth in range(len(parts) + 1):
            try:
                found.append(int((root.joinpath(*parts[:depth]) / name).read_text()))
            except (OSError, ValueError):  # "max" is no limit
                continue
    return found
