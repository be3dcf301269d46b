"""Events that the adapter's parts can listen to.

A part (facts, optimizer state, labels, attention) is a class that registers with :meth:`Events.add`: its methods named
like events are called from then on. They are called on captured steps only, in the training thread,
inside the hook's guard and under ``no_grad``, in the order in which they were added; on other steps no code of a part
runs. A part may keep no argument past the call, except weak references to tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from torch import Tensor, nn
from torch.optim import Optimizer

from watchglass.capture.module_places import ParameterPlace, Place
from watchglass.capture.pytorch.graph.autograd_graph import BackwardStart
from watchglass.capture.saving.parameters import LateGradients
from watchglass.capture.saving.saving import is_out_of_memory, report_exhaustion
from watchglass.record import CapturedRecords, Forward, OpenStep, Readback

_Told = TypeVar("_Told")


@dataclass(frozen=True, slots=True)
class ForwardCall:
    """One call of an outermost module."""

    step: OpenStep  #: Its step: a TRAIN step, or a separate EVAL step.
    forward: Forward  #: The forward; captured tensors go into ``forward.records``.
    root: nn.Module  #: The outermost module.
    arguments: tuple[Any, ...]  #: Positional arguments.
    #: Keyword arguments; None where they were not seen (the first call of a discovered model).
    kwargs: dict[str, Any] | None
    output: Any = None  #: Its output; None until it returns.


@dataclass(frozen=True, slots=True)
class ModuleCall:
    """One call of any module, the outermost ones included.

    PyTorch (2.13) shows keyword arguments to a global hook only at the price of an entry that stays behind when the
    hook is removed, which makes every later ``torch.compile`` warn.
    """

    records: CapturedRecords  #: Records of the step.
    place: Place  #: Position of the module.
    module: nn.Module  #: The module.
    arguments: tuple[Any, ...]  #: Positional arguments.
    output: Any = None  #: Its output; None until it returns.
    kwargs: dict[str, Any] | None = None  #: Keyword arguments, of an outermost module as it is called; else None.
    outermost: bool = False  #: Whether this is the call of an outermost module, as it begins.


@dataclass(frozen=True, slots=True)
class LossCall:
    """One call of a loss function of ``torch.nn.functional`` on the output of a forward."""

    forward: Forward  #: The forward it belongs to.
    function: str  #: Its name, ``"cross_entropy"``.
    predictions: Any  #: Its first argument.
    target: Any  #: Its second, None where it has none.
    arguments: tuple[Any, ...]  #: All positional arguments.
    kwargs: dict[str, Any]  #: All keyword arguments.
    result: Tensor  #: Its result.
    training: bool  #: Whether this is part of a TRAIN step.


@dataclass(frozen=True, slots=True)
class BackwardCall:
    """The start of a backward from one tensor."""

    step: OpenStep  #: Its TRAIN step.
    forward: Forward  #: The last forward.
    start: BackwardStart  #: Where it starts in autograd's graph, before a scaler multiplied the tensor.


@dataclass(frozen=True, slots=True)
class Update:
    """One optimizer's step."""

    step: OpenStep  #: The TRAIN step.
    optimizer: Optimizer  #: The optimizer.
    #: Those of its parameters that belong to a known model: (parameter, name, place).
    parameters: Sequence[tuple[Tensor, str, ParameterPlace]]
    scale: Any = None  #: Factor by which a scaler has multiplied the gradients; None for unscaled ones.


