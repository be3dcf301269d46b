"""What a forward is watched with: hooks on the outermost module, and, at captured steps only, on all modules."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from watchglass.capture.hook import Hook
from watchglass.capture.pytorch.models import Models
from watchglass.capture.pytorch.modules import CONSUMER_TYPES, RELU_TYPES, Place, unit_axis
from watchglass.capture.pytorch.reduce import inactive_units, plain, rows
from watchglass.record import StepRecords
from watchglass.records import Role, TensorInfo, UnitKind

#: How far behind a module's input a functional ReLU is looked for, and what may lie between.
_RELU_HOPS = 4
_RELU_NODES = ("ReluBackward0", "ThresholdBackwardBackward0", "HardtanhBackward0")
_BETWEEN = ("View", "Reshape", "Permute", "Transpose", "MaxPool", "MulBackward0", "NativeDropout", "Unsafe", "Squeeze")


class Silent:
    """A module hook that never leaves this process: copied or pickled, it becomes one that does nothing.

    The stand-in is ``contextlib.nullcontext().__exit__``, which takes any three arguments and returns None, so a saved
    model loads where watchglass is not installed.
    """

    __slots__ = ("_call",)

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def __call__(self, *arguments: Any) -> Any:
        """Call what is held, unless PyTorch is compiling the module."""
        if torch.compiler.is_compiling():
            return None
        return self._call(*arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        return (getattr, (contextlib.nullcontext(), "__exit__"))

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return contextlib.nullcontext().__exit__


def tensors_in(value: Any, limit: int = 64) -> Iterator[tuple[str, Tensor]]:
    """Tensors nested in tuples, lists, dicts and dataclasses, each with its path, ``""``, ``"0"``, ``"logits"``."""
    stack: list[tuple[str, Any]] = [("", value)]
    while stack and limit:
        path, item = stack.pop()
        if isinstance(item, Tensor):
            limit -= 1
            yield path, item
            continue
        if isinstance(item, dict):
            children = [(str(key), child) for key, child in item.items()]
        elif isinstance(item, (tuple, list)):
            children = [(str(index), child) for index, child in enumerate(item)]
        elif hasattr(item, "__dataclass_fields__"):
            children = [(name, getattr(item, name, None)) for name in item.__dataclass_fields__]
        else:
            continue
        stack.extend((f"{path}.{name}" if path else name, child) for name, child in reversed(children))


@dataclass
class _Seen:
    """What a captured forward has met already: keeps the tensors alive, so that their identities stay unique."""

    tensors: dict[int, Tensor]
    relu_nodes: set[Any]


class ModuleCapture:
    """Captures outputs, inputs and inactive units of all modules while it is switched on.

    One global module hook instead of one per module: on a step that is not due there is none, and instances stay
    untouched, so nothing that looks at a module's own hooks decides differently.
    """

    def __init__(self, hook: Hook, models: Models) -> None:
        self._hook = hook
        self._models = models
        self._handle: Any = None
        self._records: StepRecords | None = None
        self._seen = _Seen({}, set())
        self._refreshed = False
        self._guarded = hook.guarded(self._after_module)

    def switch_on(self, records: StepRecords) -> None:
        """Capture every module call into ``records`` from now on."""
        self._records = records
        self._refreshed = False
        if self._handle is None:
            self._handle = register_module_forward_hook(self._guarded)

    def switch_off(self) -> None:
        """Capture nothing more."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None
        self._records = None
        self._seen = _Seen({}, set())

    def _after_module(self, module: nn.Module, arguments: Any, output: Any) -> None:
        records = self._records
        if records is None or torch.compiler.is_compiling():
            return
        place = self._place(module)
        if place is None:
            return
        with torch.no_grad():
            if self._hook.plan.wants(Role.INPUT) and place.module_type in CONSUMER_TYPES:
                self._input(records, place, arguments)
            if self._hook.plan.wants(Role.OUTPUT):
                for path, tensor in tensors_in(output):
                    self._output(records, place, path, tensor)

    def _place(self, module: nn.Module) -> Place | None:
        place = self._models.module(module)
        if place is None and not self._refreshed and any(True for _ in module.parameters()):
            # A module that was added or materialised since the tree was read; once per forward is enough.
            self._refreshed = True
            self._models.refresh()
            place = self._models.module(module)
        return place

    def _output(self, records: StepRecords, place: Place, path: str, tensor: Tensor) -> None:
        if id(tensor) in self._seen.tensors or not (tensor.is_floating_point() or tensor.is_complex()):
            # A container returns what its last child returned.
            return
        self._seen.tensors[id(tensor)] = tensor
        name = f"{place.path}.output" if place.path else "output"
        name = f"{name}.{path}" if path else name
        if not self._hook.plan.keeps(name, Role.OUTPUT):
            return
        self._save(records, name, Role.OUTPUT, place, tensor)
        if place.module_type in RELU_TYPES:
            node = tensor.grad_fn
            if node is not None:
                self._seen.relu_nodes.add(node)
            self._units(records, name, place, tensor)

    def _input(self, records: StepRecords, place: Place, arguments: Any) -> None:
        """Units of a functional ReLU show where they are consumed: the module's input comes from one."""
        tensor = arguments[0] if arguments and isinstance(arguments[0], Tensor) else None
        if tensor is None or tensor.grad_fn is None:
            return
        node = _relu_behind(tensor.grad_fn)
        if node is None or node in self._seen.relu_nodes:
            return
        self._seen.relu_nodes.add(node)
        name = f"{place.path}.input.0"
        if self._hook.plan.keeps(name, Role.INPUT):
            self._save(records, name, Role.INPUT, place, tensor)
            self._units(records, name, place, tensor)

    def _save(self, records: StepRecords, name: str, role: Role, place: Place, tensor: Tensor) -> None:
        values = plain(tensor)
        if values is None:
            return
        tensor_id = self._hook.tensor_id(
            name,
            lambda: TensorInfo(
                0, name, role, place.path, place.module_type, place.index, tuple(tensor.shape),
                str(tensor.dtype).removeprefix("torch."), unit_axis(place.module_type, tensor.dim()),
            ),
        )  # fmt: skip
        records.statistics.append(([tensor_id], rows([values]), False))
        if self._hook.plan.keeps_raw(name, role):
            records.raw.append((tensor_id, values.float().cpu().numpy().copy()))

    def _units(self, records: StepRecords, name: str, place: Place, tensor: Tensor) -> None:
        axis = unit_axis(place.module_type, tensor.dim())
        values = plain(tensor)
        if axis is None or values is None or not values.numel():
            return
        tensor_id = self._hook.tensor_id(name, _unreachable)
        records.units.append((tensor_id, UnitKind.INACTIVE, inactive_units(values, axis)))


def _relu_behind(node: Any) -> Any:
    """The autograd node of a ReLU whose output, up to reshaping and pooling, this is; None when there is none."""
    for _ in range(_RELU_HOPS):
        name = node.name()
        if name in _RELU_NODES:
            return node
        if not name.startswith(_BETWEEN) or not node.next_functions or node.next_functions[0][0] is None:
            return None
        node = node.next_functions[0][0]
    return None


def _unreachable() -> TensorInfo:
    raise LookupError("the tensor was saved before its units")
