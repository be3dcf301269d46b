"""A claim names a process beyond doubt."""

import os
from dataclasses import replace

import pytest

from watchglass.errors import DamagedDataError, RunExistsError
from watchglass.store import (
    Claim,
    JournalWriter,
    LocalStore,
    claim_worker,
    is_alive,
    layout,
    lease_holder,
    read_claims,
    release_worker,
    this_process,
)


@pytest.fixture
def store(tmp_path):
    return LocalStore(tmp_path)


def test_this_process_lives():
    assert is_alive(this_process()) is True
    assert is_alive({"event": "joined", "worker": "worker_0", **this_process().to_json()}) is True


def test_a_process_with_the_same_number_but_another_start_or_boot_is_dead():
    claim = this_process()
    assert is_alive(replace(claim, process_start=claim.process_start + 1)) is False
    assert is_alive(replace(claim, boot_id="another")) is False
    assert is_alive(replace(claim, pid=-1)) is False
    assert is_alive(replace(claim, released=True)) is False


def test_another_host_cannot_be_judged():
    assert is_alive(replace(this_process(), host="elsewhere")) is None


def test_a_worker_held_by_a_living_process_is_refused(store):
    claim_worker(store, 0, "worker_0", replace(this_process(), pid=os.getppid(), process_start=0))
    with pytest.raises(RunExistsError, match=f"process {os.getppid()}, which is running"):
        claim_worker(store, 0, "worker_0")
    claim_worker(store, 0, "worker_1")
    assert list(read_claims(store, 0)) == ["worker_0", "worker_1"]


def test_a_worker_of_another_host_is_refused_with_the_file_to_remove(store):
    claim_worker(store, 0, "worker_0", replace(this_process(), host="elsewhere"))
    with pytest.raises(RunExistsError, match=r"elsewhere.*worker_0\.json"):
        claim_worker(store, 0, "worker_0")


def test_the_claim_to_remove_is_that_of_the_holder(store):
    for _ in range(2):
        claim_worker(store, 0, "worker_0")
        release_worker(store, 0, "worker_0")
    claim_worker(store, 0, "worker_0", replace(this_process(), host="elsewhere"))
    with pytest.raises(RunExistsError, match="remove") as caught:
        claim_worker(store, 0, "worker_0")
    file, location = str(caught.value).partition("remove ")[2].split(" if ")[0].split(" in ")
    assert location == store.location
    store.delete(file)  # what the message says is done
    assert file.endswith("worker_0.json.4")
    claim_worker(store, 0, "worker_0")
    assert read_claims(store, 0)["worker_0"].pid == os.getpid()


def test_a_released_worker_can_be_claimed_by_the_same_process(store):
    for _ in range(3):
        claim_worker(store, 0, "worker_0")
        release_worker(store, 0, "worker_0")
    release_worker(store, 0, "worker_0")
    assert read_claims(store, 0)["worker_0"].released


def test_a_damaged_claim_is_named(store):
    store.write(layout.worker_claim(0, "worker_0"), b"{")
    with pytest.raises(DamagedDataError, match=r"worker_0\.json"):
        claim_worker(store, 0, "worker_0")
    assert read_claims(store, 0) == {}


def test_the_journal_has_one_writer(store):
    first = JournalWriter(store)
    assert lease_holder(store).pid == os.getpid()
    with pytest.raises(RunExistsError, match="journal"):
        JournalWriter(store)
    first.close()
    first.close()
    assert lease_holder(store) is None
    JournalWriter(store).close()


def test_the_journal_of_a_dead_evaluator_is_taken_over(store):
    from watchglass.store import claim

    claim.take(store, layout.LEASE, replace(this_process(), process_start=1), "the journal")
    with JournalWriter(store):
        assert lease_holder(store).process_start == this_process().process_start


@pytest.mark.parametrize("data", [{}, {"pid": None}, {"pid": "x"}, {"pid": float("inf")}])
def test_what_names_no_process_is_no_claim(data):
    with pytest.raises(DamagedDataError):
        Claim.from_json(data)