@dataclass
class Events:
    """Lists of listeners; the docstring of the module states when they are called."""

    #: A TRAIN step that is captured has opened.
    step_began: list[Callable[[OpenStep], None]] = field(default_factory=list)
    #: An outermost module is about to be called.
    forward_began: list[Callable[[ForwardCall], None]] = field(default_factory=list)
    #: The same of the first forward of an evaluation, which need not be captured.
    evaluation_began: list[Callable[[ForwardCall], None]] = field(default_factory=list)
    #: Not about captured steps: an outermost module is about to be called in an evaluation.
    each_evaluated: list[Callable[[ForwardCall], None]] = field(default_factory=list)
    #: A module is about to run; only while a part wants inputs, see
    #: :class:`~watchglass.capture.pytorch.tensors.module_entry.ModuleEntry`.
    module_entered: list[Callable[[ModuleCall], None]] = field(default_factory=list)
    #: Listeners for returns of modules, each with a function that decides, as a captured forward begins, whether it
    #: listens in this forward.
    module_listeners: list[tuple[Callable[[], bool], Callable[[ModuleCall], None]]] = field(default_factory=list)
    #: Those of them that listen in this forward: a module has returned.
    module_called: list[Callable[[ModuleCall], None]] = field(default_factory=list)
    #: Compiled code computes attention, with these arguments by name, in the module that was entered last and has not
    #: returned.
    attention_compiled: list[Callable[[dict[str, Any]], None]] = field(default_factory=list)
    #: The outermost module has returned.
    forward_ended: list[Callable[[ForwardCall], None]] = field(default_factory=list)
    loss_computed: list[Callable[[LossCall], None]] = field(default_factory=list)  #: A loss function has returned.
    #: A backward is about to run, from one tensor and for all parameters.
    backward_began: list[Callable[[BackwardCall], None]] = field(default_factory=list)
    #: An optimizer is about to change its parameters; with a closure, this has returned for the first time.
    update_began: list[Callable[[Update], None]] = field(default_factory=list)
    update_ended: list[Callable[[Update], None]] = field(default_factory=list)  #: It has changed them.
    #: A backward has ended, and lines of the script may change parameters now.
    script_update_began: list[Callable[[Update], None]] = field(default_factory=list)
    script_update_ended: list[Callable[[Update], None]] = field(default_factory=list)  #: They have changed them.
    #: An outermost module is about to be called with gradients, in training mode where it was in evaluation mode at the
    #: last such call, or the other way round; the step is not captured.
    mode_changed: list[Callable[[ForwardCall], None]] = field(default_factory=list)
    #: Not about captured steps: an outermost module is about to be called with gradients.
    each_forward_began: list[Callable[[ForwardCall], None]] = field(default_factory=list)
    #: Not about captured steps: it has returned.
    each_forward_ended: list[Callable[[ForwardCall], None]] = field(default_factory=list)
    #: Not about captured steps: a backward of a watched model is about to run.
    each_backward_began: list[Callable[[], None]] = field(default_factory=list)
    #: Not about captured steps: it has ended, maybe by an exception.
    each_backward_ended: list[Callable[[], None]] = field(default_factory=list)
    #: Not about captured steps: a backward begins from a loss that is not finite, or that is a readback, so that it is
    #: not known yet whether it is; with where it starts in autograd's graph.
    loss_suspected: list[Callable[[OpenStep, float | Readback, BackwardStart], None]] = field(default_factory=list)
    #: Not about captured steps: a backward begins from one loss on the CPU that is finite; with the same.
    finite_loss: list[Callable[[OpenStep, BackwardStart], None]] = field(default_factory=list)
    #: Not about captured steps: gradients are final, and an optimizer is about to use them; with whether a scaler is at
    #: work, so that they may overflow.
    each_update_began: list[Callable[[OpenStep, bool], None]] = field(default_factory=list)
    #: Not about captured steps: gradients are not finite, named by their parameters in order of the model, or these
    #: names are not known yet.
    gradients_suspected: list[Callable[[OpenStep, list[str] | LateGradients], None]] = field(default_factory=list)
    #: Not about captured steps: an optimizer has stepped.
    each_update_ended: list[Callable[[OpenStep, Optimizer], None]] = field(default_factory=list)
    #: Not about captured steps: any optimizer is about to step, of watched models or not.
    optimizer_steps: list[Callable[[Optimizer], None]] = field(default_factory=list)
    #: Not about captured steps: it has stepped.
    optimizer_stepped: list[Callable[[Optimizer], None]] = field(default_factory=list)
    #: Not about captured steps: a step has been updated, by an optimizer or by the script.
    each_step_updated: list[Callable[[OpenStep], None]] = field(default_factory=list)
    #: Not about captured steps: called with True when the steps to come are like the ones before and none of them is
    #: captured, with False when that ends. Listeners to events of every step rest in between.
    resting: list[Callable[[bool], None]] = field(default_factory=list)

    def add(self, part: object) -> Callable[[], None]:
        """Call the methods of ``part`` that are named like events; returns an undo function."""
        observed = [
            (getattr(self, event.name), getattr(part, event.name))
            for event in fields(self)
            if hasattr(part, event.name)
        ]
        for listeners, method in observed:
            listeners.append(method)

        def leave() -> None:
            for listeners, method in observed:
                if method in listeners:
                    listeners.remove(method)

        return leave

    def ask_module_listeners(self) -> None:
        """A captured forward begins: choose the listeners to its modules. Most parts skip most forwards."""
        self.module_called = [listener for wants, listener in self.module_listeners if wants()]

    def notify(self, listeners: list[Callable[[_Told], None]], event: _Told, records: CapturedRecords) -> None:
        """Call listeners; a part that runs out of memory is dropped, which is noted in ``records``."""
        for listener in tuple(listeners):
            try:
                listener(event)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                self._leave_out(listener)
                part = _part(listener)
                report_exhaustion(records, f"tensors of {getattr(part, '__qualname__', type(part).__name__)}", error)

    def _leave_out(self, listener: Any) -> None:
        part = _part(listener)
        for field_ in fields(self):
            known = getattr(self, field_.name)
            known[:] = [other for other in known if _part(other) is not part]


def _part(listener: Any) -> Any:
    """The part that a listener belongs to."""
    called = listener[-1] if isinstance(listener, tuple) else listener
    return getattr(called, "__self__", called)
