"""Every kind of store passes the conformance suite of stores."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from obstore.store import MemoryStore

from watchglass.store import LocalStore, Store, open_store
from watchglass.store.media.objects import ObjectStore
from watchglass.testing.store_suite import StoreSuite


class TestLocalStore(StoreSuite):
    def make_store(self, folder: Path) -> Store:
        return LocalStore(folder)


class TestObjectStoreInMemory(StoreSuite):
    def make_store(self, folder: Path) -> Store:
        memory = MemoryStore()
        return ObjectStore("memory://bucket/runs/demo", "runs/demo", lambda request_s, tries: memory)


class TestWholeBucketInMemory(StoreSuite):
    def make_store(self, folder: Path) -> Store:
        memory = MemoryStore()
        return ObjectStore("memory://bucket", "", lambda request_s, tries: memory)


class TestObjectStoreOnAServer(StoreSuite):
    @pytest.fixture(autouse=True)
    def _below(self, s3_location: str) -> None:
        self.location = s3_location

    def make_store(self, folder: Path) -> Store:
        return open_store(f"{self.location}/{uuid.uuid4().hex[:8]}")
