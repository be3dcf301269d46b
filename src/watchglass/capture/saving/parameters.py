"""Parameters of any framework and their gradients: saved by plan, with exact updates and the gradient norm."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from watchglass.capture.arrays import DeferredNumbers
from watchglass.capture.module_places import ParameterPlace
from watchglass.capture.port import Port
from watchglass.capture.saving.exact_updates import Updates
from watchglass.capture.saving.saving import Item, Saving
from watchglass.record import CapturedRecords, Readback
from watchglass.records import SCALARS, STATISTIC_FIELDS, STATISTICS, Role, TensorInfo, facts, series_name
from watchglass.stats import Rows

_MAX_NAMED = 32
#: Also ``in_proj_bias`` of attention and ``bias_hh_l0`` of recurrent modules.
_BIAS = re.compile("(^|_)bias(_|$)")
_NAN, _NEGINF, _L2 = (STATISTIC_FIELDS.index(name) for name in ("nan", "neginf", "l2"))

#: Parameters or gradients, each with the parameter's name and place.
Named = Sequence[tuple[Any, str, ParameterPlace]]
#: Parameters as they are saved: without biases, and the biases.
Items = tuple[list[Item], list[Item]]


class Parameters:
    """Saves the parameters that an optimizer updates. For the training thread.

    Args:
        port: Where they go.
        saving: Saves them; None for one that reads arrays of any framework.
    """

    def __init__(self, port: Port, saving: Saving | None = None) -> None:
        self._port = port
        self._saving = saving or Saving(port.plan, port.ids, port.cost)
        self.updates = Updates(port, self._saving)  #: Of the weights that were saved last.

    def before_update(
        self, records: CapturedRecords, optimizer: Any, parameters: Named, items: Items | None = None,
        is_trained: Callable[[Any], bool] = lambda parameter: True,
    ) -> None:  # fmt: skip
        """Save weights before an update, and copy those whose change is to be saved.

        Args:
            records: Records of the step.
            optimizer: What updates them.
            parameters: All parameters of the optimizer.
            items: The same, if they are known from an earlier step.
            is_trained: Whether the optimizer may change a parameter.
        """
        weights, biases = items or items_of(parameters)
        self._saving.save_all(records, Role.WEIGHT, weights)
        self._saving.save_all(records, Role.BIAS, biases)
        if self._port.plan.wants(Role.UPDATE):
            self.updates.take(records, optimizer, (row for row in parameters if is_trained(row[0])))

    def gradients(self, records: CapturedRecords, gradients: Named, scale: Any = None) -> Rows | Readback | None:
        """Save gradients; returns their rows of statistics, in order, where all were read together.

        Args:
            records: Records of the step.
            gradients: The gradients.
            scale: Factor of a scaler, or None.
        """
        items = [_item(gradient, f"gradient/{name}", place) for gradient, name, place in gradients]
        saved = self._saving.save_all(records, Role.GRADIENT, items, scale)
        captured = records.rows[STATISTICS][-1] if saved and records.rows[STATISTICS] else None
        rows: Rows | Readback | None = captured.values if captured and len(captured.ids) == len(gradients) else None
        return rows

    def norm(
        self, records: CapturedRecords, rows: Rows | Readback, names: Sequence[str], *, sharded: bool = False,
        model: int = 0,
    ) -> list[str] | LateGradients:  # fmt: skip
        """Record the total norm of some gradients; returns the names of those that are not finite, in order.

        Nothing is waited for here, so of a readback the names come late.

        Args:
            records: Where to.
            rows: Statistics of the gradients.
            names: Of their parameters.
            sharded: Whether they are only parts of gradients.
            model: Number of the model whose norm it is.
        """
        if isinstance(rows, np.ndarray):
            self.add_norm(records, _total(rows), sharded, model)
            return [names[int(index)] for index in np.flatnonzero(_is_bad(rows))]
        late = rows
        self.add_norm(records, DeferredNumbers(lambda: _total(late.resolve())), sharded, model)
        norms = DeferredNumbers(lambda: np.where(_is_bad(found := late.resolve()), np.nan, found[:, _L2]))
        return LateGradients([(norms, list(range(len(names))))], names)

    def norm_of(self, records: CapturedRecords, model: int) -> Any:
        """The norm of the gradients of a model, which may come later; None where it is not recorded."""
        known_id = self._port.ids.known(series_name("gradient_norm", model))
        return next((norm for tensor_id, _, norm in records.rows[SCALARS] if tensor_id == known_id), None)

    def add_norm(self, records: CapturedRecords, norm: Any, sharded: bool, model: int) -> None:
        """Record the norm of one optimizer's gradients; with those of others of the model it becomes one norm."""
        scalars, name = records.rows[SCALARS], series_name("gradient_norm", model)
        known_id = self._port.ids.known(name)
        for at, (tensor_id, weight, known) in enumerate(scalars):
            if tensor_id == known_id:
                scalars[at] = (tensor_id, weight, joined_norm(known, norm))
                return
        if sharded:
            self._port.ids.of(
                name,
                lambda: TensorInfo(0, name, Role.METRIC, dtype="float64", placement="partial", model=model),
            )
        self._port.add_scalar(records, "gradient_norm", norm, Role.METRIC, model=model)


