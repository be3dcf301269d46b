"""What the flight recorder keeps of a step is what the encoder would have made of it."""

from __future__ import annotations

import dataclasses
import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from resource_limits import largest_file
from watchglass.errors import DamagedDataError
from watchglass.record import Captured, CapturedRecords, OpenStep
from watchglass.record.flight_recorder import FlightRecorder, pack, settle, unpack
from watchglass.record.open_steps import Forward
from watchglass.record.steady_rows import SteadyRow
from watchglass.record.step_encoding import encode_steps
from watchglass.records import (
    FACTS,
    LOADER_WORKERS,
    PAUSES,
    PHASES,
    RAW,
    REDUCTIONS,
    SCALARS,
    STATISTICS,
    UNITS,
    Mode,
    Pause,
    Reduction,
    Role,
    TensorInfo,
    UnitKind,
    of_steps,
)
from watchglass.stats import Histograms, histograms_of, of_array
from watchglass.store import ABSENT, LocalStore, Rings, read_rings, scan
from watchglass.store.locked_files import HEADER_BYTES

LABEL = {"run": "r", "attempt": 0, "worker": "worker_0"}


class OnDevice:
    """A number or array that arrives later."""

    def __init__(self, value: Any) -> None:
        self.value, self.waited = value, 0

    def resolve(self) -> Any:
        self.waited += 1
        return self.value


def full_step(number: int = 7, *, device: bool = False) -> OpenStep:
    random = np.random.default_rng(number)
    later: Any = OnDevice if device else lambda value: value
    tensors = [random.normal(size=(4, 5)), random.normal(size=300) * 1e-300, np.array([np.nan, np.inf, 0.0])]
    rows = np.stack([of_array(tensor) for tensor in tensors])
    step = OpenStep(number, Mode.TRAIN, number - 1, number - 1, 10**15, updated=True, end_ns=10**15 + 77, model=3)
    step.records.rows |= {
        SCALARS: [(1, 32.0, later(0.1)), (1, 16.0, float("nan")), (2, 0.0, -np.inf), (3, 1.0, np.float64(5))],
        STATISTICS: [
            Captured([4, 5, 6], later(rows), False, later(histograms_of(tensors))),
            Captured([4, 9], later(rows[:2]), True, None),
            Captured([10], later(rows[2:]), False, Histograms.none(1)),
        ],
        REDUCTIONS: [(4, Reduction.MEDIAN, 0.25), (5, Reduction.PROD, float("inf"))],
        UNITS: [(4, UnitKind.INACTIVE, later(np.arange(13) % 3 == 0)), (5, UnitKind.INACTIVE, np.zeros(0, bool))],
        FACTS: [
            ("kind", "source", {"nan": float("nan"), 5: np.int64(3), "list": (1, "é", None)}),
            ("k", "", later({})),
        ],
        PHASES: [(0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.0, 0.7), (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0)],
        PAUSES: [(int(Pause.SAVE), 1, 1.0), (int(Pause.COLLECTION), 1, 0.5), (int(Pause.SAVE), 1, 0.25)],
        LOADER_WORKERS: [
            (1, 0, 2, 0.5, 0.1, 0.2, 0.2),
            (1, 0, 1, 0.3, 0.3, 0.3, 0.0),
            (2, -1, 3, np.nan, 1.0, 1.0, 1.0),
        ],
    }
    return step


@pytest.mark.parametrize("mode", [Mode.TRAIN, Mode.EVAL, Mode.PREDICT])
@pytest.mark.parametrize("device", [False, True])
def test_a_kept_step_is_encoded_to_the_same_bytes(mode: Mode, device: bool) -> None:
    step, expected = full_step(device=device), full_step()
    step.mode = expected.mode = mode
    settle(step.records)
    (back,) = unpack(pack(step))
    assert isinstance(back, OpenStep)
    assert encode_steps([back], [], lambda raw: []) == encode_steps([expected], [], lambda raw: [])


def test_every_field_of_a_step_is_kept() -> None:
    """A new kind of records must say here how it is recovered."""
    assert set(Captured._fields) == {"ids", "values", "sampled", "histograms"}
    assert {field.name for field in dataclasses.fields(CapturedRecords)} == {
        "rows",
        "series", "if_evaluated",  # named as the step ends, before it is kept
        "saved",  # among the rows before it is kept
    }  # fmt: skip
    assert set(full_step().records.rows) == set(of_steps()) - {RAW}  # these are too large: left out


def test_numbers_on_a_device_are_waited_for_once() -> None:
    step = full_step(device=True)
    values = step.records.rows[STATISTICS][0].values
    fact, none = OnDevice({"scale": 2.0}), OnDevice(None)
    step.records.rows[FACTS] = [("loss_scale", "", fact), ("step_skipped", "", none)]
    settle(step.records)
    settle(step.records)
    encode_steps([step], [], lambda raw: [])
    assert [later.waited for later in (values, fact, none)] == [1, 1, 1]
    assert step.records.rows[FACTS] == [("loss_scale", "", {"scale": 2.0})]


