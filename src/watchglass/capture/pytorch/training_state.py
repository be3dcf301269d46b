"""The current state of the training run, shared by the parts of the adapter."""

from __future__ import annotations

import sys
import types
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from watchglass.capture.port import Port
from watchglass.capture.pytorch.events import Events
from watchglass.capture.pytorch.losses.loss_outputs import LossOutputs
from watchglass.capture.pytorch.losses.objective import Objectives
from watchglass.capture.pytorch.modules.models import Models
from watchglass.capture.pytorch.modules.module_tree import is_compiled
from watchglass.capture.pytorch.modules.nested_tensors import tensors_in
from watchglass.capture.step_phases import StepPhases
from watchglass.record import Forward, OpenStep

#: TRAIN steps without a new model after which none is expected.
_ALL_CALLED = 4
#: The code that runs while a module is called.
_CALL: types.CodeType = nn.Module.__call__.__code__


@dataclass
class TrainingState:
    """Shared by the parts of one adapter; written by the training thread only."""

    port: Port  #: Gets all records.
    models: Models  #: The models that are watched.
    events: Events = field(default_factory=Events)  #: The events of the adapter's parts.
    sources: LossOutputs = field(default_factory=LossOutputs)  #: Which outputs of modules are losses.
    forward: Forward | None = None  #: The last outermost forward.
    #: Forwards of the open step of which only the graph shows whether a backward runs through them: others have
    #: followed, and their outputs have no mark, since they were on the fast path or their outputs were gone; or their
    #: gradients may be a part of the loss.
    unseen: list[Forward] = field(default_factory=list)
    inputs: int = 0  #: Number of elements of the first tensor that it was given.
    forward_depth: int = 0  #: Watched outermost modules that are being called, inside one another.
    helping: bool = False  #: The outermost call that is under way is a part of a step of other models.
    in_backward: bool = False  #: A backward runs: forwards inside it are recomputations.
    update_depth: int = 0  #: Optimizers that are stepping, inside one another.
    in_closure: bool = False  #: The stepping optimizer calls its closure: forwards inside it belong to its step.
    quiet_steps: int = 0  #: TRAIN steps since a new model was seen.
    output: weakref.ref[Tensor] | None = None  #: The output of the last forward, when that was one tensor.
    loss: weakref.ref[Tensor] | None = None  #: The result of a loss function for exactly that tensor.
    outputs: tuple[weakref.ref[Tensor], ...] = ()  #: All tensors that the last forward of an evaluation returned.
    #: Calls of other models are observed since that forward; not where there is compiled code.
    observes_others: bool = False
    #: Another model was called since that forward: a loss computed from other tensors does not belong to it.
    called_another: bool = False
    own_losses: set[str] = field(default_factory=set)  #: Loss functions that were given the output of that forward.
    recomputed: bool = False  #: Whether a backward was seen to call models or to run others inside it.
    objectives: Objectives = field(default_factory=Objectives)  #: The losses that each model is trained on.
    every_gradient: bool = False  #: Whether the gradients of steps that are not captured are examined as well.
    #: Given the node that made a finite loss, before its backward, returns whether the step must leave the fast path;
    #: None where no loss needs a look.
    looks_at_loss: Callable[[Any], bool] | None = None
    begin_step: Callable[[OpenStep], None] = lambda step: None  #: Called when a TRAIN step has opened.
    #: The next TRAIN step from a given one on that a part wants to see, although it is not captured.
    next_observed: Callable[[int], int] = lambda step: sys.maxsize
    phases: StepPhases | None = None  #: Where the time of steps goes; None where it is not recorded.
    #: Backwards in a row that started from exactly such a loss, of the only forward that waited for one. While that is
    #: the habit, a forward needs no mark: the chain of output, loss and backward proves that it was trained on.
    chained: int = 0
    #: Optimizers of parameters that belong to no watched model.
    foreign: weakref.WeakSet[Optimizer] = field(default_factory=weakref.WeakSet)
    #: The last model that was called belongs to a loop around PyTorch that drives, outside of its steps.
    silent: bool = False
    _root: weakref.ref[nn.Module] | None = None
    # Looked up once for each outermost call, since it takes a walk through all modules.
    _root_compiled: bool | None = None

    def __post_init__(self) -> None:
        # A closed hook must keep no model alive.
        self.port.detach_with(self._let_go)

    @property
    def root(self) -> nn.Module | None:
        """The module of the last outermost forward, while it lives."""
        return None if self._root is None else self._root()

    @root.setter
    def root(self, root: nn.Module | None) -> None:
        self._root = None if root is None else weakref.ref(root)
        self._root_compiled = None

    @property
    def in_owned_step(self) -> bool:
        """Whether a step is open that another loop, or the script, ends."""
        clock = self.port.clock
        step = clock.evaluation or clock.train
        return step is not None and step.by_hand

    @property
    def in_forward(self) -> bool:
        """Whether the last outermost call is under way, and was not left by an exception, which no hook reports."""
        root = self.root if self.forward_depth else None
        if root is None:
            return False
        if self._root_compiled is None:
            self._root_compiled = is_compiled(root)
        if self._root_compiled:
            return True  # compiled code has other frames
        frame: types.FrameType | None = sys._getframe(1)
        while frame is not None:
            if frame.f_code is _CALL and frame.f_locals.get("self") is root:
                return True
            frame = frame.f_back
        return False

    def hold_outputs(self, output: Any) -> None:
        """The model has returned this in an evaluation, or what may be one."""
        tensors = (output,) if type(output) is Tensor else [tensor for _, tensor in tensors_in(output)]
        self.outputs = tuple([weakref.ref(tensor) for tensor in tensors])

    def returned_any_of(self, tensors: Iterable[Tensor]) -> bool:
        """Whether the last forward of an evaluation returned one of these, or the base of one of them."""
        outputs = [output for reference in self.outputs if (output := reference()) is not None]
        return bool(outputs) and any(_share(tensor, output) for tensor in tensors for output in outputs)

    def is_of_another(self, function: str, arguments: Iterable[Any]) -> bool:
        """Whether the loss of these arguments belongs to another model than the one that was called last.

        Where calls of others are not observed, it is if the function was given what that model returned before, and is
        given something else now.
        """
        if self.observes_others and not self.called_another:
            return False
        if self.returned_any_of(each for each in arguments if isinstance(each, Tensor)):
            self.own_losses.add(function)
            return False
        return self.called_another or function in self.own_losses

    @property
    def several_models(self) -> bool:
        """Whether there are several, or may be: in the first steps not all have been called."""
        return len(self.models) > 1 or self.quiet_steps < _ALL_CALLED

    def leave_update(self) -> None:
        """The last update was left by an exception, as when a notebook's cell is interrupted: its step is over."""
        self.update_depth = 0
        self.port.clock.end_update()

    def _let_go(self) -> None:
        self.forward = None
        self.unseen.clear()
        self.objectives = Objectives()


def _share(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors have their values in one place."""
    if one is other:
        return True
    try:
        return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr() != 0
    except RuntimeError:  # a tensor without a storage: sparse, or inside torch.func
        return False
