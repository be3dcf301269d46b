"""A store on a real server passes the conformance suite of stores."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from watchglass.store import Store, open_store
from watchglass.testing.store_suite import StoreSuite


class TestObjectStoreOnAServer(StoreSuite):
    @pytest.fixture(autouse=True)
    def _below(self, s3_location: str) -> None:
        self.location = s3_location

    def make_store(self, folder: Path) -> Store:
        return open_store(f"{self.location}/{uuid.uuid4().hex[:8]}")
