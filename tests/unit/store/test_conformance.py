"""The local folder passes the conformance suite of stores."""

from pathlib import Path

from watchglass.store import LocalStore, Store
from watchglass.testing.store_suite import StoreSuite


class TestLocalStore(StoreSuite):
    def make_store(self, folder: Path) -> Store:
        return LocalStore(folder)
