"""Where the rings that a claim names are on this machine. Imports nothing but the standard library: launchers ask."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from watchglass.store.contract import Store
from watchglass.store.media.local import LocalStore
from watchglass.store.rings import file as ring_file

_ATTEMPT = re.compile(r"attempts/\d{4,9}\Z", re.ASCII)


def rings_exist(store: Store, names: Sequence[str]) -> bool:
    """Whether a file of these rings is on this machine."""
    return any(path.exists() for path in paths_of_rings(store, names))


def paths_of_rings(store: Store, names: Sequence[str]) -> list[Path]:
    """The files that a claim names. The claim may be anybody's, so a name is a ring's or it is nothing."""
    found = []
    for name in names:
        folder, _, last = name.rpartition("/")
        if not ring_file.NAME.match(last):
            continue
        if ring_file.is_private(folder):
            found.append(Path(name))
        elif isinstance(store, LocalStore) and _ATTEMPT.match(folder) and not _is_linked(store.root, folder):
            found.append(store.root / folder / last)
    return found


def _is_linked(root: Path, folder: str) -> bool:
    """Whether ``folder`` of a run is a link or lies in one: what a foreign run links to is not part of it."""
    return any((root / part).is_symlink() for part in (folder.partition("/")[0], folder))
