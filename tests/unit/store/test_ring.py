"""Entries of a ring are read whole or not at all, by any reader and whenever the writer died."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from stores.faulty_stores import spools
from watchglass.store import ABSENT, ABSENT_BITS, LocalStore, Rings, RowWriter, read_rings, rings_exist
from watchglass.store.locked_files import HEADER_BYTES
from watchglass.store.rings import ring
from watchglass.store.rings.ring import ENTRY_BYTES, ROWS, EntryRing, RowRing

__all__ = ["spools"]


LABEL = {"run": "r", "attempt": 0, "worker": "worker_0"}


@pytest.fixture
def store(tmp_path: Path, spools: Path) -> LocalStore:
    """A run with an attempt; the temporary folder lies below the test's."""
    (tmp_path / "run" / "attempts" / "0000").mkdir(parents=True)
    (tmp_path / "memory").mkdir()
    return LocalStore(tmp_path / "run")


def rings_of(store: LocalStore) -> Rings:
    """Rings whose memory lies beside the run."""
    return Rings(store, LABEL, store.root.parent / "memory")


def rows_of(store: LocalStore, count: int) -> tuple[str, ...]:
    rings = rings_of(store)
    writer = RowWriter()
    writer.name_ids(3, 4)
    writer.open(rings.rows)
    for step in range(count):
        writer.write(2 * step, step, 10 * step, 10 * step + 5, 0.5 * step, 0.1, 32.0)
    rings.close(discard=False)
    return rings.names


def file_of(store: LocalStore, names: tuple[str, ...], kind: str) -> Path:
    (name,) = (name for name in names if name.endswith(kind))
    return store.root / name


@pytest.mark.parametrize("count", [0, 1, 100, ROWS, ROWS + 1, 5 * ROWS + 7])
def test_the_last_rows_are_read_in_order(store: LocalStore, count: int) -> None:
    names = rows_of(store, count)
    left = read_rings(store, names, LABEL)
    expected = np.arange(max(0, count - ROWS), count)
    assert left.rows["mode_step"].tolist() == expected.tolist()
    assert left.rows["global_step"].tolist() == (2 * expected).tolist()
    assert left.rows["loss"].tolist() == (0.5 * expected).tolist()
    assert left.rows["end_ns"].tolist() == (10 * expected + 5).tolist()
    assert left.ids == (3, 4)
    assert len(left.paths) == 2
    left.discard()
    assert not rings_exist(store, names)


def test_a_row_over_which_the_writer_died_is_left_out(store: LocalStore) -> None:
    names = rows_of(store, 10)
    path = file_of(store, names, "rows")
    size = ring.ROW_DTYPE.itemsize
    whole = path.read_bytes()
    begin = HEADER_BYTES + 5 * size  # the slot of row 5, which holds step 4
    for cut in range(0, size, 5):
        # As struct packs: all zeros first, then field after field.
        path.write_bytes(whole[: begin + cut] + bytes(size - cut) + whole[begin + size :])
        steps = read_rings(store, names, LABEL).rows["mode_step"].tolist()
        assert steps == [step for step in range(10) if step != 4] or (
            whole[begin + cut : begin + size].strip(b"\0") == b""
        )


def test_a_number_that_is_not_known_is_distinguished_from_nan(store: LocalStore) -> None:
    rings = rings_of(store)
    writer = RowWriter()
    writer.open(rings.rows)
    writer.write(0, 0, 0, 0, ABSENT, float("nan"), 0.0)
    rings.close(discard=False)
    rows = read_rings(store, rings.names, LABEL).rows
    assert rows["loss"].copy().view("u8").tolist() == [ABSENT_BITS]
    assert rows["learning_rate"].copy().view("u8").tolist() != [ABSENT_BITS]


def test_rows_before_the_last_one_and_after_the_ring_go_nowhere(store: LocalStore) -> None:
    writer = RowWriter()
    for step in range(5000):
        writer.write(step, step, 0, 0, 0.0, 0.0, 0.0)
    rings = rings_of(store)
    writer.open(rings.rows)
    writer.write(7, 7, 0, 0, 0.0, 0.0, 0.0)
    writer.close()
    for step in range(5000):
        writer.write(step, step, 0, 0, 0.0, 0.0, 0.0)
    rings.close(discard=False)
    assert read_rings(store, rings.names, LABEL).rows["global_step"].tolist() == [4999, 7]