def test_a_step_with_nothing_in_it_is_kept() -> None:
    step = OpenStep(0, Mode.EVAL, 0, -1, 5)
    (back,) = unpack(pack(step))
    assert encode_steps([back], [], lambda raw: []) == encode_steps([step], [], lambda raw: [])  # type: ignore[list-item]


def step_entry(**changed: Any) -> bytes:
    """An entry of a step as anybody could write it."""
    arrays = changed.pop("arrays", [])
    text = json.dumps([{"step": [0, 1, 0, 0, 5, 6], "model": 0, "rows": {}, **changed}, arrays]).encode()
    return b"S" + len(text).to_bytes(4, "little") + text


@pytest.mark.parametrize(
    "changed",
    [{"step": [0, 1, "##[error]x", 0, 5, 6]}, {"step": [0, 1, 2**80, 0, 5, 6]}, {"arrays": [["<f8", [2**70]]]},
     *({"rows": {str(kind.number): [row]}, "arrays": [["<f8", [0]]]} for kind, row in [
        (SCALARS, ["x", 1.0, 1.0]), (SCALARS, [2**40, 1.0, 1.0]), (SCALARS, [1, 1.0, "x"]), (UNITS, [-1, 1, 0]),
        (UNITS, [1, 1, 1]), (STATISTICS, [[-1], 0, False, None]), (PHASES, [1.0, 2.0]), (PAUSES, [1, -1, 1.0]),
        (PAUSES, ["1", 1, 1.0]), (PAUSES, [1]), (LOADER_WORKERS, [1, 0, 1, 0.0, 0.0, 0.0]), (FACTS, 7),
     ]), {"rows": {"99": []}}],
)  # fmt: skip
def test_a_step_that_cannot_be_written_is_damaged(changed: dict[str, object]) -> None:
    """Otherwise a harvest would fail at it and recover nothing."""
    assert unpack(step_entry())
    with pytest.raises(DamagedDataError):
        unpack(step_entry(**changed))


@pytest.mark.parametrize("content", [b"", b"X", b"S", b"S\xff\xff\xff\xff", b"R123", pack(full_step())[:-9]])
def test_what_is_no_entry_is_damaged(content: bytes) -> None:
    with pytest.raises(DamagedDataError):
        unpack(content)


@pytest.fixture
def opened(tmp_path: Path) -> tuple[FlightRecorder, LocalStore, Rings]:
    (tmp_path / "memory").mkdir()
    (tmp_path / "attempts" / "0000").mkdir(parents=True)
    store = LocalStore(tmp_path)
    rings = Rings(store, LABEL, tmp_path / "memory")
    flight = FlightRecorder()
    flight.open(rings)
    return flight, store, rings


def info(tensor_id: int, name: str) -> TensorInfo:
    return TensorInfo(tensor_id, name, Role.LOSS)


@pytest.mark.parametrize("discard", [False, True])
def test_a_ring_that_keeps_nothing_more_is_left_or_removed_with_the_others(
    opened: tuple[FlightRecorder, LocalStore, Rings], discard: bool
) -> None:
    class NeverComes:
        def resolve(self) -> float:
            raise RuntimeError("device-side assert")

    flight, store, _ = opened
    flight.keep([full_step(0)], [])
    broken = full_step(1)
    broken.records.rows[SCALARS] = [(1, 1.0, NeverComes())]
    flight.keep([broken], [])
    flight.keep([full_step(2)], [])
    flight.close(discard=discard)
    files = list((store.root / "attempts" / "0000").glob(".*.entries"))
    assert len(files) == (not discard)
    if files:
        left = read_rings(store, [f"attempts/0000/{files[0].name}"], LABEL)
        assert [unpack(entry)[0].global_step for entry in left.entries] == [0]  # type: ignore[union-attr]


def test_steps_rows_and_tensors_come_back(opened: tuple[FlightRecorder, LocalStore, Rings]) -> None:
    flight, store, rings = opened
    rates = [0.1, 0.1, ABSENT, 0.1, ABSENT]
    rows = [SteadyRow(n, n, n, n + 1, OnDevice(0.5) if n % 2 else 0.25, rates[n], 8.0) for n in range(5)]
    for tensor in (info(1, "loss"), info(2, "learning_rate")):
        flight.name_tensor(tensor)
    flight.keep([*rows, full_step(device=True)], [info(1, "loss"), info(2, "learning_rate")])
    flight.close(discard=False)
    left = read_rings(store, rings.names, LABEL)
    entries = [unpack(entry) for entry in left.entries]
    assert entries[0] == [info(1, "loss"), info(2, "learning_rate")]
    losses = [0.5 if n % 2 else 0.25 for n in range(5)]
    scalars = [[(1, 8.0, losses[n]), *([(2, 1.0, 0.1)] if n in (0, 1, 3) else [])] for n in range(5)]
    assert [entry.records.rows for entry in entries[1]] == [{SCALARS: each} for each in scalars]  # type: ignore[union-attr]
    assert [(entry.global_step, entry.end_ns) for entry in entries[1]] == [(n, n + 1) for n in range(5)]  # type: ignore[union-attr]
    assert encode_steps(entries[2], [], lambda raw: []) == encode_steps([full_step()], [], lambda raw: [])  # type: ignore[arg-type]
    left.discard()


