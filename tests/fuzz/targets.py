"""Everything that reads foreign bytes, each as a function of :class:`Choices` that does what it must never survive.

A target calls its reader on something hostile. Only errors of ours may come out, which the target lets pass; whatever
else it raises is a finding, and so is what takes too long, too much memory or writes where it must not.
"""

# ruff: noqa: B023  (functions made in loops are called at once)

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from fuzz import hostile, seeds
from fuzz.arrays import encoded_arrays, stored_samples
from fuzz.choices import Choices
from fuzz.compacted import generations, parquet, run_compacted, run_exported
from fuzz.whole_runs import run_among_many, run_api, run_command, run_harvest, run_replayed, run_report
from watchglass import store as room
from watchglass.errors import WatchglassError
from watchglass.records import FACTS, RAW, REDUCTIONS, SCALARS, UNITS
from watchglass.stats import edges, quantiles
from watchglass.store import Frame, FrameKind, LocalStore
from watchglass.tables import WorkerTables

Target = Callable[[Choices], None]


def frames(choices: Choices) -> None:
    """scan: what it gives is a prefix of frames that are whole, however it is cut into pieces."""
    segment = seeds.file("-00000000")
    data = hostile.changed_segment(segment, choices) if choices.number(4) else choices.content(300)
    found = room.scan(data)
    assert 0 <= found.consumed <= len(data)
    assert (found.problem is None) == (found.consumed == len(data))
    again = b"".join(hostile.frame(hostile.Part(f.kind, f.schema, f.payload)) for f in found.frames)
    assert again == data[: found.consumed]
    first = room.scan(data[: choices.number(len(data) + 1)])
    second = room.scan(data, first.consumed)
    assert [f.payload for f in first.frames + second.frames] == [f.payload for f in found.frames]


_JSON = {
    FrameKind.HEADER: room.decode_header, FrameKind.CATALOG: room.decode_catalog,
    FrameKind.FACTS: partial(room.decode_rows, FACTS), FrameKind.RAW: partial(room.decode_rows, RAW),
    FrameKind.LIFECYCLE: room.decode_lifecycle,
    FrameKind.FINDING: room.decode_finding, FrameKind.STATUS: room.decode_status,
    FrameKind.OBSERVATION: room.decode_observation,
}  # fmt: skip


def json_frames(choices: Choices) -> None:
    """decode_* of JSON: records whose fields have the types that their classes declare, or an error."""
    kind = choices.one_of(list(_JSON))
    payload = hostile.changed_json(json.loads(choices.one_of(seeds.payloads(kind))), choices)
    with suppress(WatchglassError):
        found = _JSON[kind](payload)
        for record in found if isinstance(found, list) else [found]:
            hash(getattr(record, "name", "")), repr(record), json.dumps(getattr(record, "to_json", dict)())
            if kind == FrameKind.FINDING:
                assert all(isinstance(text, str) for text in (record.id, record.rule, record.worker, record.message))
                assert all(isinstance(text, str) for text in (*record.tensors, *record.causes, *record.what_to_try))
                assert all(type(number) is int for number in (record.step, record.last_step, record.count))
                assert isinstance(record.evidence, dict)
            if kind == FrameKind.STATUS:
                assert isinstance(record.rule, str)
                assert isinstance(record.reason, str)
            if kind == FrameKind.OBSERVATION:
                assert isinstance(record.kind, str)
                assert isinstance(record.data, dict)
                assert record.after is None or all(type(number) is int for number in record.after)


_ROWS = {
    **{kind.number: partial(room.decode_rows, kind) for kind in (SCALARS, REDUCTIONS, UNITS)},
    FrameKind.STEP_ENDS: room.decode_step_ends,
}  # fmt: skip


def fixed_rows(choices: Choices) -> None:
    """decode_* of fixed-size rows and bitmaps: what they claim to have is there."""
    kind = choices.one_of(list(_ROWS))
    payload = hostile.changed_bytes(choices.one_of(seeds.payloads(kind)), choices)
    with suppress(WatchglassError):
        found = _ROWS[kind](payload)
        if kind == FrameKind.UNITS:
            assert all(flags.dtype == np.dtype(bool) for flags in found["flags"])
        assert len(found) <= 1032 * len(payload)  # the most that deflate makes of a byte


