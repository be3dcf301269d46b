"""The fact ``update_sample`` as columns. Pure functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from watchglass.records import ModuleKind, facts
from watchglass.tables import StepView

Column = npt.NDArray[np.float64]


@dataclass(frozen=True)
class SampledUpdates:
    """One sample of the updates of an optimizer: columns with a row for each weight with two or more axes."""

    names: list[str]  #: Names of the weights.
    dtypes: list[str]  #: Their dtypes.
    #: Settings of the group of each: ``lr``, ``weight_decay``, ``decoupled``, ``eps``, ``maximize``.
    settings: list[facts.UpdateGroup]
    columns: dict[str, Column]  #: The other columns by name; NaN for unknown values.
    since: int  #: Steps since the sample before, 0 for the first one.

    def __getitem__(self, name: str) -> Column:
        """A column."""
        known = self.columns.get(name)
        return np.full(len(self.names), np.nan) if known is None else known

    def setting(self, name: str) -> Column:
        """A number of the settings; NaN where it is unknown."""
        return _numbers([getattr(each, name) for each in self.settings])

    def ratio(self) -> Column:
        """Root mean square of the update over that of the weight."""
        with np.errstate(all="ignore"):
            return self["update"] / self["weight"]


def sampled_updates(view: StepView, *, vectors: bool = False) -> list[SampledUpdates]:
    """The samples of this step that are about weights with two or more axes of this model, without embeddings.

    Args:
        view: The step.
        vectors: Whether to take those with one axis where an optimizer has no others.
    """
    found = (_of(fact, vectors) for fact in view.facts(facts.UpdateSample))
    return [sample for sample in found if sample is not None]


def _of(fact: facts.UpdateSample, vectors: bool) -> SampledUpdates | None:
    least = 0 if vectors and max(fact.dims, default=0) < 2 else 2
    kinds = zip(fact.dims, fact.kind, strict=False)
    chosen = [row for row, (dims, kind) in enumerate(kinds) if dims >= least and kind != ModuleKind.EMBEDDING.value]
    if not chosen:
        return None
    columns = {
        name: _numbers([values[row] for row in chosen])
        for name, values in vars(fact).items()
        if name not in _OTHERS and len(values) == len(fact.tensors)
    }
    settings = [fact.groups[fact.group[row]] for row in chosen]
    return SampledUpdates(
        [fact.tensors[row] for row in chosen], [fact.dtype[row] for row in chosen], settings, columns, fact.since or 0
    )


_OTHERS = ("optimizer", "since", "tensors", "dtype", "kind", "groups", "group")


def _numbers(values: list[Any]) -> Column:
    return np.array([np.nan if value is None else float(value) for value in values])


def middle(values: Column) -> float:
    """The median of the known values; NaN where none is known."""
    known = values[np.isfinite(values)]
    return float(np.median(known)) if len(known) else float("nan")


def share(condition: npt.NDArray[np.bool_], known: npt.NDArray[np.bool_]) -> float:
    """Share of the known rows for which a condition holds; 0 where none is known."""
    total = int(np.count_nonzero(known))
    return int(np.count_nonzero(condition & known)) / total if total else 0.0
