"""Torn, damaged, foreign and hostile segments."""

import json
import struct
import zlib

import numpy as np
import pytest

from stores.store_segments import fact, new_store, numbers, segment
from watchglass.errors import DamagedDataError, InvalidValueError, UnknownNameError
from watchglass.records import RAW, RuleStatus, Status
from watchglass.run import open_run
from watchglass.store import (
    FrameKind,
    JournalWriter,
    LocalStore,
    RunReader,
    SegmentWriter,
    as_numbers,
    create_attempt,
    decode_statistics,
    encode_frame,
    encode_header,
    encode_rows,
    encode_statistics,
    layout,
    load_tensor,
    table_of,
)
from watchglass.testing import build_run


@pytest.fixture
def store(tmp_path):
    return new_store(tmp_path / "run")


# Torn and damaged


def test_a_killed_writer_leaves_a_readable_prefix_at_every_byte(store):
    writer = SegmentWriter(store, 0, "worker_0")
    writer.write([fact(0)])
    writer.write([fact(1)])
    path = segment(store)
    whole, ends = path.read_bytes(), []
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        reader = RunReader(store)
        found = numbers(reader.poll())
        assert found == [0, 1][: len(found)]
        assert reader.problems == []
        ends.append(len(found))
    assert ends == sorted(ends)
    assert ends[-1] == 2


def test_a_torn_write_is_read_on_once_it_is_whole(store):
    SegmentWriter(store, 0, "worker_0").write([fact(0)])
    reader, path = RunReader(store), segment(store)
    reader.poll()
    for byte in fact(1):
        assert numbers(reader.poll()) == []
        with path.open("ab") as file:
            file.write(bytes([byte]))
    assert numbers(reader.poll()) == [1]
    assert reader.unfinished() == []


def test_a_torn_segment_with_a_successor_is_a_problem_and_reading_goes_on(store):
    writer = SegmentWriter(store, 0, "worker_0", rotate_bytes=1)
    for number in range(3):
        writer.write([fact(number)])
    path = segment(store, 1)
    path.write_bytes(path.read_bytes()[:-1])
    reader = RunReader(store)
    assert numbers(reader.poll()) == [0, 2]
    (problem,) = reader.problems
    assert problem.path.endswith("worker_0-00000001")
    assert "ends within a frame" in str(problem)
    assert f"byte {problem.offset}" in str(problem)


def test_a_flipped_byte_costs_the_rest_of_its_segment_only(store):
    writer = SegmentWriter(store, 0, "worker_0", rotate_bytes=400)
    for number in range(40):
        writer.write([fact(number)])
    path = segment(store)
    data = bytearray(path.read_bytes())
    data[-30] ^= 1
    path.write_bytes(data)
    reader = RunReader(store)
    found = numbers(reader.poll())
    assert found == sorted(found)
    assert found[-1] == 39
    assert 0 < 40 - len(found) < 20
    assert ["damaged" in problem.what for problem in reader.problems] == [True]


def test_damage_in_the_newest_segment_is_a_problem_until_it_is_repaired(store):
    SegmentWriter(store, 0, "worker_0").write([fact(0)])
    path = segment(store)
    whole = path.read_bytes()
    path.write_bytes(whole + fact(1)[:-1] + b"?")
    reader = RunReader(store)
    assert numbers(reader.poll()) == [0]
    assert len(reader.problems) == 1
    path.write_bytes(whole + fact(1) + fact(2))
    assert numbers(reader.poll()) == [1, 2]
    assert reader.problems == []


def test_foreign_and_empty_files_do_no_harm(store):
    SegmentWriter(store, 0, "worker_0").write([fact(0)])
    folder = segment(store).parent
    (folder / "worker_1-00000000").write_bytes(b"")
    (folder / "worker_2-00000000").write_bytes(b"\x89PNG\r\n" * 100)
    (folder / "notes.txt").write_text("hello")
    (folder / "worker_3-00000000").mkdir()
    (folder / "worker_4-00000000").symlink_to("/etc/passwd")
    reader = RunReader(store)
    assert numbers(reader.poll()) == [0]
    assert [problem.path[-17:] for problem in reader.problems] == ["worker_2-00000000"]


def test_a_sparse_file_that_claims_gigabytes_is_not_read_into_memory(store):
    SegmentWriter(store, 0, "worker_0").write([fact(0)])
    with segment(store).open("r+b") as file:
        file.truncate(1 << 40)
    reader = RunReader(store)
    assert numbers(reader.poll()) == [0]
    assert "damaged" in reader.problems[0].what


def test_whole_frames_of_nonsense_are_named_and_the_rest_is_read(tmp_path):
    build_run(tmp_path / "run", [{"scalars": {"loss": 1.0}}] * 3)
    store = LocalStore(tmp_path / "run")
    for kind in FrameKind:
        SegmentWriter(store, 0, "worker_0").write([encode_frame(kind, b"\xffnonsense")])
    run = open_run(tmp_path / "run")
    assert run.scalars("loss")[1].tolist() == [1.0] * 3
    not_of_a_worker = {FrameKind.WATERMARK, FrameKind.FINDING, FrameKind.STATUS, FrameKind.OBSERVATION}
    assert len(run.problems) == len(set(FrameKind) - not_of_a_worker)
    assert all(problem.path.startswith("attempts/") and problem.offset > 0 for problem in run.problems)