def test_entries_are_read_in_order_and_the_oldest_are_overwritten(store: LocalStore) -> None:
    path = store.root / "attempts/0000/.worker_0-1.entries"
    entries = EntryRing(path, LABEL, capacity=1000)
    contents = [bytes([n]) * (7 * n % 150) for n in range(1, 60)]
    for content in contents:
        assert entries.append(content)
        entries_now = read_rings(store, ["attempts/0000/.worker_0-1.entries"], LABEL).entries
        assert list(entries_now) == contents[: contents.index(content) + 1][-len(entries_now) :]
        assert sum(map(len, entries_now)) > 300 or content in contents[:8]
    assert not entries.append(bytes(1000))
    entries.close(discard=True)
    assert not path.exists()


def test_an_entry_that_is_torn_anywhere_takes_no_other_with_it(store: LocalStore) -> None:
    name = "attempts/0000/.worker_0-1.entries"
    path = store.root / name
    entries = EntryRing(path, LABEL, capacity=400)
    for content in (b"first", b"second" * 5, b"third"):
        entries.append(content)
    entries.close(discard=False)
    whole = path.read_bytes()
    begin = whole.index(b"second") - 24
    for cut in range(begin, begin + 24 + 30):
        path.write_bytes(whole[:cut] + bytes(begin + 54 - cut) + whole[begin + 54 :])
        assert read_rings(store, [name], LABEL).entries == (b"first", b"third")
        path.write_bytes(whole[:cut] + bytes([whole[cut] ^ 1]) + whole[cut + 1 :])
        assert read_rings(store, [name], LABEL).entries == (b"first", b"third")


def test_entries_go_to_the_temporary_folder_where_the_run_has_no_room(store: LocalStore, tmp_path: Path) -> None:
    (store.root / "attempts" / "0000").rmdir()
    rings = rings_of(store)
    assert rings.refused == ()
    assert all(Path(name).is_relative_to(tmp_path) for name in rings.names)
    assert (tmp_path / "temporary" / f"watchglass-{os.getuid()}").stat().st_mode & 0o777 == 0o700
    rings.close(discard=False)
    assert len(read_rings(store, rings.names, LABEL).paths) == 2


def test_the_room_is_reserved(store: LocalStore) -> None:
    rings = rings_of(store)
    for name in rings.names:
        found = (store.root / name).stat()
        assert found.st_blocks * 512 >= found.st_size > ENTRY_BYTES * name.endswith("entries")
    rings.close(discard=True)
    assert not rings_exist(store, rings.names)


def test_a_system_that_cannot_reserve_still_has_entries(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(*args: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "not supported")

    monkeypatch.setattr(os, "posix_fallocate", unsupported)
    rings = rings_of(store)
    assert rings.rows is None
    assert rings.entries is not None
    rings.close(discard=True)


@pytest.mark.parametrize(
    "name", ["/etc/passwd", "attempts/0000/../../x.rows", "x.rows", "/tmp/x.rows", "../x.entries", ""]
)
def test_a_claim_can_name_nothing_but_rings(store: LocalStore, name: str) -> None:
    assert not rings_exist(store, [name])
    assert read_rings(store, [name], LABEL).paths == ()


@pytest.mark.parametrize("linked", ["attempts", "attempts/0000"])
def test_rings_that_a_link_leads_to_are_left_alone(store: LocalStore, tmp_path: Path, linked: str) -> None:
    """A foreign run may link to another, whose rings are not its own to read and remove."""
    ring_of_another = EntryRing(store.root / "attempts/0000/.worker_0-1.entries", LABEL)
    ring_of_another.close(discard=False)
    foreign = LocalStore(tmp_path / "foreign")
    (foreign.root / linked).parent.mkdir(parents=True)
    (foreign.root / linked).symlink_to(store.root / linked)
    name = "attempts/0000/.worker_0-1.entries"
    assert rings_exist(store, [name])
    assert not rings_exist(foreign, [name])
    assert read_rings(foreign, [name], LABEL).paths == ()


def test_a_file_that_is_no_ring_of_this_worker_is_left_alone(store: LocalStore, tmp_path: Path) -> None:
    folder = store.root / "attempts" / "0000"
    (folder / ".precious.rows").write_bytes(b"precious")
    (folder / ".link.rows").symlink_to(file_of(store, rows_of(store, 3), "rows"))
    other = RowRing(folder / ".other.rows", {**LABEL, "run": "another"})
    other.close(discard=False)
    names = [f"attempts/0000/{name}.rows" for name in (".precious", ".link", ".other")]
    left = read_rings(store, names, LABEL)
    assert left.paths == ()
    assert len(left.rows) == 0
