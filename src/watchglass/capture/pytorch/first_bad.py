"""The first bad module: which module first produced a NaN or an infinity.

Level ``rerun``: while the weights are still those of the failing forward, the forward is repeated with a look at every
module; where the loss is finite and a gradient is not, its backward is repeated too, never into ``.grad``. Level
``flags``: where that is refused, with the reason, the gradients that are not finite. Weights that were already bad
before the forward are said to be so: they must never make the first layer look guilty.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from watchglass.capture.hook import Hook
from watchglass.capture.pytorch.forwards import tensors_in
from watchglass.capture.pytorch.models import Models
from watchglass.capture.pytorch.modules import Place
from watchglass.capture.pytorch.replaying import ForwardState, refusal, repeat, same
from watchglass.record import Forward, OpenStep


@dataclass
class _Call:
    """One module call of a re-run: its inputs and outputs."""

    place: Place
    inputs: list[Tensor]
    outputs: list[Tensor]


class FirstBadModule:
    """Looks once per training, at the first sign of a non-finite value."""

    def __init__(self, hook: Hook, models: Models) -> None:
        self._hook = hook
        self._models = models
        self._done = False

    def in_forward(self, step: OpenStep, forward: Forward | None, loss: float) -> None:
        """The loss is not finite, and its backward has not run yet."""
        step.records.facts.append(("nonfinite_loss", "backward", {"value": str(loss)}))
        if self._done:
            return
        self._done = True
        answer = self._poisoned() or self._examine(forward, self._forward_culprit)
        step.records.facts.append(("first_bad_module", "loss", answer))

    def in_backward(self, step: OpenStep, forward: Forward | None, bad: list[str]) -> None:
        """The loss is finite, but these parameters' gradients (in order of the model) are not."""
        if self._done:
            return
        self._done = True
        answer = self._poisoned() or self._examine(forward, lambda state: self._backward_culprit(state, bad))
        if answer.get("refused"):
            # Backward runs from the last layer to the first: the last one hit was hit first.
            place = self._place_of_parameter(bad[-1])
            answer = {**answer, **_at(place), "where": "backward", "tensor": f"gradient/{bad[-1]}"}
            answer["sentence"] = f"the gradient of {bad[-1]} is the first in backward order that is not finite"
        step.records.facts.append(("first_bad_module", "update point", answer))

    def _poisoned(self) -> dict[str, Any] | None:
        for tree in self._models:
            owner = tree.owner
            for parameter in owner.parameters() if owner is not None else ():
                place = tree.parameter(parameter)
                if place is not None and not _finite([parameter]):
                    sentence = f"{place.name} was already not finite before this forward: an earlier update wrote it"
                    return {
                        "level": "flags",
                        "where": "weights",
                        "tensor": place.name,
                        "sentence": sentence,
                        "refused": "",
                        **_at(place.place),
                    }
        return None

    def _examine(self, forward: Forward | None, look: Any) -> dict[str, Any]:
        state = forward.state if forward is not None else None
        reason = (
            refusal(state) if isinstance(state, ForwardState) else "the forward's state is not known on this device"
        )
        if not reason:
            assert isinstance(state, ForwardState)
            if not _finite(tensor for _, tensor in tensors_in((state.arguments, state.kwargs))):
                return _answer("input", None, "", "the data given to the model is not finite")
            try:
                with self._hook.suspended():
                    found: dict[str, Any] | None = look(state)
            except Exception as error:
                found, reason = None, f"the re-run failed: {type(error).__name__}: {error}"
            if found is not None:
                return found
            reason = reason or "the forward did not repeat itself, it depends on more than was recorded"
        return {"level": "flags", "where": "loss", "module": "", "module_type": "", "tensor": "loss",
                "sentence": "the loss is not finite", "refused": reason}  # fmt: skip

    def _forward_culprit(self, state: ForwardState) -> dict[str, Any] | None:
        with torch.no_grad():
            calls, outputs = self._traced(state)
            if not same(outputs, state.outputs):
                return None
            for call in calls:
                if _finite(call.outputs):
                    continue
                place = call.place
                name = f"{place.path}.output" if place.path else "output"
                if _finite(call.inputs):
                    largest = max((float(t.abs().max()) for t in call.inputs if t.numel()), default=0.0)
                    into = f"finite inputs (largest magnitude {largest:.3g}) into values that are not finite"
                    sentence = f"{_named(place)} turned {into}"
                    return _answer("forward", place, name, sentence)
                sentence = f"a function called before {_named(place)} gave it values that are not finite"
                return _answer("forward", place, f"{place.path}.input.0", sentence)
            largest = max((float(t.abs().max()) for t in outputs.values() if t.numel()), default=0.0)
        function = state.loss_call[0] if state.loss_call is not None else "the loss"
        sentence = (
            f"all modules are finite (largest output magnitude {largest:.3g}); {function} made the loss not finite"
        )
        return _answer("loss", None, "loss", sentence)

    def _backward_culprit(self, state: ForwardState, bad: list[str]) -> dict[str, Any] | None:
        with torch.enable_grad():
            calls, outputs = self._traced(state)
            if not same(outputs, state.outputs):
                return None
            heads = [(outputs[path], gradient) for path, gradient in state.gradients.items() if path in outputs]
            if not heads and state.loss_call is not None:
                function, arguments, kwargs = state.loss_call
                loss = getattr(torch.nn.functional, function)(outputs[""], *arguments, **kwargs)
                (sent_back,) = torch.autograd.grad(loss, outputs[""], retain_graph=True)
                heads = [(outputs[""], sent_back)]
            if not heads:
                return None
            if not _finite(gradient for _, gradient in heads):
                return _answer("loss", None, "loss", "the gradient that the loss sends back is already not finite")
            values = [tensor for call in calls for tensor in call.outputs if tensor.requires_grad]
            gradients = torch.autograd.grad(
                [head for head, _ in heads], values, [gradient for _, gradient in heads], allow_unused=True
            )
        hit: dict[int, Tensor | None] = {id(value): gradient for value, gradient in zip(values, gradients, strict=True)}
        # The call nearest to the loss that passes back something bad although it was given something good.
        for call in reversed(calls):
            given = [g for g in (hit.get(id(tensor)) for tensor in call.outputs) if g is not None]
            passed = [g for g in (hit.get(id(tensor)) for tensor in call.inputs) if g is not None]
            if given and _finite(given) and not _finite(passed):
                return _answer(
                    "backward",
                    call.place,
                    f"{call.place.path}.output",
                    f"going back through {_named(call.place)} the gradient became not finite",
                )
        place = self._place_of_parameter(bad[-1])
        return _answer(
            "backward",
            place,
            f"gradient/{bad[-1]}",
            f"the gradient of {bad[-1]} is not finite although those of all outputs are",
        )

    def _traced(self, state: ForwardState) -> tuple[list[_Call], dict[str, Tensor]]:
        calls: list[_Call] = []

        def look(module: nn.Module, arguments: Any, output: Any) -> None:
            place = self._models.module(module)
            if place is not None:
                calls.append(_Call(place, _floats(arguments), _floats(output)))

        handle = register_module_forward_hook(look)
        try:
            return calls, repeat(state)
        finally:
            handle.remove()

    def _place_of_parameter(self, name: str) -> Place | None:
        for tree in self._models:
            owner = tree.owner
            for parameter in owner.parameters() if owner is not None else ():
                found = tree.parameter(parameter)
                if found is not None and found.name == name:
                    return found.place
        return None


def _floats(value: Any) -> list[Tensor]:
    return [tensor for _, tensor in tensors_in(value) if tensor.is_floating_point() or tensor.is_complex()]


def _finite(tensors: Iterable[Tensor]) -> bool:
    with torch.no_grad():
        return all(bool(torch.isfinite(tensor).all()) for tensor in tensors if not tensor.is_meta)


def _named(place: Place) -> str:
    return f"{place.path} ({place.module_type})" if place.path else f"the model itself ({place.module_type})"


def _at(place: Place | None) -> dict[str, str]:
    return {"module": place.path if place else "", "module_type": place.module_type if place else ""}


def _answer(where: str, place: Place | None, tensor: str, sentence: str) -> dict[str, Any]:
    return {"level": "rerun", "where": where, "tensor": tensor, "sentence": sentence, "refused": "", **_at(place)}