class LateGradients:
    """The gradients on a device that are not finite: known once their norms have arrived.

    Args:
        norms: Norms, as they come together, each with the places of its gradients in ``names``.
        names: Of the gradients' parameters.
    """

    def __init__(self, norms: Sequence[tuple[Readback, list[int]]], names: Sequence[str]) -> None:
        self._norms = norms
        self._names = names

    def bad(self) -> list[str]:
        """Those that are not finite, in order of the model. Waits for the device."""
        found = [index for norms, indices in self._norms for index in np.array(indices)[~np.isfinite(norms.resolve())]]
        return [self._names[index] for index in sorted(found)]

    def describe(self) -> facts.NonfiniteGradients | None:
        """The fact about them, None where all are finite. Waits for the device."""
        bad = self.bad()
        return describe_bad(bad) if bad else None


def describe_bad(names: Sequence[str]) -> facts.NonfiniteGradients:
    """The fact about gradients of these parameters: backward runs from the last layer to the first."""
    tensors = tuple(f"gradient/{name}" for name in names[-_MAX_NAMED:])
    return facts.NonfiniteGradients(tensors, len(names), tensors[-1])


def joined_norm(one: Any, other: Any) -> Any:
    """The norm of two sets of gradients from their norms; either may be on its way from a device."""
    if isinstance(one, float) and isinstance(other, float):
        return math.hypot(one, other)
    norms = one, other
    return DeferredNumbers(lambda: math.hypot(*(float(v if isinstance(v, float) else v.resolve()) for v in norms)))


def is_bias(place: ParameterPlace) -> bool:
    """Whether a parameter is a bias, by its name."""
    return _BIAS.search(place.leaf) is not None


def items_of(parameters: Iterable[tuple[Any, str, ParameterPlace]]) -> Items:
    """Parameters as they are saved."""
    found: Items = ([], [])
    for row in parameters:
        found[is_bias(row[2])].append(_item(*row))
    return found


def _item(array: Any, name: str, place: ParameterPlace) -> Item:
    # By position, unit axis and trainable last: made for every gradient of a captured step.
    return Item(array, name, place.place, (), place.axis_of_units(len(array.shape)), True)


def _is_bad(rows: Rows) -> Any:
    return rows[:, _NAN : _NEGINF + 1].any(axis=1)


def _total(rows: Rows) -> float:
    if _is_bad(rows).any():
        return math.nan if rows[:, _NAN].any() else math.inf
    return math.hypot(*rows[:, _L2].tolist())
