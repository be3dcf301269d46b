"""The numbers of training steps, as trackers take them: names and values by step."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from watchglass.records import PHASES, REDUCTIONS, SCALARS, STATISTIC_FIELDS, Reduction, Role
from watchglass.stats import Histograms, column
from watchglass.tables import RowLog, WorkerTables

#: Reductions of each tensor that are written as scalars.
SHOWN = ("mean", "std", "min", "max", "l2", "zero_ratio")


@dataclass
class OfTensors:
    """The tensors of a step."""

    scalars: list[tuple[str, float]] = field(default_factory=list)  #: Names of reductions, and their values.
    #: Name of a tensor, histograms of many, which of them is that of the tensor, and its row of statistics.
    histograms: list[tuple[str, Histograms, int, NDArray[np.float64]]] = field(default_factory=list)


def statistics_of(tables: WorkerTables, own: NDArray[np.uint64], *, histograms: bool) -> dict[int, OfTensors]:
    """The statistics of tensors at some steps, which ascend, by place of the step; steps without any are missing."""
    batch = tables.statistics.read(
        global_steps=(int(own[0]), int(own[-1]) + 1), fields=STATISTIC_FIELDS, histograms=histograms
    )
    place = np.searchsorted(own, batch.global_step)
    known = own[np.minimum(place, len(own) - 1)] == batch.global_step
    batch, place = batch.take(known), place[known]
    if not len(batch):
        return {}
    ids, which = np.unique(batch.tensor_id, return_inverse=True)
    names = [_tag(tables, int(each)) for each in ids]
    tags = [[f"{name}/{each}" for each in SHOWN] for name in names]
    values = np.stack([column(batch.values, each) for each in SHOWN], axis=1).tolist()
    bad = column(batch.values, "nonfinite").tolist()
    found = {at: OfTensors() for at in np.unique(place).tolist()}
    for row, (at, tensor) in enumerate(zip(place.tolist(), which.tolist(), strict=True)):
        found[at].scalars.extend(zip(tags[tensor], values[row], strict=True))
        if bad[row]:
            found[at].scalars.append((f"{names[tensor]}/nonfinite", bad[row]))
    bins = batch.histograms if batch.histograms is not None else Histograms.none(len(batch))
    for row in np.flatnonzero(bins.seen > 0).tolist():
        found[int(place[row])].histograms.append((names[which[row]], bins, row, batch.values[row]))
    return found


def scalars_of(tables: WorkerTables, own: NDArray[np.uint64]) -> list[list[tuple[str, float]]]:
    """The scalars, exact reductions and phases of each of some steps, which ascend."""
    places, tags, values = [np.empty(0, np.intp)], [np.empty(0, object)], [np.empty(0)]
    for kind, named in ((SCALARS, _of_scalars), (REDUCTIONS, _of_reductions)):
        rows, place = _among(tables.log(kind), kind.unique, own)
        places.append(place)
        tags.append(named(tables, rows))
        values.append(rows["value"].astype(np.float64))
    rows, place = _among(tables.log(PHASES), PHASES.unique, own)
    for phase in PHASES.own:
        places.append(place)
        tags.append(np.full(len(rows), f"phases/{phase.name}", object))
        values.append(rows[phase.name].astype(np.float64))
    order = np.argsort(np.concatenate(places), kind="stable")
    begins = np.searchsorted(np.concatenate(places)[order], np.arange(len(own) + 1)).tolist()
    pairs = list(zip(np.concatenate(tags)[order].tolist(), np.concatenate(values)[order].tolist(), strict=True))
    return [pairs[begin:end] for begin, end in pairwise(begins)]


def _among(
    log: RowLog, unique: tuple[str, ...] | None, own: NDArray[np.uint64]
) -> tuple[NDArray[Any], NDArray[np.intp]]:
    """The rows of these steps, each once, and the place of the step of each."""
    rows = log.without(int(own[0])).rows
    rows = RowLog(rows.dtype, log.key).and_then(rows[rows[log.key] <= own[-1]]).unique(unique)
    place = np.searchsorted(own, rows[log.key])
    known = own[np.minimum(place, len(own) - 1)] == rows[log.key]
    return rows[known], place[known]


def _of_scalars(tables: WorkerTables, rows: NDArray[Any]) -> NDArray[Any]:
    ids, which = np.unique(rows["tensor_id"], return_inverse=True)
    names = [info.name if (info := tables.catalog.get(int(each))) is not None else str(each) for each in ids]
    return np.array(names, object)[which]


def _of_reductions(tables: WorkerTables, rows: NDArray[Any]) -> NDArray[Any]:
    words = {int(each): each.name.lower() for each in Reduction}
    names = {int(each): _tag(tables, int(each)) for each in np.unique(rows["tensor_id"])}
    pairs = zip(rows["tensor_id"].tolist(), rows["reduction"].tolist(), strict=True)
    return np.array([f"{names[tensor]}/{words.get(which, which)}" for tensor, which in pairs], object)


def _tag(tables: WorkerTables, tensor_id: int) -> str:
    """Its name behind its role: TensorBoard groups by the first part of a tag."""
    info = tables.catalog.get(tensor_id)
    if info is None:
        return str(tensor_id)
    role = info.role.value
    return info.name if info.role is Role.CUSTOM or info.name.startswith(f"{role}/") else f"{role}/{info.name}"
