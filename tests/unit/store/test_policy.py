"""What follows from whether a store appends."""

from pathlib import Path

import pytest

from watchglass.store import LocalStore, WrapperStore
from watchglass.store.policy import FOLDER, OBJECTS


class Objects(LocalStore):
    appends = False


def test_a_store_says_only_whether_it_appends(tmp_path: Path) -> None:
    assert LocalStore(tmp_path).policy is FOLDER
    assert Objects(tmp_path).policy is OBJECTS
    assert WrapperStore(Objects(tmp_path)).policy is OBJECTS


@pytest.mark.parametrize("workers", [1, 2, 1024, 5000])
def test_workers_of_a_folder_have_the_intervals_of_one(workers: int) -> None:
    assert FOLDER.intervals(workers) == FOLDER.intervals()


def test_workers_of_an_object_store_write_more_rarely_the_more_they_are() -> None:
    assert [OBJECTS.intervals(workers).flush_s for workers in (0, 1, 1024, 5000)] == [5.0, 5.0, 60.0, 60.0]
    many = OBJECTS.intervals(1024)
    assert (many.control_s, many.answer_s, many.poll_s) == (60.0, 10.0, OBJECTS.intervals().poll_s)
