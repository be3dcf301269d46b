"""Changes that all workers of a training run act on at one step: messages, and from one half to the other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from watchglass.control import (
    Acknowledgement,
    Agreement,
    Change,
    Commit,
    Listener,
    ProfileWindow,
    Stop,
    StoreMailbox,
    WorkerProgress,
    commit_window,
    decode_acknowledgement,
    decode_commit,
    encode,
)
from watchglass.errors import DamagedDataError, InvalidValueError
from watchglass.store import LocalStore

CHANGES: list[Change] = [
    Stop("the loss became NaN", "0123456789ab"),
    ProfileWindow(8, "steps became longer"),
    ProfileWindow(0, settings={"enabled": False, "sample_interval_s": 2.0, "module_times": True}),
]
KINDS = (Stop, ProfileWindow)


def worker(rank: int, train_step: int = 7) -> WorkerProgress:
    return WorkerProgress(f"worker_{rank}", True, train_step, 0.05, None)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.kind)
def test_a_commit_is_read_as_it_was_written(change: Change) -> None:
    data = encode(Commit(12, change), 5)
    assert decode_commit(type(change), data) == Commit(12, change)
    assert json.loads(data)["wall_ns"] == 5


def test_keys_of_later_releases_are_left_out() -> None:
    assert decode_commit(Stop, b'{"at_step": 3, "reason": "r", "colour": "red"}') == Commit(3, Stop("r"))
    assert decode_acknowledgement(b'{"train_step": -1, "colour": "red"}') == Acknowledgement(-1)


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        (Stop, b""), (Stop, b"["), (Stop, b"[" * 100_000), (Stop, b"[]"), (Stop, b"{}"), (Stop, b'{"at_step": -1}'),
        (Stop, b'{"at_step": 1e3}'), (Stop, b'{"at_step": true}'), (Stop, b'{"at_step": Infinity}'),
        (ProfileWindow, b'{"at_step": 3, "settings": [1]}'), (ProfileWindow, b'{"at_step": 3, "settings": 1}'),
        (ProfileWindow, b'{"at_step": 3, "settings": {"profile_steps": "1:2"}}'),
        (ProfileWindow, b'{"at_step": 3, "settings": {"sample_interval_s": 0}}'),
        (ProfileWindow, b'{"at_step": 3, "profile": "memory"}'),
        (ProfileWindow, b'{"at_step": 3, "steps": 0}'), (ProfileWindow, b'{"at_step": 3, "steps": "many"}'),
    ],
)  # fmt: skip
def test_what_is_not_a_whole_commit_is_refused(kind: type[Change], data: bytes) -> None:
    with pytest.raises(DamagedDataError, match="control message"):
        decode_commit(kind, data)


def test_a_change_that_makes_no_sense_is_refused_where_it_is_made() -> None:
    with pytest.raises(InvalidValueError, match=r"sample_interval_s must be >= 0.1 and <= 60 but got 61"):
        ProfileWindow(0, settings={"sample_interval_s": 61})
    with pytest.raises(InvalidValueError, match=r"steps of a profile window must be .* but got -2"):
        ProfileWindow(-2)
    with pytest.raises(InvalidValueError, match=r"at most 1000 but got 1001"):
        ProfileWindow(1001)


@pytest.mark.parametrize("change", CHANGES[:1], ids=lambda change: change.kind)
def test_all_workers_act_at_one_step_that_lies_ahead_of_them(tmp_path: Path, change: Change) -> None:
    store = LocalStore(tmp_path)
    ranks = [StoreMailbox(store, 0, f"worker_{rank}", KINDS) for rank in range(2)]
    agreement = Agreement(store, 0, change)
    assert [rank.poll(11) for rank in ranks] == [[], []]
    assert agreement.request()
    assert ranks[0].poll(12) == []
    assert agreement.commit([worker(0), worker(1)]) is None, "one of two has acknowledged"
    assert ranks[1].poll(9) == []
    agreed = agreement.commit([worker(0), worker(1)])
    assert agreed is not None
    commit, seen, new = agreed
    assert new
    assert seen == {"worker_0": 12, "worker_1": 9}
    assert commit.change == change
    assert commit.at_step > 12
    assert [rank.poll(13) for rank in ranks] == [[commit], [commit]]
    assert [rank.poll(14) for rank in ranks] == [[], []], "it is committed once"


def test_changes_of_one_kind_follow_one_another_and_others_do_not_wait_for_them(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    mailbox = StoreMailbox(store, 0, "worker_0", KINDS)

    def agreed(change: Change, number: int = 0) -> Commit:
        agreement = Agreement(store, 0, change, number=number)
        agreement.request()
        found = agreement.commit([worker(0)])
        assert found is not None
        return found[0]

    first, second = agreed(Stop("enough")), agreed(Stop("more than enough"), 1)
    Agreement(store, 0, Stop("far more"), number=2).request()
    window = commit_window(store, 0, ProfileWindow(5), 10)
    assert [mailbox.poll(3) for _ in range(4)] == [[first], [second], [window], []]
    assert mailbox.requested, "no evaluator commits the third stop"


def test_a_window_is_read_as_soon_as_it_is_committed_and_nothing_is_acknowledged(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    mailbox = StoreMailbox(store, 0, "worker_0")
    assert mailbox.poll(3) == []
    first = commit_window(store, 0, ProfileWindow(5), 10)
    second = commit_window(store, 0, ProfileWindow(5), 15)
    assert (first, second) == (Commit(10, ProfileWindow(5), 0), Commit(15, ProfileWindow(5), 1))
    assert commit_window(store, 1, ProfileWindow(5), 10).number == 0, "attempts count apart"
    assert [mailbox.poll(3) for _ in range(3)] == [[first], [second], []]
    assert not mailbox.requested
    assert sorted(path.name for path in tmp_path.rglob("0000/*/*")) == ["commit", "commit"]


def test_windows_that_overlap_are_refused_also_of_two_requests_at_once(tmp_path: Path) -> None:
    class Rival(LocalStore):
        """Another request is written between the look for a free number and the write."""

        rival: ProfileWindow | None = ProfileWindow(5)

        def write(self, path: str, data: bytes, *, replace: bool = False) -> None:
            rival, self.rival = self.rival, None
            if rival is not None:
                super().write(path, encode(Commit(12, rival), 1))
            super().write(path, data, replace=replace)

    with pytest.raises(InvalidValueError, match=r"steps 10:15 overlap steps 12:17, which .* at step 17 or later"):
        commit_window(Rival(tmp_path / "one"), 0, ProfileWindow(5), 10)
    assert commit_window(Rival(tmp_path / "two"), 0, ProfileWindow(2), 10).number == 1
    settings = ProfileWindow(0, settings={"module_times": True})
    assert commit_window(Rival(tmp_path / "three"), 0, settings, 13).number == 1, "settings overlap nothing"


def test_a_damaged_window_is_passed_and_keeps_no_stop_back(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = LocalStore(tmp_path)
    store.write("control/profile/0000/0000/commit", b'{"at_step": 3, "steps": -1}')
    whole = commit_window(store, 0, ProfileWindow(2), 3)
    agreement = Agreement(store, 0, Stop("enough"))
    agreement.request()
    agreement.commit([worker(0)])
    mailbox = StoreMailbox(store, 0, "worker_0")
    assert [mailbox.poll(3) for _ in range(3)] == [[Commit(8, Stop("enough"))], [], [whole]]
    assert "a request is ignored: a control message is not a ProfileWindow" in caplog.text


class CountingStore(LocalStore):
    """Notes how many bytes are read."""

    bytes_read = 0

    def read(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        data = super().read(path, start, end)
        self.bytes_read += len(data)
        return data


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_a_commit_of_any_length_is_read_up_to_a_limit(tmp_path: Path, kind: type[Change]) -> None:
    """A sparse file takes no space of the disk, and would take all memory of the training process."""
    store = CountingStore(tmp_path)
    mailbox = StoreMailbox(store, 0, "worker_0", KINDS)
    for name in ("request", "commit"):
        path = tmp_path / f"control/{kind.kind}/0000/0000/{name}"
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "wb") as file:
            file.truncate(20 << 30)
    listener = Listener([].append)
    listener.listen(mailbox)
    for _ in range(3):
        listener.look(3)
    assert 0 < store.bytes_read <= 3 * ((1 << 16) + 1)
    if kind is ProfileWindow:
        assert commit_window(store, 0, ProfileWindow(2), 3).number == 1


def test_an_evaluator_that_takes_over_finds_what_was_written(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    before, after = (Agreement(store, 0, Stop("enough")) for _ in range(2))
    assert before.request()
    assert not after.request()
    assert before.commit([worker(0)]) == (Commit(8, Stop("enough")), {}, True)
    agreed = after.commit([worker(0, 20)])
    assert agreed is not None
    assert not agreed[2]
    assert StoreMailbox(store, 0, "worker_0").poll(7) == [Commit(8, Stop("enough"))]


def test_nothing_is_looked_for_after_a_stop(tmp_path: Path) -> None:
    store, heard = LocalStore(tmp_path), []
    mailbox: Any = StoreMailbox(store, 0, "worker_0")
    listener = Listener(heard.append)
    listener.look(1)
    listener.listen(mailbox)
    agreement = Agreement(store, 0, Stop("enough"))
    agreement.request()
    agreement.commit([worker(0)])
    listener.look(1)
    mailbox.poll = None
    listener.look(2)
    assert heard == [Commit(8, Stop("enough"))]