def test_unknown_kinds_and_schemas_are_skipped(tmp_path):
    path = build_run(tmp_path / "run", [{"scalars": {"loss": 1.0}}])
    unknown = struct.pack("<HHI", 99, 1, 0)
    frame = b"WGF1" + unknown + struct.pack("<I", zlib.crc32(unknown))
    newer = encode_frame(FrameKind.SCALARS, b"other rows", schema=2)
    SegmentWriter(LocalStore(path), 0, "worker_0").write([frame, newer])
    run = open_run(path)
    assert run.problems == []
    assert run.scalars("loss")[1].tolist() == [1.0]


def test_a_damaged_journal_does_not_hide_its_next_segment(store):
    for name in "ab":
        with JournalWriter(store) as journal:
            journal.write([RuleStatus(name, Status.STOPPED)])
    path = store.root / layout.numbered(layout.JOURNAL, 0)
    path.write_bytes(path.read_bytes()[:-5] + b"xxxxx")
    reader = RunReader(store)
    assert len(reader.journal()) == 1
    assert reader.problems[0].path == "journal/00000000"


# Hostile


def statistics_payload():
    from watchglass.store import StatisticsBatch

    n = 1000
    zeros = np.zeros(n)
    batch = StatisticsBatch(
        zeros.astype("u8"), zeros.astype("u4"), zeros.astype("u4"), np.zeros((n, 11)), zeros.astype("u1"), zeros > 0
    )
    return bytearray(encode_statistics(batch)[16:])


def test_a_decompression_bomb_is_refused_before_it_is_opened():
    import pyarrow as pa

    table = pa.table({"global_step": pa.array(np.zeros(1 << 26, "u8"))})
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, table.schema, options=options) as stream:
        stream.write_table(table)
    bomb = sink.getvalue().to_pybytes()
    assert len(bomb) < 1 << 20
    before = pa.total_allocated_bytes()
    del table
    with pytest.raises(DamagedDataError, match="at most"):
        decode_statistics(bomb)
    assert pa.total_allocated_bytes() <= before


def test_flipped_bytes_in_statistics_never_crash():
    sound = bytes(statistics_payload())
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(2000):
        data = bytearray(sound)
        for at in rng.integers(0, len(data), size=rng.integers(1, 4)):
            data[at] ^= int(rng.integers(1, 256))
        try:
            decode_statistics(bytes(data))
        except DamagedDataError:
            refused += 1
    assert refused > 200


@pytest.mark.parametrize("cut", [0, 1, 8, 100, 1000, -1])
def test_cut_statistics_are_damaged_data(cut):
    with pytest.raises(DamagedDataError):
        decode_statistics(bytes(statistics_payload()[:cut]))


@pytest.mark.parametrize("file", ["../secret", "/etc/passwd", "a/../../secret", "attempts\x00"])
def test_a_raw_index_cannot_lead_out_of_the_run(tmp_path, file):
    (tmp_path / "secret").write_bytes(b"x" * 100)
    path = build_run(tmp_path / "run", [{"raw": {"w": np.ones(2)}}])
    rows = table_of(RAW, [(0, 0, file, "0/0")])
    SegmentWriter(LocalStore(path), 0, "worker_0").write([encode_rows(RAW, rows)])
    with pytest.raises(InvalidValueError, match="path"):
        open_run(path).tensor("w").value(0)


def test_a_folder_that_is_a_link_cannot_lead_out_of_the_run(tmp_path):
    path = build_run(tmp_path / "run", [{"raw": {"w": np.ones(2)}}])
    tensors = LocalStore(path).root / "attempts" / "0000" / "tensors"
    tensors.rename(tmp_path / "elsewhere")
    tensors.symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    with pytest.raises(DamagedDataError, match="symbolic link"):
        open_run(path).tensor("w").value(0)
    attempts = LocalStore(path).root / "attempts"
    attempts.rename(tmp_path / "all")
    attempts.symlink_to(tmp_path / "all", target_is_directory=True)
    before = sorted(tmp_path.joinpath("all").rglob("*"))
    with pytest.raises(DamagedDataError, match="symbolic link"):
        create_attempt(LocalStore(path), "")
    assert sorted(tmp_path.joinpath("all").rglob("*")) == before


@pytest.mark.parametrize(
    "header",
    [
        b"\xff" * 8, b"\x10" + bytes(7), b"",
        *(
            len(text).to_bytes(8, "little") + text
            for text in (
                b"[]", b"{}x", b'{"k": 1}', b'{"k": {"dtype": "F32", "shape": [1e3], "data_offsets": [0, 4]}}',
                b'{"k": {"dtype": "F32", "shape": [1000000000000], "data_offsets": [0, 4000000000000]}}',
                b'{"k": {"dtype": "PICKLE", "shape": [1], "data_offsets": [0, 4]}}',
                b'{"k": {"dtype": "F32", "shape": [1], "data_offsets": [-8, -4]}}',
                b'{"k": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}',
            )
        ),
    ],
)  # fmt: skip
def test_a_hostile_tensor_file_is_damaged_data(store, header):
    store.write("attempts/0000/tensors/worker_0-00000000.safetensors", header)
    with pytest.raises((DamagedDataError, UnknownNameError)):
        as_numbers(load_tensor(store, "attempts/0000/tensors/worker_0-00000000.safetensors", "k"))


def test_a_hostile_manifest_cannot_claim_terabytes(store):
    with (store.root / "run.json").open("r+b") as file:
        file.truncate(1 << 40)
    with pytest.raises(ValueError, match="not a run"):
        open_run(store.root)


def test_a_header_of_another_worker_is_only_data(store):
    SegmentWriter(store, 0, "worker_0").write([encode_header({"worker": "../../x", "attempt": json.dumps("9")})])
    assert {(a, w) for a, w, _ in RunReader(store).poll()} == {(0, "worker_0")}
