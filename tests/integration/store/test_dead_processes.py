"""A process that was killed is dead, also before its parent has waited for it."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from waiting import until
from watchglass.errors import RunExistsError
from watchglass.store import (
    LocalStore,
    claim_worker,
    is_alive,
    read_claims,
    this_process,
)


@pytest.fixture
def store(tmp_path):
    return LocalStore(tmp_path)


@pytest.fixture
def child():
    process = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    yield process
    process.communicate()


def claim_of(pid):
    return replace(this_process(), pid=pid, process_start=0)


def test_a_zombie_is_dead(child):
    claim = claim_of(child.pid)
    assert is_alive(claim) is True
    child.kill()
    until(lambda: not is_alive(claim))  # killed but not yet waited for
    assert is_alive(claim) is False


def test_a_worker_of_a_dead_process_is_taken_over(store, child):
    claim_worker(store, 0, "worker_0", claim_of(child.pid))
    child.kill()
    child.wait()
    claim_worker(store, 0, "worker_0")
    assert read_claims(store, 0)["worker_0"].pid == os.getpid()
    with pytest.raises(RunExistsError):
        claim_worker(store, 0, "worker_0")
