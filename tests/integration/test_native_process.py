"""What the native kernel does to the process that loads it: its threads, forks, floating-point mode and callers."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest

from devices.kernel_calls import assert_same_bits, summaries
from watchglass.stats import native

pytestmark = pytest.mark.own_process

#: Each test is another process: what it observes belongs to a process, and exists once.
PRELUDE = """
import ctypes, os, pathlib, platform, threading
import numpy as np
from watchglass.stats import native
library = ctypes.CDLL(str(pathlib.Path(native.__file__).with_name("libsummaries.so")))

def call(array, **options):
    return native.summaries([array.ctypes.data] * 4, [array.size] * 4, [0] * 4, **options)

def same(a, b):
    return a[0].tobytes() == b[0].tobytes() and (a[1].counts.tobytes() == b[1].counts.tobytes())

def tasks():
    return len(os.listdir("/proc/self/task"))

small = np.random.default_rng(0).standard_normal(16_384).astype(np.float32)
large = np.random.default_rng(0).standard_normal(400_000).astype(np.float32)
"""

linux = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


def run(code: str) -> None:
    program = PRELUDE + textwrap.dedent(code)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@linux
def test_no_thread_is_started_before_there_is_enough_to_do() -> None:
    run("""
        before = tasks()
        call(large)
        assert tasks() == before, "one thread is the default"
        native.set_threads(4)
        call(small)  # 65,536 elements in all
        assert tasks() == before, "too little for two"
        call(large)
        assert tasks() == before + 3
        native.set_threads(2)
        call(large)
        native.set_threads(4)
        call(large)
        assert tasks() == before + 3 == before + library.watchglass_threads_started(), "they are kept"
    """)


@linux
def test_helpers_sleep_between_calls() -> None:
    run("""
        native.set_threads(3)
        own = set(os.listdir("/proc/self/task"))
        for _ in range(20):
            call(large)
        helpers = set(os.listdir("/proc/self/task")) - own

        def stat(helper):
            return open(f"/proc/self/task/{helper}/stat").read().split(")")[1].split()

        def ticks():
            return [stat(helper)[11:13] for helper in helpers]

        while {stat(helper)[0] for helper in helpers} != {"S"}:  # one that spins never is, and the test times out
            pass
        before = ticks()
        sum(i * i for i in range(3_000_000))
        assert len(helpers) == 2 and ticks() == before
    """)


def test_a_forked_child_does_without_threads_and_gets_the_same() -> None:
    run("""
        native.set_threads(2)
        expected = call(large)
        assert library.watchglass_threads_started() == 1
        for _ in range(3):
            child = os.fork()
            if child == 0:
                good = same(call(large), expected) and library.watchglass_threads_started() == 0
                os._exit(0 if good else 1)
            assert os.waitpid(child, 0)[1] == 0
            assert same(call(large), expected)
        assert library.watchglass_threads_started() == 1
    """)


def test_a_fork_in_the_middle_of_a_call_hangs_no_process() -> None:
    run("""
        native.set_threads(2)
        expected = call(large)
        stop = threading.Event()

        def work():
            while not stop.is_set():
                assert same(call(large), expected)

        thread = threading.Thread(target=work)
        thread.start()
        for _ in range(30):
            child = os.fork()
            if child == 0:
                os._exit(0 if same(call(large), expected) else 1)
            assert os.waitpid(child, 0)[1] == 0
        stop.set()
        thread.join()
    """)


def test_several_callers_at_once_get_their_own_results() -> None:
    generator = np.random.default_rng(0)
    arrays = [generator.standard_normal(n).astype(np.float32) for n in (200_000, 210_000, 300_000, 70_000)]
    alone = [summaries([array, array], "float32") for array in arrays]
    wrong: list[int] = []

    def call(first: int) -> None:
        for index in range(first, first + 300):
            array, expected = arrays[index % 4], alone[index % 4]
            try:
                assert_same_bits(summaries([array, array], "float32"), expected)
            except AssertionError:
                wrong.append(index)

    native.set_threads(2)
    try:
        threads = [threading.Thread(target=call, args=(index,)) for index in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        native.set_threads(1)
    assert wrong == []


def test_elements_that_change_while_they_are_read_spoil_no_later_result() -> None:
    """As in a training run of several processes on shared weights."""
    run("""
        import mmap, signal
        array = np.frombuffer(mmap.mmap(-1, 4 * 4096), np.float32)
        child = os.fork()
        if child == 0:
            while True:
                for exponent in range(-30, 30):
                    array[:] = 10.0**exponent
        expected = call(small)
        try:
            for _ in range(2000):
                call(array)
                assert same(call(small), expected)
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    """)


def test_loading_and_calling_leave_the_floating_point_mode_alone() -> None:
    # Without the prelude: it must be read before anything of ours is loaded.
    code = """
        import ctypes, ctypes.util, platform
        import numpy as np
        libm = ctypes.CDLL(ctypes.util.find_library("m"))

        def mode():
            state = (ctypes.c_uint32 * 64)()
            assert libm.fegetenv(state) == 0
            # MXCSR without its flags of what has happened; elsewhere the control word comes first.
            return state[7] & ~0x3F if platform.machine() in ("x86_64", "AMD64") else state[0]

        before, subnormal = mode(), np.float32(1e-45)
        from watchglass.stats import native
        assert native.available
        assert mode() == before, "by loading"
        native.set_threads(2)
        array = np.full(300_000, subnormal)
        for _ in range(3):
            native.summaries([array.ctypes.data], [array.size], [0])
        assert mode() == before, "by calling"
        assert float(subnormal * np.float32(1.0)) > 0.0
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_a_process_that_flushes_subnormals_still_has_them_counted_and_goes_on_flushing() -> None:
    run("""
        import torch
        array = (np.float32(2.0) ** -np.arange(120, 150)).astype(np.float32).repeat(10_000)
        expected = call(array)
        assert expected[0][0][4] == 0 and expected[0][0][5] == 2.0**-149
        one = torch.from_numpy(np.full(1, 1e-40, np.float32))
        assert float((one * 1.0).item()) > 0.0
        if not torch.set_flush_denormal(True):
            raise SystemExit(0)
        assert float((one * 1.0).item()) == 0.0
        assert same(call(array), expected)
        native.set_threads(2)
        for _ in range(20):
            assert same(call(array), expected)
        assert float((one * 1.0).item()) == 0.0
    """)
