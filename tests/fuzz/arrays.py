"""Rows with arrays and texts, as streams of samples have them: bit planes, lengths and layouts that are hostile."""

from __future__ import annotations

import json
import warnings
import zlib
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fuzz import hostile
from fuzz.choices import Choices
from watchglass import store as room
from watchglass.errors import DamagedDataError
from watchglass.records import NOTES, SAMPLES, UNITS, RowKind
from watchglass.run.samples import long_form
from watchglass.store import Frame
from watchglass.tables import metrics_in, series_of
from watchglass.tables.samples import StoredSamples

_LAYOUTS: tuple[Any, ...] = (
    [["cpu.utilization", "%"]],
    [["cpu.utilization", "%"], ["cpu.core.utilization", "%", ["0", "1", "2"]]],
    [["gpu.memory", "B", ["0", "1"]], ["cpu.utilization", "%"]],
)
_KINDS = (SAMPLES, UNITS, NOTES)


@cache
def _sound(kind: RowKind) -> tuple[NDArray[Any], ...]:
    """Tables of a kind: arrays of one length, of several, and empty ones."""
    generator = np.random.default_rng(0)
    tables = []
    for lengths in ([4] * 9, [1, 4, 3, 0, 17], [0, 0], []):
        rows: list[Sequence[Any]] = []
        for number, length in enumerate(lengths):
            if kind is SAMPLES:
                layout = json.dumps(_LAYOUTS[(1, 0, 2)[number % 3] if len(set(lengths)) > 1 else 1])
                values = (100 * generator.random(length)).astype(np.float32)
                rows.append((1000 + number, layout, values))
            elif kind is UNITS:
                rows.append((number, 7, 1, generator.random(length) < 0.5))
            else:
                rows.append((1000 + number, "cpu", "failed", "ü" * length))
        tables.append(room.table_of(kind, rows))
    return tuple(tables)


def encoded_arrays(choices: Choices) -> None:
    """decode_rows of columns: the values that were written, or whole rows of the declared types, or an error."""
    kind = choices.one_of(_KINDS)
    table = choices.one_of(_sound(kind))
    payload = _payload(kind, table)
    _same(table, room.decode_rows(kind, payload))
    changed = _changed(payload, choices)
    with suppress(DamagedDataError):
        found = room.decode_rows(kind, changed)
        assert len(found) <= 1032 * len(changed)  # the most that deflate makes of a byte
        if changed == payload:
            _same(table, found)
        for field in kind.fields:
            for value in found[field.name][:50] if field.array else ():
                assert value.ndim == 1
                assert value.dtype == ("?" if field.type == "bool" else "<f4")
            if field.type == "text":
                assert all(isinstance(value, str) for value in found[field.name])
        _same(found, room.decode_rows(kind, _payload(kind, found)))


def stored_samples(choices: Choices) -> None:
    """Frames of samples in any order and state: every metric has a series, and none of them a surprise."""
    stored = StoredSamples()
    segment = b"".join(room.encode_rows(SAMPLES, table) for table in (*_sound(SAMPLES), *_hostile_layouts(choices)))
    data = hostile.changed_segment(segment, choices) if choices.number(4) else segment
    for frame in room.scan(data, source="segment").frames:
        payload = _changed(frame.payload, choices) if choices.rarely() else frame.payload
        begin = choices.one_of((0, 1000, 1004, (1 << 63) - 1))
        stored.add(Frame(frame.kind, frame.schema, payload, frame.offset, frame.source), begin, 1 << 63)
    rows = stored.rows(every=1 + choices.number(3))
    assert sum(map(len, stored.pieces(1 + choices.number(5)))) >= len(rows)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in list(metrics_in(rows))[:20]:
            series = series_of(rows, name)
            assert series.values.shape == (len(series.time_ns), len(series.instances))
            assert (np.diff(series.time_ns) >= 0).all()
            assert len(series.mean_of_instances) == len(series.time_ns)
        assert len({len(column) for column in long_form(rows)}) == 1
    assert all(problem.path == "segment" and len(problem.what) < 2000 for problem in stored.problems)


def _hostile_layouts(choices: Choices) -> list[NDArray[Any]]:
    """Rows whose layout is hostile, with as many values as it might have."""
    found = []
    for _ in range(choices.number(3)):
        layout = hostile.changed_json(choices.one_of(_LAYOUTS), choices).decode(errors="replace")
        values = np.frombuffer(choices.content(24).ljust(24, b"\0"), "<f4")[: choices.number(7)]
        found.append(room.table_of(SAMPLES, [(2000, layout, values), (2001, layout, values)]))
    return found


def _payload(kind: RowKind, table: NDArray[Any]) -> bytes:
    (frame,) = room.scan(room.encode_rows(kind, table)).frames
    return frame.payload


def _changed(payload: bytes, choices: Choices) -> bytes:
    """A payload of columns that are changed before or after they are compressed."""
    if len(payload) < 8 or choices.rarely():
        return hostile.changed_bytes(payload, choices)
    count, size = payload[:4], payload[4:8]
    try:
        body = zlib.decompress(payload[8:])
    except zlib.error:  # an earlier change broke it
        return hostile.changed_bytes(payload, choices)
    how = choices.number(5)
    if how == 0:
        count = choices.one_of(hostile.EDGES).to_bytes(8, "little")[:4]
    elif how == 1:
        body = hostile.changed_bytes(body, choices) * (1 << choices.number(12))
    elif how == 2:
        body += bytes(choices.one_of((1, 8, 1 << 16, 1 << 22, 64 << 20)))
        count = (choices.one_of((1, 2, 8, 16, 17, 20)) and len(body) // 17).to_bytes(4, "little")
    elif how == 3:
        body = hostile.changed_bytes(body, choices)
    size = size if choices.rarely() else (len(body) & 2**32 - 1).to_bytes(4, "little")
    return count + size + zlib.compress(body, 1)


def _same(table: NDArray[Any], found: NDArray[Any]) -> None:
    """Assert that rows are equal to the last bit."""
    assert len(found) == len(table)
    for name in table.dtype.names or ():
        for one, other in zip(table[name].tolist(), found[name].tolist(), strict=True):
            if isinstance(one, np.ndarray):
                assert one.tobytes() == other.tobytes()
            else:
                assert one == other
