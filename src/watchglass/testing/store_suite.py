"""Tests that every store must pass, built in or custom: derive a class.

Example::

    class TestMyStore(StoreSuite):
        def make_store(self, folder):
            return MyStore(folder)

Run it with pytest, which gives each test an empty folder as ``tmp_path``.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from watchglass.errors import InvalidValueError, MissingFileError, RunExistsError, StoreError
from watchglass.store import Store


class StoreSuite(ABC):
    """Conformance of a :class:`~watchglass.store.Store`."""

    @abstractmethod
    def make_store(self, folder: Path) -> Store:
        """A new, empty store; ``folder`` is empty and may be used for it."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        """The store of a test."""
        return self.make_store(tmp_path)

    def test_what_was_written_is_read(self, store: Store) -> None:
        """Whole objects and byte ranges come back; ranges are cut at the end."""
        store.write("a/b", b"0123456789")
        assert store.read("a/b") == b"0123456789"
        assert store.read("a/b", 3, 5) == b"34"
        assert store.read("a/b", 8, 100) == b"89"
        assert store.read("a/b", 100) == b""
        assert store.read("a/b", 4, 4) == b""
        assert store.read("a/b", 4) == b"456789"
        assert store.read("a/b", 0, 1 << 62) == b"0123456789"
        _raises(InvalidValueError, lambda: store.read("a/b", -1))
        _raises(InvalidValueError, lambda: store.read("a/b", 5, 4))

    def test_parts_are_written_one_after_another(self, store: Store) -> None:
        """An object may be given in any number of parts, empty ones and views of others' memory among them."""
        memory = bytearray(b"memory")
        store.write("a", [b"one", memoryview(memory), b"", b"two"])
        memory[:] = b"change"
        assert store.read("a") == b"onememorytwo"
        store.write("a", [b"%d," % number for number in range(3000)], replace=True)
        assert store.read("a") == b"".join(b"%d," % number for number in range(3000))
        store.write("none", [])
        assert store.read("none") == b""

    def test_a_missing_object_says_so(self, store: Store) -> None:
        """Reading it raises; deleting it does not; listing finds nothing."""
        _raises(MissingFileError, lambda: store.read("nothing/here"))
        _raises(MissingFileError, lambda: store.read("nothing/here", 2, 2))
        _raises(MissingFileError, lambda: store.read("nothing/here", 2, 5))
        store.delete("nothing/here")
        assert store.list("nothing") == []
        assert store.is_empty()

    def test_nothing_is_overwritten_unless_asked(self, store: Store) -> None:
        """A second write raises and changes nothing; with ``replace`` it takes the place of the first."""
        store.write("x", b"first")
        _raises(RunExistsError, lambda: store.write("x", b"second"))
        assert store.read("x") == b"first"
        store.write("x", b"third", replace=True)
        assert store.read("x") == b"third"
        assert not store.is_empty()

    def test_one_of_many_writers_wins(self, store: Store) -> None:
        """Of concurrent writes of one path exactly one succeeds, and its bytes stay."""
        won: list[int] = []

        def write(number: int) -> None:
            try:
                store.write("claim", b"%d" % number)
            except RunExistsError:
                return
            won.append(number)

        threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1
        assert store.read("claim") == b"%d" % won[0]

    def test_listing_is_sorted_recursive_and_starts_after(self, store: Store) -> None:
        """All objects below a folder, by path, after ``after``; names that only share a prefix are not below."""
        paths = ["a/1", "a/10/x", "a/2", "a/2-x/y", "a/2/z", "ab/1", "b"]
        for path in [p for p in paths if p != "a/2"]:
            store.write(path, path.encode())
        expected = sorted(p for p in paths if p.startswith("a/") and p != "a/2")
        assert [entry.path for entry in store.list("a")] == expected
        assert [entry.path for entry in store.list("a", after="a/2")] == [p for p in expected if p > "a/2"]
        assert [entry.path for entry in store.list("a", after="a/2/z")] == [p for p in expected if p > "a/2/z"]
        assert [entry.path for entry in store.list()] == sorted(p for p in paths if p != "a/2")
        assert [entry.size for entry in store.list("ab")] == [4]

    def test_a_listing_of_any_length_is_whole(self, store: Store) -> None:
        """More objects than a server lists at once, 1,000 everywhere, and the last of them."""
        paths = [f"many/{number // 700}/{number:05}" for number in range(2100)]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda path: store.write(path, path.encode()), paths))
        assert [entry.path for entry in store.list("many")] == paths
        assert [entry.path for entry in store.list("many", after=paths[900])] == paths[901:]
        assert [entry.path for entry in store.list("many/2", after="many/2/02097")] == paths[-2:]
        assert list(store.folders("many")) == ["0", "1", "2"]
        assert store.list("many", after=paths[-1]) == []

    def test_start_may_be_anything(self, store: Store) -> None:
        """The start of a listing need not exist, nor lie below the folder, nor be a path."""
        paths = ["a/0001/x", "a/0002/x", "a/0002/y"]
        for path in paths:
            store.write(path, b"1")
        starts = ["", "a", "a/", "a/0001", "a/0001/", "a/0002/x", "a/0002/x/", "a//", "a/..", "b", "a/0001/é", "A", "~"]
        for start in starts:
            assert [entry.path for entry in store.list("a", after=start)] == [path for path in paths if path > start]

    def test_any_plain_name_comes_back(self, store: Store) -> None:
        """Unchanged, in the order of its characters, even if they have a meaning in an address."""
        names = ["a b", "a+b", "a%41b", "a%2Fb", "a~b", "a#b", "a?b=c&d", "[a]{b}", "é", "名前", "a.b", "A"]
        for name in names:
            store.write(f"names/{name}", name.encode())
        assert [entry.path for entry in store.list("names")] == sorted(f"names/{name}" for name in names)
        assert [store.read(f"names/{name}").decode() for name in names] == names
        assert [store.size(f"names/{name}") for name in names] == [len(name.encode()) for name in names]
        for name in names:
            store.delete(f"names/{name}")
        assert store.list() == []

    def test_a_large_object_comes_back(self, store: Store) -> None:
        """Tens of megabytes, given in parts, whole and in ranges, written once and replaced."""
        part = bytes(range(256)) * 4096
        store.write("large", [part] * 20 + [b"tail"])
        expected = part * 20 + b"tail"
        assert store.size("large") == len(expected)
        assert store.read("large") == expected
        assert bytes(store.map("large")) == expected
        assert store.read("large", 7, 17 << 20) == expected[7 : 17 << 20]
        assert store.read("large", 19 << 20) == expected[19 << 20 :]
        _raises(RunExistsError, lambda: store.write("large", [part] * 20))
        store.write("large", [memoryview(expected), b"!"], replace=True)
        assert store.read("large") == expected + b"!"

    def test_readers_of_a_replaced_object_see_all_of_one(self, store: Store) -> None:
        """Never a part of the old and a part of the new, for any sizes."""
        contents = [bytes([number]) * (100_000 * (1 + number % 3)) for number in range(12)]
        store.write("x", contents[0])

        def replace() -> None:
            for content in contents:
                store.write("x", content, replace=True)

        writer = threading.Thread(target=replace)
        writer.start()
        seen = set()
        while writer.is_alive():
            seen.add(store.read("x"))
        writer.join()
        assert seen <= set(contents)
        assert store.read("x") == contents[-1]

    def test_appending_grows_an_object(self, store: Store) -> None:
        """Where it is supported, what is appended is seen at once and creates the object."""
        if not store.appends:
            _raises(StoreError, lambda: store.append("log/1", b"one"))
            return
        store.append("log/1", b"one")
        store.append("log/1", b"two")
        assert store.read("log/1") == b"onetwo"
        assert [entry.size for entry in store.list("log")] == [6]

    def test_deleting_removes(self, store: Store) -> None:
        """A deleted object no longer exists and may be written again."""
        store.write("x/y", b"1")
        store.delete("x/y")
        _raises(MissingFileError, lambda: store.read("x/y"))
        store.write("x/y", b"2")
        assert store.read("x/y") == b"2"

    def test_the_size_of_an_object_tells_whether_it_is_there(self, store: Store) -> None:
        """Its length in bytes; None if nothing is there, for a folder, and below an object."""
        store.write("a/b", b"12345")
        store.write("none", b"")
        assert store.size("a/b") == 5
        assert store.size("none") == 0
        assert store.size("a") is None
        assert store.size("a/b/c") is None
        assert store.size("nothing") is None

    def test_folders_right_below(self, store: Store) -> None:
        """Their names, sorted, without objects and without what is further down."""
        for path in ("runs/b/run.json", "runs/a/x/y", "runs/c", "other/z"):
            store.write(path, b"1")
        assert list(store.folders("runs")) == ["a", "b"]
        assert list(store.folders()) == ["other", "runs"]
        assert list(store.folders("runs/c")) == []
        assert list(store.folders("nothing")) == []

    def test_a_whole_object_as_memory(self, store: Store) -> None:
        """It may be changed, and the object stays."""
        store.write("a", b"0123456789")
        store.write("none", b"")
        memory = memoryview(store.map("a"))
        memory[0:1] = b"x"
        assert bytes(memory) == b"x123456789"
        assert store.read("a") == b"0123456789"
        assert bytes(store.map("none")) == b""
        _raises(MissingFileError, lambda: store.map("nothing"))

    def test_several_are_read_at_once(self, store: Store) -> None:
        """In the requested order; None for what does not exist."""
        for number in range(20):
            store.write(f"a/{number}", b"%04d" % number)
        wanted = [(f"a/{number}", 1, None if number % 2 else 3) for number in reversed(range(20))]
        expected = [(b"%04d" % n)[1 : None if n % 2 else 3] for n in reversed(range(20))]
        assert list(store.read_many([*wanted, ("a/nothing", 0, None)])) == [*expected, None]
        assert list(store.read_many([])) == []

    def test_pruning_keeps_what_holds_something(self, store: Store) -> None:
        """Objects are kept, also in folders below; a folder whose objects were all deleted is no longer listed."""
        store.write("a/b/c", b"1")
        store.write("a/d/e", b"1")
        store.delete("a/b/c")
        store.prune("a")
        store.prune("nothing")
        assert list(store.folders("a")) == ["d"]
        assert [entry.path for entry in store.list()] == ["a/d/e"]

    def test_no_path_leaves_the_store(self, tmp_path: Path) -> None:
        """Paths that would leave it, or cannot be names everywhere, are refused by every method."""
        store = self.make_store(tmp_path / "inside")
        outside = ["../out", "/etc/passwd", "a/../../out", "a//b", ".hidden", "a/..", "", "x" * 600]
        for path in [*outside, "a\0b", "a\nb", "C:x", "a\\b"]:
            _raises(InvalidValueError, partial(store.read, path))
            _raises(InvalidValueError, partial(store.delete, path))
            _raises(InvalidValueError, partial(store.size, path))
            _raises(InvalidValueError, partial(store.map, path))
            _raises(InvalidValueError, partial(store.write, path, b"x"))
            _raises(InvalidValueError, partial(store.read_many, [("fine", 0, None), (path, 0, None)]))
            _raises(InvalidValueError, partial(store.append, path, b"x"))
            if path:
                _raises(InvalidValueError, partial(store.list, path))
                _raises(InvalidValueError, partial(store.folders, path))
        assert not (tmp_path / "out").exists()


def _raises(kind: type[Exception], call: Callable[[], object]) -> None:
    try:
        call()
    except kind:
        return
    raise AssertionError(f"{kind.__name__} was not raised")
