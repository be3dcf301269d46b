"""Reads autograd's graph at a few captured backwards, for the facts that follow from it."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.optim import Optimizer

from watchglass.capture.facts import forward_layers, loss_terms
from watchglass.capture.module_places import ParameterPlace
from watchglass.capture.planning.sketch_pace import is_power_of_two
from watchglass.capture.pytorch.events import BackwardCall, ForwardCall, ModuleCall
from watchglass.capture.pytorch.facts.unheld_parameters import UnheldParameters
from watchglass.capture.pytorch.graph.autograd_graph import Graph
from watchglass.capture.pytorch.modules.models import Models
from watchglass.capture.pytorch.modules.nested_tensors import tensors_in
from watchglass.record import OpenStep
from watchglass.records import facts

_log = logging.getLogger("watchglass")
#: Captured steps of a model that are all read; after them only the 4th, 16th, 64th ... And those of large graphs.
_ALL, _ALL_LARGE = 3, 2
#: Operations of a large graph: reading one takes some milliseconds.
_LARGE = 2048
#: Backwards of a step that are counted, and records of each fact.
_MOST_BACKWARDS, _MOST_RECORDS = 4, 16
#: Parameters that are named, and calls of modules that are noted.
_MOST_NAMED, _MOST_CALLS = 32, 4096


class GraphLooks:
    """Reads the graph as a backward begins: the first captured ones of each model, then ever more rarely.

    A later look is for what changes: a loss that is added, layers that are no longer frozen.

    Args:
        models: The models that are watched.
        kinds: The facts that are recorded.
        unheld: Records parameters that no optimizer updates.
    """

    def __init__(self, models: Models, kinds: frozenset[str], unheld: UnheldParameters) -> None:
        self._models = models
        self._kinds = kinds & {"loss_graph", "forward_graph"}
        self._unheld = unheld
        self._looks_for_unheld = "unheld_parameters" in kinds
        # By model: captured steps so far, and models with a large graph, and with one that cannot be read.
        self._captures: dict[int, int] = {}
        self._large: set[int] = set()
        self._unreadable: set[int] = set()
        # Whether the graphs of the present step are read, its backwards so far, and calls of modules in order.
        self._looking = False
        self._backwards = 0
        self._calls: list[_TrainableCall] = []
        self._given: frozenset[int] = frozenset()
        # Sizes of the batches of the present step.
        self._rows: set[int] = set()
        self._reported: dict[tuple[str, int, int], Any] = {}
        self._records = dict.fromkeys(self._kinds, 0)
        #: Listens to modules in the forwards that are read, see :class:`~watchglass.capture.pytorch.events.Events`.
        self.module_listeners = (lambda: self._looking and "loss_graph" in self._kinds, self._called)

    def step_began(self, step: OpenStep) -> None:
        """A captured step has opened."""
        number = self._captures[step.model] = self._captures.get(step.model, 0) + 1
        few = _ALL_LARGE if step.model in self._large else _ALL
        is_power_of_four = is_power_of_two(number) and number.bit_length() % 2 == 1
        self._looking = (number <= few or is_power_of_four) and step.model not in self._unreadable
        self._backwards, self._calls, self._rows = 0, [], set()

    def forward_began(self, call: ForwardCall) -> None:
        """A captured forward begins."""
        if self._looking:
            given = [tensor for _, tensor in tensors_in((call.arguments, call.kwargs))]
            self._given = frozenset(map(_place, given))
            self._rows.update(tensor.size(0) for tensor in given if tensor.dim())  # nested ones have no shape

    def backward_began(self, call: BackwardCall) -> None:
        """A captured backward begins."""
        if not self._looking or self._backwards >= _MOST_BACKWARDS:
            return
        self._backwards += 1
        if call.start.node is None:
            return
        try:
            graph = call.start.graph
            if len(graph) > _LARGE:
                self._large.add(call.step.model)
            self._record(call, (call.step.model, self._backwards), graph)
            if self._looks_for_unheld and graph.complete:
                reached = [each for each in graph.parameters.values() if not self._is_input(each)]
                self._unheld.look(call.forward.records, self._backwards, reached)
        except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
            # Nodes belong to PyTorch and to other libraries: one that is not as expected ends these facts alone.
            _log.debug("watchglass: autograd's graph was not read: %s: %s", type(error).__name__, error)
            self._unreadable.add(call.step.model)

    def optimizer_stepped(self, optimizer: Optimizer) -> None:
        """Any optimizer has stepped."""
        self._unheld.stepped(optimizer)

    def _is_input(self, leaf: Tensor) -> bool:
        """Whether a leaf has a row for each sample of a batch: a loss may hold its derivative by such inputs."""
        return not isinstance(leaf, nn.Parameter) and leaf.dim() > 0 and leaf.size(0) in self._rows

    def _called(self, call: ModuleCall) -> None:
        """A module has returned."""
        parameters = [each for each in call.module.parameters(recurse=False) if each.requires_grad]
        if not parameters or len(self._calls) >= _MOST_CALLS:
            return
        taken = [tensor for _, tensor in tensors_in(call.arguments, 4) if tensor.is_floating_point()]
        places = frozenset(_place(each) for each in taken)
        self._calls.append(
            _TrainableCall(
                call.place.path,
                [id(each) for each in parameters],
                joined=any(tensor.requires_grad for _, tensor in tensors_in(call.output, 4)),
                gave=frozenset(_place(tensor) for _, tensor in tensors_in(call.output, 4)),
                cut=frozenset() if any(each.requires_grad or _place(each) in self._given for each in taken) else places,
            )
        )

    def _record(self, call: BackwardCall, key: tuple[int, int], graph: Graph) -> None:
        if not graph.complete:
            self._unreadable.add(key[0])
            for fact in (facts.TermsOfLoss(), facts.ForwardLayers()):
                self._notify(call, key, fact, True)
            return
        unknown = {each.name for each in graph.operations if each.kind == "unknown"}
        opaque = tuple(sorted(full for full in unknown if full.endswith("Backward"))[:16])
        capture = self._captures[key[0]]
        if "loss_graph" in self._kinds:
            terms = loss_terms.described(graph, self._name)
            unreached = None if opaque else self._unreached(graph)
            like = loss_terms.pattern(terms), opaque, unreached
            batch = int(call.forward.weight)
            terms = replace(
                terms, opaque=opaque, backward=key[1], capture=capture, batch=batch, unreached=unreached
            )  # fmt: skip
            self._notify(call, key, terms, like)
        if "forward_graph" in self._kinds:
            layers = forward_layers.described(graph, self._name)
            # Batches that are too small are recorded once more: the first may be an exception.
            late = bool(layers.batch_normalizations) and capture > _ALL
            known = replace(layers, opaque=opaque, backward=key[1], capture=capture)
            self._notify(call, key, known, (forward_layers.pattern(layers), late))

    def _notify(
        self, call: BackwardCall, key: tuple[int, int], fact: facts.TermsOfLoss | facts.ForwardLayers, like: Any
    ) -> None:
        place = fact.KIND, *key
        if fact.KIND not in self._kinds or self._reported.get(place) == like:
            return
        if self._records[fact.KIND] < _MOST_RECORDS:
            self._reported[place] = like
            self._records[fact.KIND] += 1
            call.forward.records.add_fact(fact, "autograd")

    def _name(self, parameter: Tensor) -> str:
        place = self._models.parameter(parameter)
        return place.name if place is not None else ""

    def _unreached(self, graph: Graph) -> facts.OutOfReach | None:
        """Trainable parameters that the backward cannot reach, of models of which it reaches others."""
        reached = {id(parameter) for parameter in graph.parameters.values()}
        missed: list[tuple[int, ParameterPlace]] = []
        for tree in self._models:
            trainable = [(id(each), place) for each, place in tree.places() if each.requires_grad]
            missed_here = [(number, place) for number, place in trainable if number not in reached]
            if len(missed_here) < len(trainable):
                missed += missed_here
        if not missed:
            return None
        lost = {number for number, _ in missed}
        calls = self._calls
        first = next((at for at, each in enumerate(calls) if each.joined and lost.issuperset(each.parameters)), None)
        behind = range(first, len(calls)) if first is not None else ()
        cut = next((calls[at].path for at in behind if _is_cut(calls, at, lost)), None)
        ran = lost & {number for call in calls if call.joined for number in call.parameters}
        return facts.OutOfReach(len(missed), tuple(place.name for _, place in missed[:_MOST_NAMED]), len(ran), cut)


class _TrainableCall(NamedTuple):
    """A call of a module with trainable parameters."""

    path: str  #: Its path.
    parameters: list[int]  #: Identities of its parameters.
    joined: bool  #: Whether its output is part of a graph.
    gave: frozenset[int]  #: Where its outputs are.
    cut: frozenset[int]  #: Where its inputs are, if none of them is part of a graph or an input of the model.


def _is_cut(calls: list[_TrainableCall], at: int, lost: set[int]) -> bool:
    """Whether a module took values that are cut off from what lost modules made, as far as that shows."""
    call = calls[at]
    if not call.cut or lost & set(call.parameters):
        return False
    # Detached values are where their module left them.
    made = next((each for each in reversed(calls[:at]) if each.gave & call.cut), None)
    return made is None or bool(lost & set(made.parameters))


def _place(tensor: Tensor) -> int:
    """Where the values of a tensor are."""
    try:
        return tensor.untyped_storage().data_ptr()
    except RuntimeError:
        return 0
