"""Path names are made and taken apart the same way."""

import pytest

from watchglass.errors import InvalidValueError
from watchglass.store import layout


def test_segments_parse_back():
    path = layout.segment(3, 29_920_632, "worker_12", 7)
    assert path == "attempts/0003/segments/000029920632/worker_12-00000007"
    assert layout.parse_segment(path) == (3, 29_920_632, "worker_12", 7)


def test_the_other_names_are_as_documented():
    assert layout.worker_claim(0, "worker_1") == "attempts/0000/workers/worker_1.json"
    assert layout.tensors(0, "worker_1", 2) == "attempts/0000/tensors/worker_1-00000002.safetensors"
    assert layout.parse_numbered(layout.JOURNAL, layout.numbered(layout.JOURNAL, 4)) == 4
    assert layout.control_request("stop", 1) == "control/stop/0001/0000/request"
    assert layout.control_seen("stop", 1, 0, "worker_0") == "control/stop/0001/0000/seen/worker_0"
    assert layout.control_commit("stop", 1) == "control/stop/0001/0000/commit"
    assert layout.parse_claim("attempts/0000/workers/worker_1.json.2") == (0, "worker_1", 2)


@pytest.mark.parametrize("path", ["journal/lease", "attempts/0000/segments/1/worker_0-1", "x", "run.json"])
def test_other_paths_parse_as_nothing(path):
    assert layout.parse_segment(path) is None
    assert layout.parse_numbered(layout.JOURNAL, path) is None


@pytest.mark.parametrize("worker", ["", "../x", "a/b", "Worker", "a-1", "w" * 64, "worker_0\n"])
def test_a_worker_that_cannot_be_a_name_is_refused(worker):
    with pytest.raises(InvalidValueError, match="worker_0"):
        layout.segment(0, 0, worker, 0)


def test_workers_sort_by_rank():
    assert sorted(["worker_10", "worker_9", "main"], key=layout.worker_order) == ["main", "worker_9", "worker_10"]
