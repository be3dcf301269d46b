"""Every kind of store passes the conformance suite of stores."""

from __future__ import annotations

from pathlib import Path

from stores.buckets import in_memory
from watchglass.store import LocalStore, Store
from watchglass.testing.store_suite import StoreSuite


class TestLocalStore(StoreSuite):
    def make_store(self, folder: Path) -> Store:
        return LocalStore(folder)


class TestObjectStoreInMemory(StoreSuite):
    def make_store(self, folder: Path) -> Store:
        return in_memory("runs/demo")


class TestWholeBucketInMemory(StoreSuite):
    def make_store(self, folder: Path) -> Store:
        return in_memory()
