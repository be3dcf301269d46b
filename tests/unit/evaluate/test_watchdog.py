"""A call that takes too long is ended, wherever it is; one that does not is left alone."""

from __future__ import annotations

import collections
import gc
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from calls import uncollected
from waiting import PATIENCE_S, until
from watchglass.evaluate.engine.watchdog import CallTimeout, Watchdog, wakeable

pytestmark = pytest.mark.own_process

_SHORT_S = 0.05


def spins() -> None:
    while True:
        pass


def sleeps() -> None:
    time.sleep(1e6)


def waits_for_a_lock() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def swallows() -> int:
    for _ in range(3):
        try:
            time.sleep(1e6)
        except BaseException:
            continue
    return 3


def makes_something_else_of_it() -> None:
    try:
        time.sleep(1e6)
    except BaseException:
        raise ValueError("mine") from None


@pytest.fixture(autouse=True)
def nothing_is_watched() -> Iterator[None]:
    """What pytest remembers of an exception holds on to watchdogs."""
    yield
    gc.collect()


@pytest.mark.parametrize("question", [spins, sleeps, waits_for_a_lock, swallows, makes_something_else_of_it])
def test_a_call_that_takes_too_long_is_ended(question: Callable[[], Any]) -> None:
    watchdog = Watchdog(_SHORT_S)
    with wakeable(), pytest.raises(CallTimeout) as caught:
        watchdog.call(question)
    assert f"in {question.__name__}" in caught.value.place
    assert "in call" not in caught.value.place
    assert watchdog.call(lambda: 7) == 7


def test_in_any_thread() -> None:
    caught: list[BaseException] = []

    def work() -> None:
        try:
            Watchdog(_SHORT_S).call(spins)
        except CallTimeout as error:
            caught.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert len(caught) == 1


def test_what_a_call_raises_is_its_own() -> None:
    watchdog = Watchdog(_SHORT_S)
    with pytest.raises(ZeroDivisionError):
        watchdog.call(lambda: 1 // 0)
    with pytest.raises(KeyboardInterrupt):
        watchdog.call(lambda: (_ for _ in ()).throw(KeyboardInterrupt))


@pytest.fixture
def busy_threads_take_turns() -> Iterator[None]:
    """So that the watching thread shoots when it means to, not a turn of 5 ms later."""
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(0.0001)
    yield
    sys.setswitchinterval(before_s)


@pytest.mark.slow
@pytest.mark.usefixtures("busy_threads_take_turns")
@pytest.mark.parametrize("threaded", [False, True])
def test_no_exception_comes_too_late(threaded: bool) -> None:
    """Calls that end about when they are shot at: what is raised is raised in the call or not at all."""
    ended: collections.Counter[str] = collections.Counter()

    def work() -> None:
        watchdog, chance = Watchdog(0.005), random.Random(7)
        with wakeable():
            # When a call is shot at depends on the machine: enough of both are waited for.
            while min(ended["in time"], ended["late"]) < 15 and ended.total() < 10_000:
                until_s = time.perf_counter() + chance.uniform(0.004, 0.014)

                def busy(until_s: float = until_s) -> None:
                    while time.perf_counter() < until_s:
                        pass

                try:
                    watchdog.call(busy)
                    ended["in time"] += 1
                except CallTimeout:
                    ended["late"] += 1
                for _ in range(1000):
                    pass
        ended["all"] += 1

    if threaded:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    else:
        work()
    assert ended["all"] == 1
    assert min(ended["in time"], ended["late"]) >= 15


def test_one_that_nothing_ends_is_reported() -> None:
    """Not in the main thread, where no signal wakes what sleeps."""
    stuck, lock = threading.Event(), threading.Lock()
    places: list[str] = []

    def tell(place: str) -> None:
        places.append(place)
        stuck.set()
        lock.release()

    def work() -> None:
        lock.acquire()
        with pytest.raises(CallTimeout):
            Watchdog(_SHORT_S, tell).call(lock.acquire)

    thread = threading.Thread(target=work)
    thread.start()
    assert stuck.wait(PATIENCE_S)
    thread.join()
    assert len(places) == 1


def test_the_signal_is_given_back() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGURG, lambda number, frame: heard.append(number))
    try:
        mine = signal.getsignal(signal.SIGURG)
        with wakeable():
            signal.raise_signal(signal.SIGURG)  # another's
        assert heard == [signal.SIGURG]
        assert signal.getsignal(signal.SIGURG) is mine
    finally:
        signal.signal(signal.SIGURG, before)


@pytest.mark.parametrize("question", [spins, swallows])
def test_python_goes_on_as_if_nothing_had_been(question: Callable[[], Any]) -> None:
    """One version never gets any further under a profiler, where an exception for a thread was taken back."""
    with wakeable(), pytest.raises(CallTimeout):
        Watchdog(_SHORT_S).call(question)
    sys.setprofile(lambda frame, event, argument: None)
    try:
        assert [int(text) for text in ("1", "2")] == [1, 2]
    finally:
        sys.setprofile(None)


def test_a_call_asks_no_other_thread() -> None:
    """No timer, no lock, no clock, no thread: of what it calls beside the question there is one function in C."""
    watchdog, called = Watchdog(30.0), collections.Counter[str]()

    def question() -> int:
        return 7

    def note(frame: Any, event: str, argument: Any) -> None:
        if event in ("call", "c_call"):
            called[frame.f_code.co_name if event == "call" else argument.__name__] += 1

    watchdog.call(question)
    threads = threading.active_count()
    with uncollected():
        sys.setprofile(note)
        try:
            for _ in range(100):
                watchdog.call(question)
        finally:
            sys.setprofile(None)
    assert called - collections.Counter(setprofile=1) == {"call": 100, "get_ident": 100, "question": 100}
    assert threading.active_count() == threads


def test_no_thread_watches_where_there_is_nothing_to_watch() -> None:
    watchdog = Watchdog(30.0)
    watchdog.call(object)
    assert any(thread.name == "watchglass-rule-watch" for thread in threading.enumerate())
    watchdog.close()
    until(lambda: all(thread.name != "watchglass-rule-watch" for thread in threading.enumerate()))
    watchdog.call(object)
