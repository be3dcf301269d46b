"""Facts ``output_sketch`` and ``target_sketch``: rows of what a loss judges, and of its targets.

Targets of a loss that a script writes with tensor operations come from what autograd saved for the backward. Two forms
are read. A difference to the model's output that is squared or made absolute, ``((model(x) - y) ** 2)``: the power has
saved it, and the target is the output less the difference. And log-probabilities that are looked up by label,
``-logits.log_softmax(1)[range(n), y]`` or ``gather``, or multiplied by one-hot labels. A saved tensor that hooks have
packed (a checkpoint, an offload) is not touched.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

from watchglass.capture.facts.judged_sketches import Cut, LossRows, SampleInputs
from watchglass.capture.operation_graph import CONSTANT, Operand
from watchglass.capture.planning.sketch_pace import SketchPace
from watchglass.capture.pytorch.events import BackwardCall, ForwardCall, LossCall
from watchglass.capture.pytorch.facts.copies import is_readable, sample
from watchglass.capture.pytorch.graph import nodes
from watchglass.capture.pytorch.graph.autograd_graph import Graph
from watchglass.capture.pytorch.graph.loss_operations import ORDERLY
from watchglass.capture.pytorch.losses import functions as losses
from watchglass.capture.pytorch.modules.models import Models
from watchglass.capture.pytorch.modules.nested_tensors import tensors_in
from watchglass.capture.pytorch.public_calls import argument_of
from watchglass.record import DeferredFact, Forward
from watchglass.records import DeclaredFact, Mode, facts, loss_kind


class Difference(NamedTuple):
    """A target that differs from the model's output by a saved tensor."""

    values: Tensor  #: The difference, with the elements of the output in their order.
    sign: int  #: 1 for output - target, -1 for target - output.
    shape: tuple[int, ...]  #: Shape of the output.


class Labels(NamedTuple):
    """Log-probabilities of the model's output, and labels."""

    log_shares: Tensor  #: Of shape (rows, classes).
    labels: Tensor  #: int64[rows], or shares of the shape of ``log_shares``.


def found_in(graph: Graph) -> Difference | Labels | None:
    """The parts from which a loss is computed; None for other forms.

    Args:
        graph: Its graph, at least from outputs of the model on.
    """
    found = (_difference(graph, at) or _labels(graph, at) for at in range(len(graph) - 1, -1, -1))
    return next((each for each in found if each is not None), None) if graph.complete else None


def _difference(graph: Graph, at: int) -> Difference | None:
    if graph.operations[at].name not in ("pow", "abs", "mul"):
        return None
    made = _before(graph, at).at
    if made == CONSTANT or graph.word(made) not in ("sub", "rsub") or graph.setting(made, "alpha") not in (None, 1):
        return None
    shape = graph.shape(made)
    for place in range(len(graph.below[made])):
        output = _output_before(graph, made, place)
        if output is None:
            continue
        values = nodes.saved_tensor(graph.nodes[at], "self")
        # A broadcast would repeat the target, or the output.
        if values is None or values.shape != shape or values.numel() != math.prod(output):
            return None
        first = place == 0 and graph.word(made) != "rsub"
        return Difference(values.detach(), 1 if first else -1, output)
    return None


def _labels(graph: Graph, at: int) -> Labels | None:
    name, node = graph.operations[at].name, graph.nodes[at]
    if name not in ("index", "gather", "mul"):
        return None
    log_shares = _log_shares(graph, at)
    if name == "index" and log_shares is not None:
        indices = nodes.saved_tensors(node, "indices")
        fits = len(indices) == 2 and all(each.shape == log_shares.shape[:1] for each in indices)
        return Labels(log_shares, indices[1]) if fits else None
    if name == "gather" and log_shares is not None:
        index = nodes.saved_tensor(node, "index")
        if index is None or graph.setting(at, "axes") != (1,) or index.shape != (len(log_shares), 1):
            return None
        return Labels(log_shares, index[:, 0])
    for place, side in ((0, "other"), (1, "self")) if name == "mul" else ():
        log_shares = _log_shares(graph, at, place)
        shares = None if log_shares is None else nodes.saved_tensor(node, side)
        if log_shares is not None and shares is not None and shares.shape == log_shares.shape:
            return Labels(log_shares, shares.detach())
    return None


