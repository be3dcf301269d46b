"""What a launcher takes for a signal."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import psutil
import pytest

from waiting import until

pytestmark = pytest.mark.skipif(not hasattr(signal, "sigwaitinfo"), reason="this system does not tell who signals")

WAITS = """
import signal
from watchglass.launch.signals import SignalWatch

with SignalWatch() as signals:
    print("waits", flush=True)
    number = signals.wait(1000).number
    print(int(number), flush=True)
    while number != signal.SIGTERM:
        if (arrival := signals.wait(0.5)) is not None:
            number = arrival.number
            print(int(number), flush=True)
"""


def stopped(*numbers: int) -> list[int]:
    """The signals that arrive in a process between SIGUSR1, after which it is stopped, and SIGTERM.

    Args:
        numbers: Sent while it is stopped, for longer than it waits; below SIGTERM, since the lowest arrives first.
    """
    with subprocess.Popen([sys.executable, "-c", WAITS], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waits\n"
        process.send_signal(signal.SIGUSR1)
        assert int(process.stdout.readline()) == signal.SIGUSR1
        time.sleep(0.2)  # until it waits again
        process.send_signal(signal.SIGSTOP)
        until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)
        time.sleep(1)
        for number in numbers:
            process.send_signal(number)
        process.send_signal(signal.SIGCONT)
        time.sleep(0.5)
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate()
    assert process.returncode == 0
    *found, last = map(int, out.split())
    assert last == signal.SIGTERM
    return found


def test_a_stop_that_is_longer_than_a_wait_is_no_signal() -> None:
    assert stopped() == []


def test_a_signal_during_a_stop_arrives_after_it() -> None:
    assert stopped(signal.SIGUSR2) == [signal.SIGUSR2]  # which nohup does not ignore


#: In a process of one thread: the threads that libraries have started in this one do not block signals.
ENDS = """
import os, signal
from watchglass.launch.signals import SignalWatch

handler = signal.getsignal(signal.SIGALRM)
with SignalWatch(group_sender=os.getpid()) as signals:
    assert signals.wait(0.01) is None
    assert signals.wait(0) is None
    os.kill(os.getpid(), signal.SIGUSR1)
    arrival = signals.wait(1000)
    assert arrival is not None
    assert (arrival.number, arrival.shared) == (signal.SIGUSR1, True)
assert signal.getsignal(signal.SIGALRM) is handler
assert signal.SIGALRM not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
print("ended")
"""


def test_a_wait_ends_at_its_timeout_and_at_a_signal_with_its_source() -> None:
    ended = subprocess.run([sys.executable, "-c", ENDS], capture_output=True, text=True, timeout=60)
    assert (ended.stdout, ended.stderr) == ("ended\n", "")
