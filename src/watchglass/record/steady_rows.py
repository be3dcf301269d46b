"""Steps as rows of a few numbers: how most steps of a run are recorded, in as little time as possible."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from watchglass.record.merging import resolved
from watchglass.record.open_steps import CapturedRecords, OpenStep
from watchglass.records import PHASES, SCALARS, STEPS, Mode, RowKind
from watchglass.store import ABSENT, ABSENT_BITS, dtype_of, is_absent

#: Bytes that a :class:`SteadyRow` counts in the queue.
STEADY_ROW_BYTES = 128
#: Bits of the step's number in a row of the flight recorder; the number of the trained model is in the bits above.
_STEP_BITS = 48


class SteadyRow(NamedTuple):
    """A TRAIN step of which only these are known, as most steps of a run."""

    global_step: int  #: As in :class:`~watchglass.records.StepEnd`.
    mode_step: int  #: Also its ``train_step``.
    start_ns: int  #: Worker's monotonic clock when it began.
    end_ns: int  #: The same when it ended.
    #: The loss, a float or a :class:`Readback` of one; :data:`~watchglass.store.ABSENT` where it is not known.
    loss: Any
    learning_rate: float  #: The one optimizer's learning rate; the same where it is not known, or the script updates.
    weight: float  #: What the loss counts when it is averaged: samples.
    #: Time of a :class:`~watchglass.records.StepPhase`, and so on; all 0 where phases are not recorded.
    data_ns: int = 0
    prepare_ns: int = 0
    copy_ns: int = 0
    forward_ns: int = 0
    backward_ns: int = 0
    update_ns: int = 0
    compute_ns: int = 0
    other_ns: int = 0

    def opened(self, records: CapturedRecords, ids: tuple[int, int]) -> OpenStep:
        """The same as a step with records, to which its numbers are added.

        Args:
            records: What else was recorded of it.
            ids: Tensor ids of its loss and its learning rate.
        """
        if type(self.loss) is not float or not is_absent(self.loss):
            records.rows[SCALARS].append((ids[0], self.weight, self.loss))
        if not is_absent(self.learning_rate):
            records.rows[SCALARS].append((ids[1], 1.0, self.learning_rate))
        if any(self[_FIRST_PHASE:]):
            records.rows[PHASES].append(tuple([spent_ns / 1e9 for spent_ns in self[_FIRST_PHASE:]]))
        return OpenStep(
            self.global_step, Mode.TRAIN, self.mode_step, self.mode_step, self.start_ns,
            updated=True, end_ns=self.end_ns, records=records,
        )  # fmt: skip


_FIRST_PHASE = SteadyRow._fields.index("data_ns")


def steady_tables(rows: Sequence[Any], ids: tuple[int, int]) -> dict[RowKind, NDArray[Any]]:
    """The rows of all kinds that such steps have; empty where there are none.

    Args:
        rows: The fields of a :class:`SteadyRow` each.
        ids: Tensor ids of their loss and their learning rate.
    """
    if not rows:
        return {}
    columns = dict(zip(SteadyRow._fields, zip(*rows, strict=True), strict=True))
    columns["loss"] = tuple([loss if type(loss) is float else float(resolved(loss)) for loss in columns["loss"]])
    floats = ("loss", "learning_rate", "weight")
    steady = {name: np.array(column, "f8" if name in floats else "i8") for name, column in columns.items()}

    ends = np.zeros(len(rows), dtype_of(STEPS))
    for name in ("global_step", "mode_step", "start_ns"):
        ends[name] = steady[name]
    ends["train_step"] = steady["mode_step"]
    ends["end_ns"] = np.maximum(steady["end_ns"], steady["start_ns"])
    ends["mode"] = Mode.TRAIN

    scalars = np.zeros((len(rows), 2), dtype_of(SCALARS))
    scalars["global_step"] = steady["global_step"][:, None]
    scalars["tensor_id"] = ids
    scalars["weight"] = 1.0
    scalars["weight"][:, 0] = steady["weight"]
    scalars["value"] = np.stack([steady["loss"], steady["learning_rate"]], axis=1)
    scalars = scalars[np.ascontiguousarray(scalars["value"]).view("u8") != ABSENT_BITS]

    phases = np.zeros(len(rows), dtype_of(PHASES))
    phases["global_step"] = steady["global_step"]
    for field, name in zip(PHASES.own, SteadyRow._fields[_FIRST_PHASE:], strict=True):
        phases[field.name] = steady[name] / 1e9
    return {STEPS: ends, SCALARS: scalars, PHASES: phases[np.any([phases[each.name] > 0 for each in PHASES.own], 0)]}


def ring_row(step: OpenStep, ids: tuple[int, int]) -> tuple[Any, ...]:
    """A step, open or finished, as the flight recorder keeps it at once: from what was recorded of it so far."""
    mean, total, rate = ABSENT, 0.0, ABSENT
    captured = [forward.records for forward in step.forwards if forward.has_records]
    for records in (*captured, step.records):
        for tensor_id, weight, value in records.rows.get(SCALARS, ()):
            if type(value) is not float:
                continue
            if tensor_id == ids[0]:
                # The mean over micro-batches, as the encoder takes it.
                mean = (total * mean + weight * value) / (total + weight) if total and total + weight else value
                total += weight
            elif tensor_id == ids[1]:
                rate = value
    numbered = step.mode_step | step.model << _STEP_BITS
    return step.global_step, numbered, step.start_ns, max(step.end_ns, step.start_ns), mean, rate, total


def recovered_row(row: Any, ids: tuple[int, int]) -> OpenStep:
    """A step of which only the row of :func:`ring_row` is left, as :func:`watchglass.store.read_rings` gives it.

    Args:
        row: The row.
        ids: Tensor ids of its loss and its learning rate; 0 for none.
    """
    numbered, start_ns, end_ns = (int(row[name]) for name in ("mode_step", "start_ns", "end_ns"))
    loss, rate = (
        float(row[name]) if tensor_id and row[name].view("u8") != ABSENT_BITS else ABSENT
        for name, tensor_id in zip(("loss", "learning_rate"), ids, strict=True)
    )
    mode_step = numbered & ((1 << _STEP_BITS) - 1)
    known = SteadyRow(int(row["global_step"]), mode_step, start_ns, end_ns, loss, rate, float(row["weight"]))
    step = known.opened(CapturedRecords(), ids)
    step.model = numbered >> _STEP_BITS
    return step
