"""Which generation of compacted data counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from watchglass.errors import DamagedDataError
from watchglass.store import Covered, LocalStore, layout, newest_generation

COVERS = {
    "attempt": 0, "worker": "worker_0", "segments": 3,
    "frames": "compacted/00000002/0000/worker_0.frames", "bytes": 10,
}  # fmt: skip


def write(store: LocalStore, number: int = 2, **changes: Any) -> None:
    value = {"generation": number, "created_ns": 1, "covers": [COVERS]} | changes
    store.write(layout.generation_manifest(number), json.dumps(value).encode(), replace=True)


def test_none_before_anything_was_compacted(tmp_path: Path) -> None:
    assert newest_generation(LocalStore(tmp_path)) is None


def test_the_newest_with_a_manifest_counts(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    write(store, 1, covers=[])
    write(store, 2, later=True)
    store.write(layout.compacted_frames(3, 0, "worker_0"), b"half")
    for other in ("compacted/pins/x.json", "compacted/00000000/manifest.json", "compacted/9/manifest.json"):
        store.write(other, b"{}")
    found = newest_generation(store)
    assert found is not None
    assert found.number == 2
    assert found.covered(0, "worker_0") == Covered(0, "worker_0", 3, str(COVERS["frames"]), 10)
    assert found.covered(1, "worker_0") is None
    write(store, 2, **found.to_json())
    assert newest_generation(store) == found


@pytest.mark.parametrize(
    "changes",
    [
        {"generation": 3},
        {"created_ns": "now"},
        {"covers": None},
        {"covers": [1]},
        {"covers": [COVERS, COVERS]},
        {"covers": [{**COVERS, "segments": -1}]},
        {"covers": [{**COVERS, "bytes": 1.5}]},
        {"covers": [{**COVERS, "attempt": True}]},
        {"covers": [{**COVERS, "frames": "../../etc/passwd"}]},
        {"covers": [{**COVERS, "frames": "compacted/00000001/0000/worker_0.frames"}]},
        {"covers": [{**COVERS, "worker": "../worker_0"}]},
    ],
)
def test_a_manifest_that_makes_no_sense_is_damage(tmp_path: Path, changes: dict[str, Any]) -> None:
    """It cannot be passed over: the segments that it stands for may be gone."""
    store = LocalStore(tmp_path)
    write(store, **changes)
    with pytest.raises(DamagedDataError, match=r"compacted/00000002/manifest\.json"):
        newest_generation(store)


def test_a_manifest_that_is_no_json(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.write(layout.generation_manifest(2), b"[" * 100_000)
    with pytest.raises(DamagedDataError):
        newest_generation(store)
