"""Functional activations: no module is called for them, but the graph of autograd shows where they were.

``F.relu(self.fc1(x))`` gives a tensor whose ``grad_fn`` is the node of the ReLU, whose own input is the node of what
``fc1`` returned. So, with gradients on, the input of a functional ReLU, tanh or sigmoid is found when a module takes or
returns a tensor that was computed from it, if the input is the output of another module. Other inputs are omitted,
because the graph keeps only the results of tanh and sigmoid.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

from torch import Tensor

from watchglass.capture.module_places import Place
from watchglass.capture.port import Port
from watchglass.capture.pytorch.events import Events, ForwardCall, ModuleCall
from watchglass.capture.pytorch.graph.nodes import behind, chain, operands, operation_of
from watchglass.capture.pytorch.modules.models import Models
from watchglass.capture.pytorch.modules.module_tree import WEIGHTED, unit_axis
from watchglass.capture.pytorch.modules.nested_tensors import tensors_in
from watchglass.capture.saving.module_tensors import ModuleTensors
from watchglass.capture.saving.saving import Item, Saving
from watchglass.record import CapturedRecords
from watchglass.records import ModuleKind, Role

RECTIFIERS = ("relu", "hardtanh")
_TAGS = {**dict.fromkeys(RECTIFIERS, "relu_input"), "tanh": "tanh_input", "sigmoid": "sigmoid_input"}

#: Operations that only rearrange values.
REARRANGED = ("reshape", "transpose")
#: Operations that may lie between an activation and the module that shows it.
_BETWEEN = (*REARRANGED, "max_pool", "mul", "dropout")
#: Where several such come together, as in gates and residual connections.
_JOINED = (*_BETWEEN, "add", "sub", "cat", "stack")
#: How far behind a tensor an activation is looked for, at how many nodes where several come together, and for how many
#: module calls its input is kept.
_HOPS, _NODES, _KEPT = 5, 24, 8


def functional_node(tensor: Tensor) -> Any:
    """The autograd node of a rectifier from which a tensor results up to reshaping and pooling; None for none."""
    behind = chain(tensor.grad_fn, tensor.output_nr, _BETWEEN, _HOPS)
    return next((node for node, _ in behind if operation_of(node).name in RECTIFIERS), None)


class Rectified:
    """Finds functional ReLUs, which show where their outputs are consumed: as inputs of modules with weights."""

    def __init__(self) -> None:
        # Known nodes; also outputs of ReLU modules, which must not count as functional ReLUs.
        self._nodes: set[Any] = set()

    def made(self, tensor: Tensor) -> None:
        """A ReLU module returned this."""
        self._nodes.add(tensor.grad_fn)

    def finds(self, place: Place, tensor: Tensor) -> bool:
        """Whether a module's first input comes from a functional ReLU that was not met yet."""
        node = functional_node(tensor) if place.kind in WEIGHTED else None
        if node is None or node in self._nodes:
            return False
        self._nodes.add(node)
        return True

    def forget(self) -> None:
        """The forward has ended. Nodes hold the graph, and with it what it saved for the backward."""
        self._nodes = set()


class _Returned(NamedTuple):
    node: Any
    tensor: Tensor
    version: int
    place: Place
    path: str


class FunctionalActivations:
    """Saves inputs of functional activations as ``fc1.relu_input``: the output of ``fc1`` went into a ReLU."""

    def __init__(self, port: Port, models: Models, saving: Saving, events: Events) -> None:
        self._plan = port.plan
        self._tensors = ModuleTensors(port, saving, unit_axis)
        self._wanted: frozenset[str] = frozenset()
        self._seen: set[Any] = set()
        # The last outputs of modules are kept alive: nothing else keeps the input of a tanh.
        self._returned: deque[_Returned] = deque(maxlen=_KEPT)
        events.add(self)
        events.module_listeners.append((lambda: bool(self._tags_wanted()), self._called))

    def _tags_wanted(self) -> frozenset[str]:
        return frozenset(filter(self._plan.wants_tag, _TAGS.values()))

    def module_entered(self, entry: ModuleCall) -> None:
        """A module is about to run."""
        if entry.outermost:
            self.forward_ended()
            self._wanted = self._tags_wanted()
        elif self._wanted:
            for _, tensor in tensors_in(entry.arguments, 4):
                self._look(entry.records, tensor)

    def _called(self, call: ModuleCall) -> None:
        for path, tensor in tensors_in(call.output, 4):
            node = tensor.grad_fn
            if node is None:
                continue
            if call.place.kind is ModuleKind.RECTIFIER or call.place.module_type in ("Tanh", "Sigmoid"):
                self._seen.add(node)  # a module's own; its input is saved as such
                continue
            self._look(call.records, tensor)
            if all(returned.node is not node for returned in self._returned):
                self._returned.append(_Returned(node, tensor, tensor._version, call.place, path))

    def _look(self, records: CapturedRecords, tensor: Tensor) -> None:
        # Wherever they are combined with others.
        for node in behind(tensor.grad_fn, 0, _JOINED, _NODES):
            tag = _TAGS.get(operation_of(node).name)
            if tag is not None and node not in self._seen:
                self._seen.add(node)
                if tag in self._wanted and (below := operands(node)):
                    given = [each for each, _ in chain(*below[0], REARRANGED, _HOPS)]
                    self._save_input(records, tag, given)

    def _save_input(self, records: CapturedRecords, tag: str, given: list[Any]) -> None:
        for returned in self._returned:
            # An output that was overwritten since, as by ``tanh_``, is no longer the input.
            if returned.tensor._version == returned.version and any(returned.node is other for other in given):
                name = returned.place.named(tag, returned.path)
                axis = unit_axis(returned.place, returned.tensor.dim())
                item = Item(returned.tensor, name, returned.place, (tag,), axis)
                self._tensors.save(records, Role.INPUT, item)
                return

    def forward_ended(self, call: ForwardCall | None = None) -> None:
        """The captured forward has ended."""
        self._wanted = frozenset()
        self._seen = set()
        self._returned.clear()
