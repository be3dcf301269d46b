"""What casts to float8 lose inside a forward or a backward, where no module returns the result."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import has_torch_function
from torch.utils.hooks import RemovableHandle

from watchglass.capture.module_places import NOWHERE, Place
from watchglass.capture.planning.sketch_pace import is_power_of_two
from watchglass.capture.port import Port
from watchglass.capture.pytorch.events import Events, ForwardCall, ModuleCall, Update
from watchglass.capture.pytorch.modules.models import Models
from watchglass.capture.pytorch.modules.nested_tensors import tensors_in
from watchglass.capture.pytorch.public_calls import READS
from watchglass.capture.pytorch.step.tensor_hooks import observe_gradient
from watchglass.capture.pytorch.tensors.module_entry import is_open
from watchglass.capture.pytorch.tensors.running_modules import RunningModules
from watchglass.capture.saving.saving import Item, Saving
from watchglass.record import CapturedRecords, OpenStep
from watchglass.records import Role

_TAG = "float8_casts"
#: The smallest number of each kind above zero (Micikevicius et al., FP8 Formats for Deep Learning, 2209.05433; Noune et
#: al., 8-bit Numerical Formats for Deep Neural Networks, 2206.02915). ``torch.finfo`` has a wrong ``eps`` for the last.
_SMALLEST = {
    getattr(torch, name): smallest
    for name, smallest in (
        ("float8_e4m3fn", 2.0**-9), ("float8_e5m2", 2.0**-16), ("float8_e4m3fnuz", 2.0**-10),
        ("float8_e5m2fnuz", 2.0**-17),
    )
    if hasattr(torch, name)
}  # fmt: skip
#: Captured steps without a cast before it is looked for at powers of two only: Python caches no methods of a class that
#: has changed too often. Casts to one dtype of one module in one direction, elements of one cast that are read.
_PATIENCE, _MOST_CASTS, _MOST_ELEMENTS = 4, 8, 1 << 22


class Float8Casts:
    """Saves ``fc1.cast_overflow.float8_e4m3fn.0`` and ``fc1.cast_underflow.float8_e4m3fn.0``, a share (0..1) each.

    The first is the share of finite elements at or beyond the largest number of the dtype; a clamp before the cast puts
    them there. The second is the share of elements other than zero that become zero. Casts in a backward have
    ``.backward`` before the dtype; they belong to the module whose output got its gradient last.

    Observed is ``Tensor.to``, in captured training steps from the first call of the model to the update. Shares are
    computed from the argument on its device. Not observed: casts by compiled code and by kernels of other libraries.
    Compiled code has no guard on the wrapper.
    """

    def __init__(self, port: Port, models: Models, saving: Saving, events: Events) -> None:
        self._port = port
        self._saving = saving
        self._running = RunningModules()
        self._step: OpenStep | None = None
        self._forward: ForwardCall | None = None
        # Captured steps so far, and whether one had a cast.
        self._captures, self._found = 0, False
        # Casts of this forward, or in the backward of this step, by the beginning of their names.
        self._count: Counter[str] = Counter()
        # Modules with a cast in this forward: their outputs show when the backward reaches them.
        self._casting: set[str] = set()
        self._behind: Place = NOWHERE
        self._handles: list[RemovableHandle] = []
        self._leave: Callable[[], None] | None = None
        self._guarded_cast = port.guarded(self._cast)
        events.add(self)
        events.module_listeners.append((lambda: self._leave is not None, self._returned))
        port.detach_with(self._end)

    def step_began(self, step: OpenStep) -> None:
        """A captured step has opened."""
        self._end()
        if not self._port.plan.wants_tag(_TAG):
            return
        self._captures += 1
        if self._found or self._captures <= _PATIENCE or is_power_of_two(self._captures):
            self._step = step
            self._leave = READS["to"].listen(self._port.guard, before=self._may_be_observed, after=self._called)

    def forward_began(self, call: ForwardCall) -> None:
        """A captured forward begins."""
        self._running.clear()
        self._forward = call if self._leave is not None and call.step is self._step else None
        self._count.clear()
        self._casting.clear()

    def forward_ended(self, call: ForwardCall) -> None:
        """It has ended."""
        self._forward = None
        self._running.clear()
        self._count.clear()

    def module_entered(self, entry: ModuleCall) -> None:
        """A module is about to run."""
        if self._forward is not None:
            self._running.entered(entry)

    def update_began(self, update: Update) -> None:
        """Forwards and backwards of the step are over."""
        self._end()

    def _returned(self, call: ModuleCall) -> None:
        self._running.returned(call)
        if self._forward is None or call.place.path not in self._casting:
            return
        for _, output in tensors_in(call.output):
            if output.requires_grad:
                reached = self._reaching(call.place)
                self._handles.append(observe_gradient(output, self._port.guard, reached))

    def _reaching(self, place: Place) -> Callable[[Tensor | None], None]:
        listener = weakref.ref(self)

        def reached(gradient: Tensor | None) -> None:
            part = listener()
            if part is not None:
                part._behind = place

        return reached

    def _end(self) -> None:
        self._step = self._forward = None
        self._running.clear()
        self._count.clear()
        self._casting.clear()
        self._behind = NOWHERE
        while self._handles:
            self._handles.pop().remove()
        leave, self._leave = self._leave, None
        if leave is not None:
            leave()

    # -- casts --------------------------------------------------------------------------------------------------------

    def _may_be_observed(self, arguments: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if has_torch_function(arguments[:1]):
            # PyTorch would show the wrapper to the script's own kinds of tensors and modes, instead of the method.
            self._end()

    def _called(self, arguments: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        if type(result) is Tensor and result.dtype in _SMALLEST and self._step is not None:
            self._guarded_cast(arguments[0], result.dtype)

    def _cast(self, given: Tensor, dtype: torch.dtype) -> None:
        if self._step is None or not is_open(self._port, self._step):
            self._end()  # a step without an update, after an exception
            return
        where = self._where()
        if where is None or not given.is_floating_point() or given.dtype in _SMALLEST or not given.numel():
            return
        records, place, direction = where
        self._found = True
        self._casting.add(place.path)
        kind = str(dtype).removeprefix("torch.")
        begins = place.named(*direction, kind)
        number = self._count[begins]
        self._count[begins] += 1
        if number >= _MOST_CASTS:
            return
        with torch.no_grad():
            shares = lost_by_cast(given.detach(), dtype)
        items = [
            Item(share, place.named(what, *direction, kind, str(number)), place, (_TAG,))
            for what, share in zip(("cast_overflow", "cast_underflow"), shares, strict=True)
        ]
        self._saving.save_all(records, Role.CUSTOM, items)

    def _where(self) -> tuple[CapturedRecords, Place, tuple[str, ...]] | None:
        assert self._step is not None
        if self._forward is not None:
            place = self._running.innermost
            return None if place is None else (self._forward.forward.records, place, ())
        return (self._step.records, self._behind, ("backward",)) if self._port.guard.waiting else None


def lost_by_cast(given: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """What a cast loses: shares (0..1), float32[] on the device of the tensor.

    Args:
        given: The tensor that is cast, of any shape and floating dtype. Of a tensor with more than four million
            elements an evenly spaced part is read.
        dtype: A kind of float8.

    Returns:
        Share of the finite elements at or beyond the largest number, and share of the finite elements other than zero
        that are rounded to zero; 0 without such elements.
    """
    while given.numel() > _MOST_ELEMENTS:
        axis = max(range(given.dim()), key=lambda each: given.shape[each])
        given = given[(slice(None),) * axis + (slice(None, None, 2),)]
    size = given.abs()
    finite = size.isfinite()
    # Half of the smallest number is rounded to the even neighbour, which is zero.
    zeroed = (size > 0) & (size <= _SMALLEST[dtype] / 2)
    over = (size >= torch.finfo(dtype).max) & finite
    nonzero = (size > 0) & finite
    return over.sum() / finite.sum().clamp(min=1), zeroed.sum() / nonzero.sum().clamp(min=1)
