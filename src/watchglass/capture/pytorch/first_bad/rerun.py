"""Level ``rerun``: the answer of a repetition of the failing forward, and of its backward."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from watchglass.capture.facts import first_bad as analysis
from watchglass.capture.facts.first_bad import Found
from watchglass.capture.pytorch.first_bad import operations
from watchglass.capture.pytorch.first_bad.extremes import look_at
from watchglass.capture.pytorch.first_bad.forward_replay import (
    RefusedError,
    alike,
    alone,
    loss_of,
    refusal,
    repeat,
    unchanged,
    verified,
)
from watchglass.capture.pytorch.first_bad.lines import OperationLines, ways_of
from watchglass.capture.pytorch.first_bad.trace import Trace
from watchglass.capture.pytorch.first_bad.weights import Weights
from watchglass.capture.pytorch.graph.autograd_graph import BackwardStart, Graph
from watchglass.capture.pytorch.modules.module_tree import unwrap
from watchglass.capture.pytorch.modules.nested_tensors import tensors_in
from watchglass.capture.pytorch.step.forward_state import ForwardState
from watchglass.capture.pytorch.training_state import TrainingState
from watchglass.record import Forward, OpenStep
from watchglass.records import facts

#: Modules of a model in whose re-run the lines of operations are noted: that takes about 0.1 ms for each operation.
_MOST_MODULES = 500
_NOT_REPEATED = "the forward did not repeat itself: it depends on more than was recorded"
_UNVERIFIED = "; the re-run that showed this could not be compared with the step itself"


class Rerun:
    """Repeats forwards while the weights are still those of the failing one.

    Args:
        current: The state of the run.
        weights: The parameters.
    """

    def __init__(self, current: TrainingState, weights: Weights) -> None:
        self._current = current
        self._port = current.port
        self._weights = weights

    def of_forward(self, step: OpenStep, start: BackwardStart, lines: OperationLines) -> facts.FirstBadPlace:
        """Why the loss is not finite, as data of a fact.

        Args:
            step: The step.
            start: Where its backward starts.
            lines: OperationLines of the script.

        Raises:
            RefusedError: A re-run cannot give the answer.
        """
        state = _state(self._current.forward)
        given = self._given(state)
        if given is not None:
            return given.fact("flags")
        inside = OperationLines()
        with self._rerun(state, graph=False) as trace:
            outputs = self._outputs(state, trace, inside, graph=False)
            by = _checked(state, outputs, loss_of(state, outputs))
        function = state.loss_call[0] if state.loss_call is not None else ""
        found = analysis.of_loss([trace.seen], function, chained=self._current.chained > 0)
        last = self._current.forward
        operation = None
        if found.where in ("forward", "loss"):
            operation = operations.of_forward(
                start.graph, lines, inside, besides=self.outputs() if found.where == "loss" else ()
            )
        if (
            operation is None
            and found.place is None
            and any(each is not last and not each.backpropagated for each in step.forwards)
        ):
            raise RefusedError("the loss came from several forwards, and only the last can be repeated")
        return _reported(found.by(operation), by)

    def outputs(self) -> list[Any]:
        """Nodes that made the output of the last forward, where it is known."""
        output = self._current.output() if self._current.output is not None else None
        return [] if output is None or output.grad_fn is None else [output.grad_fn]

    def of_backward(self, step: OpenStep, bad: Sequence[str]) -> facts.FirstBadPlace:
        """Why these parameters' gradients are not finite although the loss is, as data of a fact.

        Raises:
            RefusedError: A re-run cannot give the answer.
        """
        state = _state(self._current.forward)
        wanted = [parameter for place, parameter in self._weights.places() if place.name in bad]
        inside = OperationLines()
        with self._rerun(state, graph=True, taken=sum(parameter.nbytes for parameter in wanted)) as trace:
            outputs = self._outputs(state, trace, inside, graph=True)
            loss = loss_of(state, outputs)
            by = _checked(state, outputs, loss)
            with torch.enable_grad(), alone():
                heads, sent = _heads(state, outputs, loss)
                operation = operations.of_backward(Graph(heads[0].grad_fn), inside) if len(heads) == 1 else None
                gradients = torch.autograd.grad(heads, wanted, sent, allow_unused=True)
        found = analysis.in_backward(trace.seen)
        if found is None and not all(map(_is_finite, gradients)):
            found = analysis.last_gradient(bad[-1], self._weights.place_of(bad[-1]))
        if found is None:
            several = sum(other.backpropagated for other in step.forwards) > 1
            last = "the backward of the step's last forward is finite, and only that can be repeated"
            raise RefusedError(last if several else _NOT_REPEATED)
        return _reported(found.by(operation) if found.where == "backward" else found, by)

    def _given(self, state: ForwardState) -> Found | None:
        """Whether the inputs of the model are not finite already."""
        if not unchanged(state):
            return None
        root = unwrap(state.root)
        place = self._current.models.module(root)
        for path, tensor in tensors_in((state.arguments, state.kwargs)):
            look = look_at(tensor) if tensor.is_floating_point() or tensor.is_complex() else None
            if look is None or not look.bad or place is None:
                continue
            if tensor.requires_grad:
                raise RefusedError("another computation produced the input of the last model")
            return analysis.in_data(place, path[2:])
        return None

    @contextmanager
    def _rerun(self, state: ForwardState, *, graph: bool, taken: int = 0) -> Iterator[Trace]:
        taken += sum(buffer.nbytes for buffer in state.root.buffers())
        bound = self._port.config.capture_memory_bytes - taken
        reason = refusal(state, bound)
        if reason:
            raise RefusedError(reason)
        gradients = self._port.guard if graph else None
        trace = Trace(self._current.models.module, state.kwargs, most_bytes=bound, graph=graph, gradients=gradients)
        try:
            with self._port.guard.suspended():
                yield trace
        except RefusedError:
            raise
        except Exception as error:
            raise RefusedError(f"the re-run failed: {type(error).__name__}: {error}") from None
        finally:
            trace.close()
            self._port.cost.memory.hold("cpu", trace.peak_bytes + taken)
            self._port.cost.memory.hold("cpu", -trace.peak_bytes - taken)

    def _outputs(self, state: ForwardState, trace: Trace, inside: OperationLines, *, graph: bool) -> dict[str, Tensor]:
        # Not to modules that are called again in the backward, by checkpoints.
        few = len(list(state.root.modules())) <= _MOST_MODULES
        with trace.listening(), inside.noted() if few else contextlib.nullcontext():
            outputs = repeat(state, graph=graph)
        for output in outputs.values():
            if output.grad_fn is not None:
                found = Graph(output.grad_fn)
                inside.learn(found, ways_of(found))
        return outputs


def _state(forward: Forward | None) -> ForwardState:
    state = forward.state if forward is not None else None
    if not isinstance(state, ForwardState):
        raise RefusedError("there was no forward with a tensor on the CPU before the backward")
    return state


def _checked(state: ForwardState, outputs: dict[str, Tensor], loss: Tensor | None) -> str:
    by = verified(state, outputs, loss)
    if by is None:
        raise RefusedError(_NOT_REPEATED)
    return by


def _heads(
    state: ForwardState, outputs: dict[str, Tensor], loss: Tensor | None
) -> tuple[list[Tensor], list[Tensor] | None]:
    """The tensors that the backward starts from, with the gradients that the first backward had for them."""
    known = [path for path in state.gradients if path in outputs]
    if known:
        return [outputs[path] for path in known], [state.gradients[path] for path in known]
    if loss is not None:
        return [loss], None
    for output in outputs.values():
        # A model may return its loss.
        if state.loss is not None and output.requires_grad and output.numel() == 1 and alike(output, state.loss):
            return [output], None
    raise RefusedError("the gradient of the loss is unknown")


def _reported(found: Found, by: str) -> facts.FirstBadPlace:
    if not by:
        found = found._replace(sentence=found.sentence + _UNVERIFIED)
    return found.fact("rerun", verified=by)


def _is_finite(gradient: Tensor | None) -> bool:
    look = look_at(gradient) if gradient is not None else None
    return look is None or look.finite
