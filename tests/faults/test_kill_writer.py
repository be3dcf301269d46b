"""A writer that is killed at any moment leaves what it flushed, and its worker free for the next process."""

import subprocess
import sys

import pytest

from watchglass.errors import RunExistsError
from watchglass.records import ROW_KINDS, Field, RowKey, RowKind
from watchglass.run import open_run
from watchglass.store import (
    FrameKind,
    LocalStore,
    RunReader,
    SegmentWriter,
    StreamWriter,
    claim_worker,
    create_attempt,
    create_run,
    encode_frame,
    is_alive,
    read_claims,
)

WRITER = """
import sys
from watchglass.store import FrameKind, LocalStore, SegmentWriter, claim_worker, encode_frame

store = LocalStore(sys.argv[1])
claim_worker(store, 0, "worker_0")
writer = SegmentWriter(store, 0, "worker_0", rotate_bytes=20_000)
number = 0
while True:
    writer.write([encode_frame(FrameKind.FACTS, b"%d " % n + bytes(n % 700)) for n in range(number, number + 7)])
    number += 7
    print(number, flush=True)  # all below were flushed
"""


def numbers(found):
    return [int(frame.payload.split()[0]) for _, _, frame in found if frame.kind == FrameKind.FACTS]


@pytest.mark.parametrize("flushes", [1, 40, 200])
def test_a_writer_killed_while_it_is_followed(tmp_path, flushes):
    store = LocalStore(tmp_path)
    create_run(store, command=[])
    create_attempt(store, "")
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE)
    reader, seen = RunReader(store), []
    flushed = 0
    for _ in range(flushes):
        flushed = int(process.stdout.readline())
        seen += numbers(reader.poll())
        assert seen == list(range(len(seen)))
    with pytest.raises(RunExistsError, match=f"process {process.pid}"):
        claim_worker(store, 0, "worker_0")
    process.kill()
    rest, _ = process.communicate()
    flushed = max([flushed, *(int(line) for line in rest.split())])

    while found := reader.poll(full=True):
        seen += numbers(found)
    assert seen == list(range(len(seen)))
    assert len(seen) >= flushed
    assert reader.problems == []
    assert is_alive(read_claims(store, 0)["worker_0"]) is False

    claim_worker(store, 0, "worker_0")
    SegmentWriter(store, 0, "worker_0").write([encode_frame(FrameKind.FACTS, b"%d" % len(seen))])
    assert numbers(reader.poll()) == [len(seen)]
    assert numbers(RunReader(store).poll()) == list(range(len(seen) + 1))


SAMPLES = RowKind("readings", 92, (Field("number", "u64"), Field("text", "text")), RowKey.TIME)

STREAM = """
import sys
from watchglass.records import Field, RowKey, RowKind
from watchglass.store import LocalStore, StreamWriter

kind = RowKind("readings", 92, (Field("number", "u64"), Field("text", "text")), RowKey.TIME)
writer = StreamWriter(LocalStore(sys.argv[1]), 0, "system")
number = 0
while True:
    rows = [(1000 * number + n, number + n, "x" * (n * 97 % 700)) for n in range(7)]
    writer.write({kind: rows}, 1000 * number + 1000)
    number += 7
    print(number, flush=True)  # all below were flushed
"""


@pytest.mark.parametrize("flushes", [1, 40])
def test_a_stream_whose_writer_was_killed_while_it_is_followed(tmp_path, monkeypatch, flushes):
    monkeypatch.setitem(ROW_KINDS, SAMPLES.number, SAMPLES)
    store = LocalStore(tmp_path)
    create_run(store, command=[])
    create_attempt(store, "")
    process = subprocess.Popen([sys.executable, "-c", STREAM, str(tmp_path)], stdout=subprocess.PIPE)
    flushed = int(process.stdout.readline())
    run = open_run(tmp_path)
    for _ in range(flushes):
        flushed = int(process.stdout.readline())
        run.refresh()
    with pytest.raises(RunExistsError, match=f"process {process.pid}"):
        StreamWriter(store, 0, "system")
    process.kill()
    rest, _ = process.communicate()
    flushed = max([flushed, *(int(line) for line in rest.split())])

    with StreamWriter(store, 0, "system") as successor:
        successor.write({SAMPLES: [(1 << 62, 10**6, "")]}, (1 << 62) + 1)
    run.refresh()
    numbers = run.table("readings").to_arrow()["number"].to_pylist()
    assert numbers[-1] == 10**6
    assert numbers[:-1] == list(range(len(numbers) - 1))
    assert flushed <= len(numbers) - 1 <= flushed + 7
    assert open_run(tmp_path).table("readings").to_arrow()["number"].to_pylist() == numbers


def test_following_a_long_run_asks_for_no_more_than_a_short_one(tmp_path):
    """Old buckets are not listed again at every poll."""

    class Clock:
        now = 10**18

        def time_ns(self):
            return self.now

        monotonic_ns = time_ns

    store, clock = LocalStore(tmp_path), Clock()
    create_run(store, command=[])
    create_attempt(store, "")
    writer = SegmentWriter(store, 0, "worker_0", clock=clock)
    for _ in range(600):
        writer.write([encode_frame(FrameKind.FACTS, b"0")])
        clock.now += 61 * 10**9
    reader = RunReader(store)
    assert len(numbers(reader.poll())) == 600
    listed = []
    store.list, original = lambda *args: listed.append(original(*args)) or listed[-1], store.list
    for _ in range(10):
        reader.poll()
    assert max(len(entries) for entries in listed) <= 3
