"""Raw tensors that are too old or too many go, the oldest first, and readers can tell."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from stores.compacted_runs import small_run
from watchglass.records import RAW
from watchglass.store import (
    LocalStore,
    RawRetention,
    RawTensor,
    SegmentWriter,
    compact,
    encode_rows,
    layout,
    load_tensor,
    remove_raw,
    table_of,
    was_removed,
    write_tensors,
)

DAY_NS = 86_400_000_000_000


def write(store: LocalStore, seq: int, elements: int = 100) -> str:
    array = np.zeros(elements, np.uint8)
    rows = write_tensors(store, 0, "worker_0", seq, [(seq, RawTensor(1, array))])
    return str(rows[0]["file"])


def files(store: LocalStore) -> list[str]:
    return [entry.path for entry in store.list("attempts/0000/tensors")]


def test_the_oldest_files_go_as_new_ones_come(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    paths = [write(store, 0)]
    size = store.size(paths[0]) or 0
    retention = RawRetention(store, 0, "worker_0", 3 * size)
    removed = [retention.added(paths[0])]
    for seq in range(1, 5):
        paths.append(write(store, seq))
        removed.append(retention.added(paths[-1], size))
    assert removed == [0, 0, 0, 1, 1]
    assert files(store) == paths[2:]
    assert [was_removed(store, path) for path in paths] == [True, True, False, False, False]


def test_files_of_an_earlier_process_of_the_worker_count_too(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    paths = [write(store, seq) for seq in range(3)]
    assert RawRetention(store, 0, "worker_0", 1).added(paths[-1]) == 2
    assert files(store) == paths[2:]


def test_one_file_that_is_too_large_alone_is_kept(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    retention = RawRetention(store, 0, "worker_0", 10)
    first, second = write(store, 0), write(store, 1)
    store.delete(second)
    assert retention.added(first) == 0
    second = write(store, 1)
    assert retention.added(second) == 1
    assert files(store) == [second]


def test_a_file_that_was_never_there_was_not_removed(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    assert not was_removed(store, layout.tensors(0, "worker_0", 3))
    assert not was_removed(store, "attempts/../x")
    for content in (b"", b"[]", b'{"removed_below": "x"}', b"{" * 5000):
        store.write(layout.retention(0, "worker_0"), content, replace=True)
        assert not was_removed(store, layout.tensors(0, "worker_0", 3))


def test_beyond_a_number_of_bytes(tmp_path: Path) -> None:
    store = small_run(tmp_path / "run", workers=1)
    before = files(store)
    sizes = [entry.size for entry in store.list("attempts/0000/tensors")]
    assert remove_raw(store, keep_bytes=0) == (0, 0)  # not compacted: somebody may be writing it
    compact(store)
    assert remove_raw(store, keep_bytes=sum(sizes)) == (0, 0)
    assert remove_raw(store, keep_bytes=sum(sizes[1:])) == (1, sizes[0])
    assert files(store) == before[1:]
    assert remove_raw(store, keep_bytes=0) == (len(before) - 1, sum(sizes[1:]))
    assert files(store) == []
    assert all(was_removed(store, path) for path in before)


def test_by_age(tmp_path: Path) -> None:
    class Then:
        def __init__(self, days_ago: float) -> None:
            self._ns = time.time_ns() - int(days_ago * DAY_NS)

        def time_ns(self) -> int:
            return self._ns

        def monotonic_ns(self) -> int:
            return self._ns

    store = small_run(tmp_path / "run", workers=1, steps=1)
    paths = files(store)
    for seq, days in ((1, 5.0), (2, 3.0), (3, 1.0)):
        paths.append(write(store, seq))
        rows = table_of(RAW, [(seq, 1, paths[-1], f"{seq}/1")])
        SegmentWriter(store, 0, "worker_0", clock=Then(days)).write([encode_rows(RAW, rows)])
    compact(store)
    now = time.time_ns()
    assert remove_raw(store, before_ns=now - 30 * DAY_NS)[0] == 0
    # A clock that was set back makes no file older than the one before it, which is of today.
    assert remove_raw(store, before_ns=now - 2 * DAY_NS)[0] == 0
    store.delete(paths[0])
    assert remove_raw(store, before_ns=now - 2 * DAY_NS)[0] == 2
    assert files(store) == paths[3:]
    assert load_tensor(store, paths[3], "3/1").elements.shape == (100,)


def test_of_several_workers_the_oldest_files_go_first(tmp_path: Path) -> None:
    """Not all of the first worker's before the first of the second's."""
    store = small_run(tmp_path / "run", workers=2, steps=1)
    paths = {name: list[str]() for name in ("worker_0", "worker_1")}
    for path in files(store):
        store.delete(path)
    now = time.time_ns()
    for seq in (1, 2):
        for worker, found in paths.items():
            array = np.zeros(100, np.uint8)
            rows = write_tensors(store, 0, worker, seq, [(seq, RawTensor(1, array))])
            places = [[row[each.name] for each in RAW.fields] for row in rows]
            found.append(str(rows[0]["file"]))
            at_ns = now + seq * DAY_NS
            SegmentWriter(store, 0, worker, clock=At(at_ns)).write([encode_rows(RAW, table_of(RAW, places))])
    compact(store)
    left = store.size(paths["worker_0"][0]) or 0
    assert remove_raw(store, keep_bytes=2 * left)[0] == 2
    assert files(store) == [paths["worker_0"][1], paths["worker_1"][1]]


class At:
    def __init__(self, ns: int) -> None:
        self._ns = ns

    def time_ns(self) -> int:
        return self._ns

    monotonic_ns = time_ns