def _log_shares(graph: Graph, at: int, place: int = 0) -> Tensor | None:
    """The operand of an operation, if it is a log-softmax over the last axis of an output of the model, of two axes."""
    made = _before(graph, at, place).at
    if made == CONSTANT or graph.word(made) != "log_softmax" or _output_before(graph, made, 0) is None:
        return None
    values = nodes.saved_tensor(graph.nodes[made], "result")
    return values.detach() if values is not None and values.dim() == 2 and graph.setting(made, "axes") == (1,) else None


def _output_before(graph: Graph, at: int, place: int) -> tuple[int, ...] | None:
    """Shape of the output of the model that is an operand, in any arrangement or type; None for other operands."""
    made = _before(graph, at, place)
    return None if made.at == CONSTANT or graph.output(*made) is None else graph.shape(*made)


def _before(graph: Graph, at: int, place: int = 0) -> Operand:
    """What made an operand, past operations that only change arrangement or type; or the model's output."""
    below = graph.below[at]
    made = below[place] if place < len(below) else Operand(CONSTANT, 0)
    while made.at != CONSTANT and graph.operations[made.at].name in ORDERLY and graph.output(*made) is None:
        made = graph.below[made.at][0]
    return made


#: Losses of one forward that are sketched.
_MOST_LOSSES = 4


class JudgedRows:
    """Samples outputs and targets at some of the captured steps, whole rows of both together."""

    def __init__(self, models: Models, kinds: frozenset[str]) -> None:
        self._models = models
        self._kinds = kinds
        self._pace = SketchPace()
        # The forward whose losses are sketched.
        self._forward: tuple[int, int] | None = None
        # How many of them were, as a list that the fact about an output without a loss can look at later.
        self._losses: list[str] = []
        # What the model returned in this forward, until a backward shows a loss that the script wrote.
        self._output: LossRows | None = None
        self._given: SampleInputs | None = None

    def forward_began(self, call: ForwardCall) -> None:
        """A captured forward is about to run."""
        forward, self._losses, self._output, self._given = call.forward, [], None, None
        due = self._pace.due(call.step.mode, forward.model, call.step.mode_step)
        self._forward = (id(forward), forward.start_ns) if due else None
        if due and "output_sketch" in self._kinds and call.step.mode is Mode.TRAIN:
            self._given = _given(self._models, call)

    def loss_computed(self, call: LossCall) -> None:
        """A loss function has returned, at a captured step."""
        if self._forward != (id(call.forward), call.forward.start_ns) or len(self._losses) >= _MOST_LOSSES:
            return
        judged = _judged(call, len(self._losses) + 1)
        if judged is not None:
            self._losses.append(call.function)
            self._add(call.forward, f"torch.nn.functional.{call.function}", judged, [])

    def forward_ended(self, call: ForwardCall) -> None:
        """The captured forward has ended: what it returned counts if no loss function judges it."""
        if self._forward != (id(call.forward), call.forward.start_ns) or self._losses:
            return
        tensors = (each for _, each in tensors_in(call.output) if not each.is_nested and each.is_floating_point())
        output = next((each for each in tensors if each.numel() > 1), None)
        self._output = judged = None if output is None else _of_output(output)
        if judged is not None:
            self._add(call.forward, "forward", judged, self._losses)

    def backward_began(self, call: BackwardCall) -> None:
        """A backward begins from a loss: look for the target of one that the script wrote."""
        output, self._output = self._output, None
        if output is None or self._losses or self._forward != (id(call.forward), call.forward.start_ns):
            return
        found = found_in(call.start.of_outputs)
        judged = None if found is None else _of_handwritten(found, output)
        if judged is not None:
            self._losses.append(judged.function)
            self._add(call.forward, "autograd", judged, [])

    def _add(self, forward: Forward, source: str, judged: LossRows, unless: list[str]) -> None:
        judged = judged.with_inputs(self._given)
        for kind, make in ((facts.OutputSketch, judged.output_sketch), (facts.TargetSketch, judged.target_sketch)):
            if kind.KIND in self._kinds:
                sketch = functools.partial(self._sketch, forward, make, unless)
                forward.records.add_fact(DeferredFact[DeclaredFact](kind, sketch), source)

    def _sketch(self, forward: Forward, make: Callable[[], Any], unless: list[str]) -> Any:
        """A sketch; for the recorder's thread."""
        sketch = None if unless else make()
        # A teacher or a target network, which is called and not trained.
        helped = True if len(self._models) > len(list(self._models)) else None
        return sketch and dataclasses.replace(sketch, helped=helped, model=number_of_model(self._models, forward))


