"""What stands twice in a run: docs/run-format.md says which of them counts."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from watchglass.errors import DamagedDataError
from watchglass.records import SCALARS, Fact, Mode, Role, StepEnd, TensorInfo
from watchglass.run import open_run
from watchglass.store import (
    LocalStore,
    SegmentWriter,
    as_numbers,
    create_attempt,
    create_run,
    decode_statistics,
    dtype_of,
    encode_catalog,
    encode_facts,
    encode_rows,
    encode_step_ends,
    layout,
    load_tensor,
    newest_generation,
)
from watchglass.testing import Step, build_run


@pytest.fixture
def store(tmp_path):
    store = LocalStore(tmp_path / "run")
    create_run(store, command=[])
    create_attempt(store, "")
    return store


def write(store, *frames, attempt=0):
    SegmentWriter(store, attempt, "worker_0").write([*frames, encode_step_ends([StepEnd(0, Mode.TRAIN, 0, 0, 1, 2)])])


def scalars(*rows):
    return encode_rows(SCALARS, np.array([(0, i, 1.0, value) for i, value in rows], dtype_of(SCALARS)))


def test_the_later_row_of_a_tensor_and_of_a_step(store):
    write(
        store, encode_catalog([TensorInfo(0, "early", Role.LOSS), TensorInfo(0, "loss", Role.LOSS)]),
        scalars((0, 1.0), (0, 2.0)), encode_facts([Fact("k", 0, "s", {})]), encode_facts([Fact("k", 0, "s", {})]),
        encode_step_ends([StepEnd(0, Mode.TRAIN, 0, 0, 1, 2)]),
    )  # fmt: skip
    run = open_run(store.root)
    assert run.tensor_names() == ["loss"]
    assert run.scalars("loss")[1].tolist() == [2.0]
    assert len(run.facts()) == 1
    assert list(run.steps()) == [0]


def test_of_two_tensors_with_one_name_the_later_answers(store):
    write(
        store, encode_catalog([TensorInfo(0, "loss", Role.LOSS), TensorInfo(1, "loss", Role.LOSS)]),
        scalars((0, 1.0), (1, 2.0)),
    )  # fmt: skip
    run = open_run(store.root)
    assert run.tensor_names() == ["loss"]
    assert run.scalars("loss")[1].tolist() == [2.0]


def test_of_two_segments_with_one_number_that_in_the_later_bucket(store):
    catalog = encode_catalog([TensorInfo(0, "loss", Role.LOSS)])
    write(store, catalog, scalars((0, 2.0)))
    (segment,) = store.list(layout.segments(0))
    name = layout.parse_segment(segment.path)
    other = LocalStore(store.root.parent / "other")
    create_run(other, command=[])
    create_attempt(other, "")
    write(other, catalog, scalars((0, 1.0)))
    earlier = other.read(other.list(layout.segments(0))[0].path)
    store.write(layout.segment(0, name.bucket - 1, "worker_0", name.seq), earlier)
    assert open_run(store.root).scalars("loss")[1].tolist() == [2.0]


def test_of_a_key_of_a_safetensors_header_that_stands_twice_the_last(store):
    def entry(begin):
        return json.dumps({"dtype": "U8", "shape": [1], "data_offsets": [begin, begin + 1]})

    header = f'{{"a": {entry(0)}, "a": {entry(1)}}}'.encode()
    store.write("x.safetensors", len(header).to_bytes(8, "little") + header + b"\x07\x09")
    assert as_numbers(load_tensor(store, "x.safetensors", "a")).tolist() == [9]


def test_a_column_that_stands_twice_is_refused(tmp_path):
    import pyarrow as pa

    columns = {"global_step": "u8", "tensor_id": "u4", "calls": "u4", "origin": "u1", "sampled": "?"}
    arrays = [pa.array(np.zeros(2, kind)) for kind in columns.values()]
    counts = [pa.array(np.zeros(2, "u8"))] * 5
    rest = [pa.array(np.zeros(2))] * 6
    names = [*columns, "count", "nan", "posinf", "neginf", "zero", "min", "max", "sum", "abs_sum", "m2", "l2"]

    def payload(names, arrays):
        sink = pa.BufferOutputStream()
        batch = pa.RecordBatch.from_arrays(arrays, names=names)
        with pa.ipc.new_stream(sink, batch.schema) as out:
            out.write_batch(batch)
        return sink.getvalue().to_pybytes()

    assert len(decode_statistics(payload(names, arrays + counts + rest))) == 2
    with pytest.raises(DamagedDataError, match="twice"):
        decode_statistics(payload([*names, "sum"], [*arrays, *counts, *rest, rest[0]]))


def test_a_worker_that_a_generation_covers_twice_is_refused(store):
    path = "compacted/00000001/0000/worker_0.frames"
    covered = {"attempt": 0, "worker": "worker_0", "segments": 1, "frames": path, "bytes": 0}
    manifest = {"generation": 1, "created_ns": 1, "covers": [covered]}
    store.write(path, b"")
    target = "compacted/00000001/manifest.json"
    store.write(target, json.dumps(manifest).encode())
    assert newest_generation(store).covers[0].worker == "worker_0"
    store.write(target, json.dumps({**manifest, "covers": [covered, covered]}).encode(), replace=True)
    with pytest.raises(DamagedDataError):
        newest_generation(store)


def test_the_page_lists_them():
    text = (Path(__file__).parents[3] / "docs" / "run-format.md").read_text()
    table = text[text.index("## Duplicates") :].split("\n## ")[0]
    assert len(re.findall(r"^\| ", table, re.MULTILINE)) >= 9


def test_hostile_names_steer_no_terminal_and_are_no_markup(tmp_path, capsys):
    from watchglass.cli import main

    name = "\x1b]0;owned\x07<script>alert(1)</script>\u202e.weight"
    path = build_run(
        tmp_path / "run", [Step({"loss": 1.0, name: 2.0}, {name: np.ones(2)})], modules={"<b>": "\x1b[31m"}
    )
    for command in (["show", "--tensors"], ["check"], ["check", "--format", "json"]):
        main([command[0], path, *command[1:]])
        printed = "".join(capsys.readouterr())
        assert all(letter.isprintable() or letter == "\n" for letter in printed)
    main(["report", path, "-o", str(tmp_path / "report.html")])
    capsys.readouterr()
    assert "<script>alert" not in (tmp_path / "report.html").read_text()
    html = open_run(path)._repr_html_()
    assert "<script" not in html
    assert "\x1b" not in repr(open_run(path)) + repr(open_run(path).tensor(name))
