"""Which runs lie below a location: looked for once, or again and again at little cost."""

from __future__ import annotations

from watchglass.errors import DamagedDataError, InvalidValueError, StoreError
from watchglass.store import Store, check_path, layout

#: How far below the folder runs are looked for, and how many folders are looked at before that is refused.
DEPTH, MOST_FOLDERS = 4, 10_000


class RunSearch:
    """Finds the runs of a folder or prefix, again and again. For one thread.

    A folder that is known to be a run costs nothing any more; what lies below a run is never looked at. Any other
    folder costs two requests at each look: one for its ``run.json`` and one for the folders in it.

    Attributes:
        asked: Requests that the last look made.
        unreadable: Folders that could not be looked at the last time, with the reason; only in a local folder, where
            one may be closed to us and the others not.
    """

    def __init__(self, store: Store) -> None:
        self.requests = 0
        self.unreadable: dict[str, str] = {}
        self._store = store
        self._known: set[str] = set()

    def look(self) -> list[str]:
        """Runs that no earlier look has found, as paths in the store, sorted; "" where the location itself is a run.

        Raises:
            StoreError: The store refused; what was found before is found again by the next look.
            InvalidValueError: There are more than 10,000 folders that are not known to be runs.
        """
        found, waiting = [], [("", 0)]
        self.requests, looked = 0, 0
        self.unreadable = {}
        while waiting:
            folder, depth = waiting.pop()
            looked += 1
            if looked > MOST_FOLDERS:
                raise InvalidValueError(
                    f"{self._store.location} holds more than {MOST_FOLDERS:,} folders; give one that is closer to "
                    "the runs"
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
                continue  # no run of ours has such a name
        return paths