def number_of_model(models: Models, forward: Forward) -> int | None:
    """The number of the model of a forward that is over, where there are several."""
    return models.in_facts(forward.model) if forward.model >= 0 else None


def _given(models: Models, call: ForwardCall) -> SampleInputs | None:
    """Elements of the first tensor of floats, else of integers, that a batch of samples consists of."""
    inputs = models.carried.inputs(call.root, call.arguments, call.kwargs)
    found = [each for _, each in inputs if is_readable(each) and each.dim() > 1]
    found.sort(key=lambda each: not each.is_floating_point())
    batch = found[0] if found else None
    return None if batch is None or batch.is_complex() else SampleInputs.of(sample, batch)


def _judged(call: LossCall, number: int) -> LossRows | None:
    outputs, targets = call.predictions, call.target
    if not is_readable(outputs) or not is_readable(targets) or not outputs.numel():
        return None
    if outputs.device != targets.device or not outputs.is_floating_point():
        return None
    kind = loss_kind(call.function)
    if kind.targets == "classes":
        ignored = int(argument_of(call.function, "ignore_index", call.arguments, call.kwargs, -100))
        return _of_labels(call.function, number, outputs, targets, ignored, _settings(call))
    if not kind.elementwise:
        return None
    return LossRows.of_values(sample, outputs, targets, call.function, number, _settings(call))


def _of_handwritten(found: Difference | Labels, output: LossRows) -> LossRows | None:
    """A loss that the script wrote, and what is known of its output."""
    if not all(map(is_readable, found[:2] if isinstance(found, Labels) else found[:1])):
        return None
    if isinstance(found, Labels):
        # As nll_loss, which takes log-probabilities.
        return _of_labels("nll_loss", 1, found.log_shares, found.labels, -100, {})
    if found.shape != output.shape or output.outputs is None:
        return None
    # Those that belong to the rows that were copied of the output, which may be gone.
    differences = sample("target", found.values, *Cut.of_matrix(output.shape)[1:])
    return dataclasses.replace(
        output, number=1, target_shape=output.shape, targets=differences, sign=found.sign, settings={}
    )


def _of_labels(
    function: str, number: int, outputs: Tensor, targets: Tensor, ignored: int, settings: dict[str, Any]
) -> LossRows | None:
    if outputs.dim() < 2:
        outputs, targets = outputs.unsqueeze(0), targets.unsqueeze(0)
    return LossRows.of_classes(sample, outputs, targets, function, number, ignored, settings)


def _of_output(output: Tensor) -> LossRows | None:
    judged = LossRows.of_values(sample, output) if is_readable(output) else None
    return judged if judged is not None and judged.outputs is not None else None


def _settings(call: LossCall) -> dict[str, Any]:
    """Arguments of a loss on which the loss of the best guess depends."""
    given = {name: argument_of(call.function, name, call.arguments, call.kwargs, None) for name in _SETTINGS}
    # The script weights or masks it.
    found: dict[str, Any] = {"unreduced": True} if call.result.dim() else {}
    if isinstance(given["weight"], Tensor):
        found["weighted"] = True
    if isinstance(given["pos_weight"], Tensor):
        found |= (
            {"positive_weight": losses.number(given["pos_weight"].mean())}
            if given["pos_weight"].is_cpu
            else {"weighted": True}
        )
    if given["label_smoothing"]:
        found["smoothing"] = float(given["label_smoothing"])
    return found


_SETTINGS = ("weight", "pos_weight", "label_smoothing")