def statistics(choices: Choices) -> None:
    """decode_statistics and decode_histograms: rows and histograms that readers may rely on."""
    payload = hostile.changed_arrow(choices.one_of(seeds.arrow_streams()), choices)
    with suppress(WatchglassError):
        batch = room.decode_statistics(payload)
        assert all(len(column) == len(batch) for column in (batch.tensor_id, batch.calls, batch.values, batch.origin))
        if batch.histograms is not None:
            low, high = edges(batch.histograms.keys)
            assert (low < high).all()
            assert batch.histograms.offsets[-1] == len(batch.histograms.counts)
            with np.errstate(all="ignore"):
                quantiles(batch.histograms, batch.values, [0.0, 0.5, 1.0])
    with suppress(WatchglassError):
        room.decode_histograms(payload)


def made_statistics(choices: Choices) -> None:
    """The same for sound Arrow of another meaning: other types, nulls, columns twice, several batches, none."""
    import pyarrow as pa

    with pa.ipc.open_stream(seeds.arrow_streams()[0]) as stream:
        table = stream.read_all()
    names, columns = list(table.schema.names), [column.combine_chunks() for column in table.columns]
    for _ in range(1 + choices.number(2)):
        at, n = choices.number(len(names)), len(table)
        how = choices.number(8)
        given = columns[at]
        made: Any = [
            lambda: pa.array(np.arange(n, dtype=choices.one_of(["i1", "u2", "f4", "f8", "i8", "?"]))),
            lambda: pa.nulls(n, given.type),
            lambda: pa.array([[1]] * n),
            lambda: pa.array([str(hostile.TEXTS[1])] * n),
            lambda: pa.array(["x"] * n).dictionary_encode(),
            lambda: pa.array(np.full(n, choices.one_of(hostile.EDGES), "u8")),
            lambda: given,
            lambda: pa.array(np.full(n, choices.one_of([np.nan, np.inf, -1.0, 1e300]))),
        ][how]  # fmt: skip
        with suppress(pa.ArrowInvalid, pa.ArrowNotImplementedError, TypeError, ValueError):
            columns[at] = made()
        if how == 6:
            names[at] = choices.one_of(names)
    sink = pa.BufferOutputStream()
    made_table = pa.Table.from_arrays(columns, names=names)
    with pa.ipc.new_stream(sink, made_table.schema) as out:
        for _ in range(choices.number(3)):
            out.write_table(made_table)
        out.write_table(made_table)
    payload = sink.getvalue().to_pybytes()
    for decode in (room.decode_statistics, room.decode_histograms):
        with suppress(WatchglassError):
            decode(payload)


def tables(choices: Choices) -> None:
    """What one worker recorded, from frames in any order and state: everything can be asked for."""
    segments = sorted(path for path, data in seeds.files().items() if data[:4] == b"WGF1" and "segments" in path)
    found = WorkerTables()
    for _ in range(1 + choices.number(3)):
        data = hostile.changed_segment(seeds.files()[choices.one_of(segments)], choices)
        for frame in room.scan(data, source="segment").frames:
            found.ingest(Frame(frame.kind, frame.schema, frame.payload, frame.offset, frame.source))
    for step in sorted(found.steps)[:20]:
        found.step_rows(step, found.catalog), found.facts(step)
        rows = found.statistics.at(step)
        if rows.histograms is not None:
            rows.histograms.get()
    found.facts()
    for row in list(found.catalog)[:50]:
        found.captured(row.tensor_id), found.scalar_history(row.tensor_id), found.statistics.of_tensor(row.tensor_id)
    assert all(problem.path == "segment" and problem.offset >= 0 for problem in found.problems)
    assert all(len(problem.what) < 2000 and "\n" not in problem.what for problem in found.problems)


def raw_tensors(choices: Choices) -> None:
    """load_tensor: an array of what is in the file, or an error."""
    store = _store()
    data = hostile.changed_safetensors(seeds.file(".safetensors"), choices)
    store.write("x.safetensors", data, replace=True)
    keys = [*json.loads(seeds.file(".safetensors")[8:].split(b"}}")[0] + b"}}"), "__metadata__", "", "x"]
    with suppress(WatchglassError):
        array = room.as_numbers(room.load_tensor(store, "x.safetensors", choices.one_of(keys)))
        assert array.nbytes <= 4 * len(data)


def manifests(choices: Choices) -> None:
    """run.json and attempt.json."""
    store = _store()
    store.write("run.json", hostile.changed_file("run.json", seeds.file("run.json"), choices), replace=True)
    record = hostile.changed_file("attempt.json", seeds.file("attempt.json"), choices)
    store.write("attempts/0000/attempt.json", record, replace=True)
    with suppress(WatchglassError):
        manifest = room.read_manifest(store)
        assert all(isinstance(word, str) for word in (manifest.run_id, manifest.version, *manifest.command))
        json.dumps(manifest.to_json()), hash(manifest)
    with suppress(WatchglassError):
        room.create_attempt(store, "key")
    _empty(store, "attempts")


