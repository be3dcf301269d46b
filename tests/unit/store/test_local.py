"""What a local folder does beyond the contract."""

import errno
import os

import pytest

from watchglass.errors import DamagedDataError, InvalidValueError, MissingFileError, StoreError
from watchglass.store import LocalStore, open_store


def test_reading_creates_nothing(tmp_path):
    store = LocalStore(tmp_path / "new")
    store.list()
    with pytest.raises(MissingFileError, match="does not exist"):
        store.read("run.json")
    assert not (tmp_path / "new").exists()


def test_no_temporary_files_stay(tmp_path):
    store = LocalStore(tmp_path)
    store.write("a", b"1")
    store.write("a", b"2", replace=True)
    with pytest.raises(FileExistsError):
        store.write("a", b"3")
    assert os.listdir(tmp_path) == ["a"]


def test_links_are_not_followed(tmp_path):
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "link").symlink_to(tmp_path / "secret")
    store = LocalStore(tmp_path / "run")
    assert store.list() == []
    with pytest.raises(DamagedDataError, match="symbolic link"):
        store.read("link")
    with pytest.raises(StoreError, match="symbolic link"):
        store.append("link", b"x")
    assert (tmp_path / "secret").read_bytes() == b"secret"


@pytest.mark.parametrize("linked", ["attempts", "attempts/0000", "attempts/0000/tensors"])
def test_folders_that_are_links_are_not_followed(tmp_path, linked):
    path = "attempts/0000/tensors/a"
    outside = LocalStore(tmp_path / "outside")
    for name in (path, "0000/tensors/a", "tensors/a", "a"):
        outside.write(name, b"secret")
    kept = {entry.path: outside.read(entry.path) for entry in outside.list()}
    link = tmp_path / "run" / linked
    link.parent.mkdir(parents=True)
    link.symlink_to(outside.root, target_is_directory=True)
    store = LocalStore(tmp_path / "run")
    for use in (
        lambda: store.read(path), lambda: store.write(f"{path}b", b"x"), lambda: store.write(path, b"x", replace=True),
        lambda: store.append(path, b"x"), lambda: store.append(f"{path}b", b"x"), lambda: store.delete(path),
        lambda: store.list("attempts/0000/tensors"), lambda: store.list(linked),
    ):  # fmt: skip
        found = pytest.raises((StoreError, DamagedDataError), match="symbolic link, which a run never holds; remove")
        with found as caught:
            use()
        assert str(link) in str(caught.value)
    assert store.list() == []
    assert {entry.path: outside.read(entry.path) for entry in outside.list()} == kept


def test_a_run_may_itself_lie_behind_a_link(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "runs").symlink_to(tmp_path / "disk", target_is_directory=True)
    for root in (tmp_path / "runs", tmp_path / "runs" / "one"):
        LocalStore(root).write("a/b", b"1")
        assert LocalStore(root).read("a/b") == b"1"


def test_hidden_files_and_odd_names_are_not_listed(tmp_path):
    for name in (".wg-1", ".DS_Store", "a b", "a\nb"):
        (tmp_path / name).write_bytes(b"")
    store = LocalStore(tmp_path)
    assert [entry.path for entry in store.list()] == ["a b"]


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_hard_links_still_decides_races(tmp_path, number):
    def no_links(temporary, target):
        raise OSError(number, os.strerror(number))

    store = LocalStore(tmp_path, no_links)
    store.write("a", b"1")
    with pytest.raises(FileExistsError):
        store.write("a", b"2")
    assert store.read("a") == b"1"


def test_a_file_in_the_way_is_one_line_with_a_cure(tmp_path):
    (tmp_path / "run").write_bytes(b"")
    with pytest.raises(StoreError, match="choose another folder") as caught:
        LocalStore(tmp_path / "run").write("run.json", b"x")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("location", ["", "ftp://b/r", "file://elsewhere/r", "file://relative", "a\0b"])
def test_locations_that_are_none_are_refused(location):
    with pytest.raises(InvalidValueError, match=r"must be a path|must look like file:///") as caught:
        open_store(location)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("location", ["s3:/bucket/run", "GS:/bucket", "az:/c/r", "file:/tmp/run"])
def test_an_address_with_one_slash_is_no_folder(location):
    with pytest.raises(InvalidValueError, match=f"did you mean {location[:2].lower()}"):
        open_store(location)


def test_a_folder_may_be_written_as_an_address(tmp_path):
    open_store(f"file://{tmp_path}/a%20run").write("x", b"1")
    assert (tmp_path / "a run" / "x").read_bytes() == b"1"


def test_a_fifo_is_no_object(tmp_path):
    """With somebody at its other end opening it would succeed, and without it would wait."""
    os.mkfifo(tmp_path / "a")
    store = LocalStore(tmp_path)
    for held in (None, os.open(tmp_path / "a", os.O_RDWR)):
        with pytest.raises(DamagedDataError, match="FIFO"):
            store.read("a")
        with pytest.raises(DamagedDataError, match="FIFO"):
            store.map("a")
        with pytest.raises(StoreError, match="FIFO"):
            store.append("a", b"x")
        assert store.size("a") is None
        assert store.list() == []
        os.close(held) if held is not None else None
