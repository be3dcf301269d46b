"""The place of the first NaN or infinite value of a step, as far as the records show it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from watchglass.records import COMPILED_MODEL, OperationFault, Role, TensorInfo, facts
from watchglass.rules import signals
from watchglass.tables import Statistics, StepView

#: Places in first_bad_module facts, and their symptoms.
_SYMPTOMS = {
    "weights": "nonfinite_weights",
    "input": "nonfinite_input",
    "forward": "nonfinite_forward",
    "loss": "nonfinite_loss_only",
    "backward": "nonfinite_backward",
}


@dataclass(frozen=True)
class Culprit:
    """The place of the first bad value."""

    where: str = ""  #: ``weights``, ``input``, ``forward``, ``loss``, ``backward``, or "" if unknown.
    name: str = ""  #: Name of the tensor, or of the module where no tensor is known; "" for none.
    module: str = ""  #: Module, "" for none.
    module_type: str = ""  #: Its class name.
    sentence: str = ""  #: Continues "the loss became NaN at step 3": begins with a separator, or is "".
    symptoms: tuple[str, ...] = ()  #: Its symptoms for a diagnosis.
    operation: OperationFault | None = None  #: The operation at fault, None where it is not known.

    @property
    def harmless(self) -> bool:
        """Whether its gradients are zero, so that training goes on unharmed."""
        return self.operation is not None and self.operation.harmless

    def to_json(self) -> dict[str, Any]:
        """For the evidence of a finding."""
        found: dict[str, Any] = {"where": self.where, "module": self.module, "module_type": self.module_type}
        if self.operation is not None:
            fault = self.operation
            place = " ".join(filter(None, (fault.place, f"({fault.code})" if fault.code else "")))
            found |= {"failed_operation": fault.operation, "failed_kind": fault.kind, "failed_place": place}
        return found


def find_culprit(view: StepView, bad: Statistics, *, bad_loss: bool) -> Culprit:
    """The place of the first bad value of this step: as capture found it, else by the statistics.

    Args:
        view: The step.
        bad: Statistics of the tensors that hold a bad value.
        bad_loss: Whether the loss is bad.
    """
    # A search over all modules is better than flags; a refused search only knows that a value is bad.
    named = sorted(named_by_capture(view), key=lambda each: (bool(each.refused), each.level == "flags"))
    if named and named[0].where in _SYMPTOMS:
        return _from_fact(view, named[0])
    found = (
        _weights(bad)
        or _data(view, bad)
        or _forward(bad)
        or _loss(view, bad_loss)
        or _backward(view, bad)
        or Culprit(symptoms=("nonfinite_loss",) if bad_loss else ())
    )
    hidden = any(each.refused == COMPILED_MODEL for each in view.facts(facts.FirstBadPlace))
    if hidden and found.where not in ("weights", "input"):
        found = replace(
            found, sentence=f"{found.sentence}; {COMPILED_MODEL}, which hides the operation that made it so"
        )
    return found


def named_by_capture(view: StepView) -> list[facts.FirstBadPlace]:
    """The facts ``first_bad_module`` of a step that name a place; a refused search in loss or weights names none."""
    found = view.facts(facts.FirstBadPlace)
    return [each for each in found if not (each.refused and each.where in ("loss", "weights"))]


def _loss_is_finite(view: StepView) -> bool:
    loss = signals.loss(view)
    return loss is not None and math.isfinite(loss)


def _describe(module: str, module_type: str) -> str:
    return f"{module or 'the model'} ({module_type})" if module_type else module or "the model"


def _at(where: str, info: TensorInfo, sentence: str, symptoms: tuple[str, ...]) -> Culprit:
    return Culprit(where, info.name, info.module, info.module_type, sentence, symptoms)


def _half(info: TensorInfo) -> tuple[str, ...]:
    return ("nonfinite_half_precision",) if info.dtype == "float16" else ()


def _from_fact(view: StepView, fact: facts.FirstBadPlace) -> Culprit:
    where, module, module_type, tensor = fact.where, fact.module, fact.module_type, fact.tensor
    info = view.catalog.by_name(tensor)
    sentence = " ".join(fact.sentence.split()).rstrip(".")
    known = fact.operation
    if where == "loss" and _loss_is_finite(view):
        # The gradient that the loss sends back is not finite, which says nothing of the loss itself.
        where, tensor = "backward", ""
    return Culprit(
        where=where,
        name=tensor or module,
        module=module,
        module_type=module_type,
        sentence=f": {sentence}" if sentence else f"; first in {where} of {_describe(module, module_type)}",
        # An operation that is known has its own cause, and the place alone only fits others.
        symptoms=((known.kind,) if known is not None else (_SYMPTOMS[where],))
        + (_half(info) if info is not None else ()),
        operation=known,
    )


def _weights(bad: Statistics) -> Culprit | None:
    hit = [info for info in bad.tensors if info.role in (Role.WEIGHT, Role.BIAS)]
    if not hit:
        return None
    first = hit[0]
    return _at(
        "weights",
        first,
        f"; {len(hit)} weights, {first.name} among them, were NaN or infinite before the step began"
        if len(hit) > 1
        else f"; {first.name} was NaN or infinite before the step began",
        ("nonfinite_weights",),
    )


def _data(view: StepView, bad: Statistics) -> Culprit | None:
    """Bad values that a module received: from the data, or from a computation between two modules."""
    inputs = [info for info in bad.tensors if info.role is Role.INPUT]
    if not inputs:
        return None
    first = min(inputs, key=lambda info: info.layer_index)
    made = [info for info in bad.tensors if info.role is Role.OUTPUT]
    if any(info.layer_index < first.layer_index for info in _leaves(made)):
        return None
    # A container is numbered before its children although it ends after them, so it does not count as "before".
    before = [
        info
        for info in view.statistics(Role.OUTPUT).tensors
        if info.layer_index < first.layer_index and not _contains(info.module, first.module)
    ]
    place = _describe(first.module, first.module_type)
    if before:
        return Culprit(
            "forward", first.name, first.module, first.module_type,
            f"; the computation just before {place} made the first bad values, from finite outputs before it",
            ("nonfinite_forward", *_half(first)),
        )  # fmt: skip
    return _at("input", first, f"; the input data of {place} already held NaN or infinite values", ("nonfinite_input",))


def _forward(bad: Statistics) -> Culprit | None:
    outputs = _leaves([info for info in bad.tensors if info.role is Role.OUTPUT])
    if not outputs:
        return None
    first = min(outputs, key=lambda info: info.layer_index)
    return _at(
        "forward",
        first,
        f"; the first bad values are in the output of {_describe(first.module, first.module_type)}",
        ("nonfinite_forward", *_half(first)),
    )


def _leaves(outputs: list[TensorInfo]) -> list[TensorInfo]:
    """Those outputs whose module does not contain another bad one: a container only passes on what its child made."""
    modules = {info.module for info in outputs}
    return [
        info for info in outputs if not any(other != info.module and _contains(info.module, other) for other in modules)
    ]


def _contains(container: str, module: str) -> bool:
    """Whether a module is the container or inside it; the root contains all."""
    return not container or module == container or module.startswith(f"{container}.")


def _loss(view: StepView, bad_loss: bool) -> Culprit | None:
    if not bad_loss or not len(view.statistics(Role.OUTPUT)):
        return None
    return Culprit(
        "loss", "loss", sentence="; all captured outputs of modules are finite", symptoms=("nonfinite_loss_only",)
    )


def _backward(view: StepView, bad: Statistics) -> Culprit | None:
    hit = [info for info in bad.tensors if info.role is Role.GRADIENT]
    observed = view.facts(facts.NonfiniteGradients)
    if not hit and not observed:
        return None
    # The backward pass begins at the last layer, so the gradient hit first is that of the latest one.
    name = (observed[0].first_in_backward or "") if observed else ""
    info = view.catalog.by_name(name) if name else max(hit, key=lambda row: row.layer_index, default=None)
    if info is None:
        return Culprit("backward", name, sentence="; gradients are not finite", symptoms=("nonfinite_backward",))
    return _at(
        "backward",
        info,
        f"; the backward pass hit {_describe(info.module, info.module_type)} first",
        ("nonfinite_backward", *_half(info)),
    )
