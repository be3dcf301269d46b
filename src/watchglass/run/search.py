"""Finds the runs below a location, once or any number of times at little cost."""

from __future__ import annotations

from watchglass.errors import DamagedDataError, InvalidValueError, StoreError
from watchglass.store import Store, check_path, layout

#: The levels of folders that are searched, and the most folders of a search; more are refused.
DEPTH, MOST_FOLDERS = 4, 10_000


class RunSearch:
    """Finds the runs of a folder or prefix, any number of times. For one thread.

    A folder that is known to be a run costs nothing more, and folders below a run are never searched. Any other folder
    costs two requests at each search: one for its ``run.json`` and one for the folders in it.

    Args:
        store: The folder or prefix.
        most_folders: Number of folders that are searched; more are refused. None for 10,000.

    Attributes:
        requests: Number of requests of the last search.
        unreadable: Folders that the last search could not read, with the reason. Only in a local folder, where the
            permissions of folders may differ.
    """

    def __init__(self, store: Store, most_folders: int | None = None) -> None:
        self.requests = 0
        self.unreadable: dict[str, str] = {}
        self._store = store
        self._most_folders = most_folders or MOST_FOLDERS
        self._known: set[str] = set()

    def look(self) -> list[str]:
        """Runs that no earlier search has found, as paths in the store, sorted; "" where the location itself is a run.

        Raises:
            StoreError: The store refused; the next search finds the same runs again.
            InvalidValueError: There are more than 10,000 folders that are not known to be runs.
        """
        found, waiting = [], [("", 0)]
        self.requests, looked = 0, 0
        self.unreadable = {}
        while waiting:
            folder, depth = waiting.pop()
            looked += 1
            if looked > self._most_folders:
                raise InvalidValueError(
                    f"{self._store.location} holds more than {self._most_folders:,} folders; give one that is closer "
                    "to the runs"
                )
            try:
                self.requests += 1
                if self._store.size(f"{folder}/{layout.MANIFEST}".lstrip("/")) is not None:
                    found.append(folder)
                elif depth < DEPTH:
                    waiting += [(path, depth + 1) for path in self._folders(folder) if path not in self._known]
            except (StoreError, DamagedDataError) as error:
                if not folder or self._store.policy.shared_outages:
                    raise
                self.unreadable[folder] = str(error)
        self._known.update(found)
        return sorted(found)

    def _folders(self, folder: str) -> list[str]:
        self.requests += 1
        paths = []
        for name in self._store.folders(folder):
            try:
                paths.append(check_path(f"{folder}/{name}".lstrip("/")))
            except InvalidValueError:
                continue  # our runs have no such names
        return paths