def claims(choices: Choices) -> None:
    """Claims of workers and of the journal: who they are, whether they live."""
    store = _store()
    sound = json.loads(seeds.file("worker_0.json"))
    sound["rings"] = ["/etc/passwd", "../x.rows", "attempts/0000/.a.entries", str(store.root / "watchglass-0/x.rows")]
    for path in ("attempts/0000/workers/worker_0.json", "attempts/0000/workers/worker_0.json.1", "journal/lease"):
        store.write(path, hostile.changed_json(sound, choices), replace=True)
    with suppress(WatchglassError):
        for claim in room.read_claims(store, 0).values():
            room.is_alive(claim), room.rings_exist(store, claim.rings), hash(claim)
            with suppress(WatchglassError):
                room.read_rings(store, claim.rings, {"run": "r", "attempt": 0, "worker": "worker_0"})
    with suppress(WatchglassError):
        room.claims_of_workers(store, 0)
    with suppress(WatchglassError):
        room.lease_holder(store)
    with suppress(WatchglassError):
        room.claim_worker(store, 0, "worker_0")
    _empty(store, "attempts/0000/workers")


def configuration(choices: Choices) -> None:
    """Settings from a file: the original's JSON, and TOML."""
    from watchglass.config import SessionConfig, read_file

    sound = {
        "S3OutputPath": "s3://x", "LocalPath": "/x",
        "HookParameters": {"save_interval": "10", "include_regex": "a,b", "train.save_interval": "3"},
        "CollectionConfigurations": [
            {"CollectionName": "mine", "CollectionParameters": {"include_regex": "x", "save_steps": "1,2"}}
        ],
    }  # fmt: skip
    path = seeds.scratch() / ("watchglass.toml" if choices.rarely() else "hook.json")
    text = b'save_interval = 3\n[[collections]]\nname = "a"\ninclude_regex = ["x"]\n'
    made = hostile.changed_bytes(text, choices) if path.suffix == ".toml" else hostile.changed_json(sound, choices)
    path.write_bytes(made)
    with suppress(WatchglassError):
        SessionConfig.merged("", read_file(path))


def terminal_text(choices: Choices) -> None:
    """printable: one line without anything that steers a terminal or a runner of CI, or hides text."""
    from watchglass.view import printable

    text = choices.content(40).decode(choices.one_of(["latin-1", "utf-16-le", "utf-8"]), errors="replace")
    text += choices.one_of(hostile.TEXTS)
    shown = printable(text)
    assert shown.isprintable()
    assert not shown.lstrip().startswith("::")
    assert "##[" not in shown
    assert len(shown) <= 12 * len(text)
    shown.encode()


def stops(choices: Choices) -> None:
    """What a training run and an evaluator read under control/."""
    from watchglass.actions import Stopping
    from watchglass.control import StoreMailbox, WorkerProgress
    from watchglass.records import Finding, Mode, Severity

    store = _store()
    answer = hostile.changed_file("seen", seeds.file("seen/worker_0"), choices)
    store.write("control/stop/0000/0000/seen/worker_0", answer, replace=True)
    for name in ("request", "commit"):
        store.write(f"control/stop/0000/0000/{name}", answer, replace=True)
    with suppress(WatchglassError):
        StoreMailbox(store, 0, "worker_1").poll(3)
    _empty(store, "control")
    store.write("control/stop/0000/0000/seen/worker_0", answer, replace=True)
    action = Stopping(store, 0, send_signal=lambda worker, number: "")
    action.found(
        Finding("a", "R", Severity.ERROR, 0, 0, 1, Mode.TRAIN, "worker_0", (), None, None, "m", attempt=0)
    )  # fmt: skip
    action.tick([WorkerProgress("worker_0", True, 3, 0.1, None)])
    _empty(store, "control")


def _store() -> LocalStore:
    return LocalStore(seeds.scratch() / f"store-{os.getpid()}")


def _empty(store: LocalStore, folder: str) -> None:
    for entry in store.list(folder):
        store.delete(entry.path)


TARGETS: dict[str, Target] = {
    target.__name__: target
    for target in (
        frames, json_frames, fixed_rows, statistics, made_statistics, tables, raw_tensors, manifests, claims,
        configuration, terminal_text, stops, encoded_arrays, stored_samples, parquet, generations, run_compacted,
        run_exported, run_api, run_replayed, run_harvest, run_command, run_report, run_among_many,
    )
}  # fmt: skip
