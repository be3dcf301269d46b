"""Finds the rings of a claim on this machine. Imports nothing slow: launchers call it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from watchglass.errors import RunExistsError
from watchglass.store import locked_files
from watchglass.store.contract import Store

_ATTEMPT = re.compile(r"attempts/\d{4,9}\Z", re.ASCII)


def rings_exist(store: Store, names: Sequence[str]) -> bool:
    """Whether a file of these rings is on this machine, and belongs to this user: others cannot be read."""
    return os.getuid() in owners_of_rings(store, names)


def owners_of_rings(store: Store, names: Sequence[str]) -> set[int]:
    """User ids that the files of these rings belong to, as far as they are on this machine."""
    owners = set()
    for path in paths_of_rings(store, names):
        with suppress(OSError):
            owners.add(path.lstat().st_uid)
    return owners


def rings_held(store: Store, names: Sequence[str], label: Mapping[str, Any]) -> bool:
    """Whether a process still writes these rings, although its claim looks from here as if it were dead."""
    for path in paths_of_rings(store, names):
        try:
            descriptor = locked_files.lock_abandoned(path, path.suffix[1:], label)
        except RunExistsError:
            return True
        if descriptor is not None:
            os.close(descriptor)
    return False


def paths_of_rings(store: Store, names: Sequence[str]) -> list[Path]:
    """The files that a claim names. A claim is not trusted, so other names than those of rings are ignored."""
    found = []
    for name in names:
        folder, _, last = name.rpartition("/")
        if not locked_files.NAME.match(last):
            continue
        if locked_files.is_private(folder):
            found.append(Path(name))
        elif store.root is not None and _ATTEMPT.match(folder) and not _is_linked(store.root, folder):
            found.append(store.root / folder / last)
    return found


def _is_linked(root: Path, folder: str) -> bool:
    """Whether ``folder`` of a run is a link or lies in one: what a foreign run links to is not part of it."""
    return any((root / part).is_symlink() for part in (folder.partition("/")[0], folder))
