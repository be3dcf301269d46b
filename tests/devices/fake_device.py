"""A device that does not exist: tensors of PyTorch on that device, and a report of each call that would wait for it.

The numbers are real (each tensor holds one of the CPU), so a training run computes the same as on the CPU, while code
that asks for the device of a tensor takes the path of a device. Reading a value back, as ``item``, ``float``, ``bool``,
``tolist``, ``cpu``, ``nonzero`` and copies that are not asynchronous do, would make the host wait for a real device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_flatten, tree_map_only

#: A type of device whose name PyTorch knows, and which no machine of the tests has.
DEVICE = torch.device("xpu", 0)

#: Functions whose result the host cannot have before the device is done.
_WAITS = frozenset((
    "item", "tolist", "numpy", "cpu", "__array__", "__bool__", "__float__", "__int__", "__index__", "__complex__",
    "__contains__", "is_nonzero", "equal", "allclose", "nonzero", "argwhere", "masked_select", "unique", "bincount",
    "__repr__",
))  # fmt: skip
#: The same where PyTorch's own code calls them.
_WAITS_INSIDE = ("_local_scalar_dense", "nonzero", "equal", "masked_select", "_unique2", "is_nonzero")


class OnDevice(Tensor):
    """A tensor on the device; ``elem`` holds its values."""

    elem: Tensor
    device = property(lambda self: DEVICE)  # type: ignore[assignment]
    is_cpu = property(lambda self: False)  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, elem: Tensor) -> OnDevice:
        made: OnDevice = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, elem.shape, strides=elem.stride(), storage_offset=elem.storage_offset(), dtype=elem.dtype,
            layout=elem.layout, device=elem.device, requires_grad=elem.requires_grad,
        )  # fmt: skip
        made.elem = elem
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in _WAITS_INSIDE:
            _waited(name)
        inner = tree_map_only(OnDevice, lambda tensor: tensor.elem, (args, kwargs or {}))
        outer = tree_map_only(Tensor, OnDevice, func(*inner[0], **inner[1]))
        return return_and_correct_aliasing(func, args, kwargs or {}, outer)


class FakeDevice(TorchFunctionMode):
    """While it is entered, the calling thread's PyTorch has the device.

    Attributes:
        on_wait: Called with the name of each function that would wait for the device.
    """

    def __init__(self, on_wait: Callable[[str], None]) -> None:
        super().__init__()
        self.on_wait = on_wait

    def __enter__(self) -> FakeDevice:
        _devices.append(self)
        super().__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        super().__exit__(*exc)
        _devices.remove(self)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        made_there = kwargs.get("device") is not None and torch.device(kwargs["device"]) == DEVICE
        if made_there:
            del kwargs["device"]
        if name == "to" and len(args) > 1 and args[1] == DEVICE:
            made_there, args = True, (args[0], *args[2:])
        leaves = tree_flatten((args, kwargs))[0]
        if any(isinstance(leaf, OnDevice) for leaf in leaves):
            if name in _WAITS or (name in ("to", "copy_") and _comes_back(name, args, kwargs)):
                self.on_wait(name)
            if name in ("tolist", "numpy"):
                return getattr(args[0].elem.detach(), name)()
            if name == "cpu" or (name == "to" and _names_the_cpu(args, kwargs)):
                return args[0].elem.detach().clone()
        result = func(*args, **kwargs)
        return tree_map_only(Tensor, _there, result) if made_there else result


def move(module: nn.Module) -> nn.Module:
    """The module with its parameters and buffers on the device."""
    for part in module.modules():
        for name, parameter in list(part.named_parameters(recurse=False)):
            setattr(part, name, nn.Parameter(OnDevice(parameter.detach().clone()), parameter.requires_grad))
        for name, buffer in list(part.named_buffers(recurse=False)):
            setattr(part, name, OnDevice(buffer.clone()))
    return module


_devices: list[FakeDevice] = []


def _waited(name: str) -> None:
    for device in _devices:
        device.on_wait(name)


def _there(tensor: Tensor) -> Tensor:
    return tensor if isinstance(tensor, OnDevice) else OnDevice(tensor)


def _comes_back(name: str, args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether a copy ends on the host, and the host waits for it."""
    if kwargs.get("non_blocking") or (name == "copy_" and len(args) > 2 and args[2]):
        return False
    if name == "copy_":
        return not isinstance(args[0], OnDevice)
    return _names_the_cpu(args, kwargs)


def _names_the_cpu(args: Any, kwargs: dict[str, Any]) -> bool:
    places: Iterable[Any] = [*args[1:], *kwargs.values()]
    return any(isinstance(place, (str, torch.device)) and torch.device(place).type == "cpu" for place in places)