def test_a_row_holds_what_the_encoder_will_record(opened: tuple[FlightRecorder, LocalStore, Rings]) -> None:
    """Also of a step that is still open: its losses lie in its forwards, one for each micro-batch."""
    flight, store, rings = opened
    for tensor in (info(3, "loss"), info(4, "learning_rate"), info(5, "accuracy")):
        flight.name_tensor(tensor)
    step = OpenStep(9, Mode.TRAIN, 8, 8, 100, updated=True, end_ns=250)
    for loss, weight in ((1.0, 30.0), (3.0, 10.0), (0.125, 0.0)):
        forward = Forward(100, True)
        forward.records.rows[SCALARS] = [(3, weight, loss), (5, weight, 0.9)]
        step.forwards.append(forward)
    step.records.rows[SCALARS] = [(4, 1.0, 0.01)]
    flight.updated(step)
    closed = OpenStep(9, Mode.TRAIN, 8, 8, 100, updated=True, end_ns=250)
    for forward in step.forwards:
        closed.records.absorb(forward.records)
    closed.records.absorb(step.records)
    frames = scan(b"".join(encode_steps([closed], [], lambda raw: []))).frames
    recorded = np.frombuffer(frames[0].payload, [("step", "u8"), ("id", "u4"), ("weight", "f4"), ("value", "f8")])
    flight.close(discard=False)
    left = read_rings(store, rings.names, LABEL)
    assert left.ids == (3, 4)
    (row,) = left.rows
    assert (row["global_step"], row["mode_step"], row["start_ns"], row["end_ns"]) == (9, 8, 100, 250)
    (loss,) = recorded[recorded["id"] == 3]
    assert (row["loss"], row["weight"]) == (loss["value"], loss["weight"])
    assert row["learning_rate"] == 0.01
    left.discard()


def test_a_loss_on_a_device_is_not_waited_for_by_the_training(opened: tuple[FlightRecorder, LocalStore, Rings]) -> None:
    flight, store, rings = opened
    flight.name_tensor(info(3, "loss"))
    step = full_step()
    loss = OnDevice(0.5)
    step.records.rows[SCALARS] = [(3, 1.0, loss)]
    flight.finished(step)
    assert loss.waited == 0
    flight.close(discard=False)
    left = read_rings(store, rings.names, LABEL)
    assert left.rows["loss"].copy().view("u8").tolist() == np.array([ABSENT]).view("u8").tolist()
    left.discard()


def test_a_finished_step_has_one_row_and_an_evaluation_none(opened: tuple[FlightRecorder, LocalStore, Rings]) -> None:
    flight, store, rings = opened
    first, second = full_step(7), full_step(8)
    second.mode = Mode.EVAL
    flight.updated(first)
    flight.finished(first)
    flight.finished(second)
    flight.close(discard=False)
    left = read_rings(store, rings.names, LABEL)
    assert left.rows["global_step"].tolist() == [7]
    left.discard()


def test_of_a_step_that_is_too_large_the_small_things_are_kept(
    opened: tuple[FlightRecorder, LocalStore, Rings],
) -> None:
    flight, store, rings = opened
    step = full_step()
    count = 30_000
    step.records.rows[STATISTICS] = [Captured(list(range(count)), np.zeros((count, 11)))]
    flight.keep([step], [])
    flight.close(discard=False)
    left = read_rings(store, rings.names, LABEL)
    ((back,),) = [unpack(entry) for entry in left.entries]
    assert isinstance(back, OpenStep)
    assert back.records.rows[STATISTICS] == back.records.rows[UNITS] == []
    assert len(back.records.rows[SCALARS]) == 4
    assert back.records.rows[FACTS]
    left.discard()


def test_a_disk_that_fails_ends_the_entries_with_one_warning(
    opened: tuple[FlightRecorder, LocalStore, Rings], caplog: pytest.LogCaptureFixture
) -> None:
    flight, store, rings = opened
    flight.keep([full_step(7)], [])
    with caplog.at_level(logging.WARNING, "watchglass"), largest_file(HEADER_BYTES):
        for number in (8, 9):
            flight.keep([full_step(number)], [])
            flight.finished(full_step(number))
    assert ["the flight recorder is off" in record.message for record in caplog.records] == [True]
    flight.close(discard=False)
    left = read_rings(store, rings.names, LABEL)
    assert len(left.entries) == 1
    assert left.rows["global_step"].tolist() == [8, 9]
    left.discard()
