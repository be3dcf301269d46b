"""Inputs of tanh and sigmoid, with the units that saturate the function."""

from __future__ import annotations

from watchglass.capture.pytorch.saving.reduce import plain, units_beyond
from watchglass.capture.saving.saving import Item, Saving
from watchglass.record import CapturedRecords
from watchglass.records import UNITS, Role, UnitKind

#: By tag, the inputs beyond which the function is constant, as SageMaker Debugger documents them.
_LIMITS = {"tanh_input": (-9.4999, 9.4999), "sigmoid_input": (-23.0, 16.99999)}


def save_input(saving: Saving, records: CapturedRecords, item: Item) -> None:
    """Save an input of a module; of tanh and sigmoid also which units lie beyond the limits of the function."""
    tensor_id = saving.save(records, Role.INPUT, item)
    limits = next((_LIMITS[tag] for tag in item.tags if tag in _LIMITS), None)
    if tensor_id is None or limits is None or item.unit_axis is None:
        return
    values = plain(item.tensor)
    if values is not None and values.numel():
        records.rows[UNITS].append((tensor_id, UnitKind.SATURATED, units_beyond(values, item.unit_axis, *limits)))
