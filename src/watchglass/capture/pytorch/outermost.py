"""Calls of outermost modules: where steps begin, and where it shows whether a forward is trained on."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from watchglass.capture.pytorch.flow import Flow
from watchglass.capture.pytorch.forwards import ModuleCapture, Silent, tensors_in
from watchglass.capture.pytorch.modules import is_compiled, unwrap
from watchglass.capture.pytorch.planned import planned_steps
from watchglass.capture.pytorch.replaying import ForwardState, forward_state
from watchglass.record import Forward, OpenStep

#: Backwards from the loss of the last output, in a row, after which marks are left out.
_HABIT = 8


class Mark:
    """A tensor hook that notes that a backward ran through a forward; gradients pass unchanged.

    May be called on any of autograd's threads.
    """

    #: Tells PyTorch that nothing is lost when a tensor with this hook is saved.
    __torch_unserializable__ = True

    def __init__(self, forward: Forward, path: str) -> None:
        self._forward = forward
        self._path = path

    def __call__(self, gradient: torch.Tensor) -> None:
        """A backward reached the tensor with this gradient."""
        self._forward.backpropagated = True
        state = self._forward.state
        if isinstance(state, ForwardState):
            state.gradients[self._path] = gradient


class OutermostCalls:
    """Hooks on outermost modules.

    Args:
        flow: Where the training is.
        capture: Switched on around the forward of a captured step.
        begin_step: Called when a TRAIN step has opened.
    """

    def __init__(self, flow: Flow, capture: ModuleCapture, begin_step: Callable[[OpenStep], None]) -> None:
        self._flow = flow
        self._capture = capture
        self._begin_step = begin_step
        self._root: nn.Module | None = None
        # Models whose forward drew random numbers at the last captured step: only theirs need the generator's state.
        self._random: weakref.WeakSet[nn.Module] = weakref.WeakSet()

    def attach(self, root: nn.Module) -> None:
        """Watch the calls of a module from now on."""
        if self._flow.models.knows(root):
            return
        self._flow.models.add(root)
        self._flow.quiet_steps = 0
        hook = self._flow.hook
        before = root.register_forward_pre_hook(Silent(hook.guarded(self.before)), with_kwargs=True)
        after = root.register_forward_hook(Silent(hook.guarded(self.after)))
        hook.detach_with(before.remove)
        hook.detach_with(after.remove)

    def before(self, root: nn.Module, arguments: Any, kwargs: Any) -> None:
        """An outermost module is about to be called."""
        flow = self._flow
        if flow.in_backward:
            return  # recomputation by activation checkpointing
        if flow.forward_depth and self._root is not root:
            flow.forward_depth += 1
            return  # a watched model inside another
        # The same module again at depth 1: its last call was left by an exception.
        flow.forward_depth, self._root = 1, root
        if not flow.in_closure:
            flow.update_depth = 0
            if flow.hook.stopping:
                flow.hook.check_stop()
        self._open(root, arguments, kwargs)

    def _open(self, root: nn.Module, arguments: Any, kwargs: Any) -> None:
        flow, clock = self._flow, self._flow.hook.clock
        grad = torch.is_grad_enabled()
        before = clock.train
        if flow.forward is not None:
            flow.forward.state = None
        flow.forward = forward = clock.forward(grad=grad, training=root.training)
        batch = arguments[0] if arguments and isinstance(arguments[0], torch.Tensor) else None
        if batch is None:
            batch = next((tensor for _, tensor in tensors_in((arguments, kwargs), 1)), None)
        forward.weight = float(batch.shape[0]) if batch is not None and batch.dim() else 1.0
        step = clock.train
        if not grad or step is None:
            return
        if step is not before:
            self._begin_step(step)
        if batch is not None and batch.device.type == "cpu":
            forward.state = forward_state(root, arguments, kwargs, random=step.due or root in self._random)
        if step.due and not is_compiled(root):
            self._capture.switch_on(forward.records)

    def after(self, root: nn.Module, arguments: Any, output: Any) -> None:
        """An outermost module has returned."""
        flow = self._flow
        if flow.in_backward or not flow.forward_depth:
            return
        flow.forward_depth -= 1
        if flow.forward_depth:
            return
        self._capture.switch_off()
        forward = flow.forward
        if forward is None or flow.hook.clock.evaluation is not None:
            return
        flow.loss = flow.output = None
        if isinstance(output, torch.Tensor):
            tensors = [("", output)]
            flow.output = weakref.ref(output)
        else:
            tensors = list(tensors_in(output))
        forward.marked = False
        if flow.output is None or flow.chained < _HABIT:
            # A hook that autograd calls costs as much as all other bookkeeping of a small step.
            for path, tensor in tensors:
                if tensor.requires_grad:
                    tensor.register_hook(Mark(forward, path))
                    forward.marked = True
        state = forward.state
        if isinstance(state, ForwardState):
            # Detached: the graph, and with it all activations, must not live longer than without us.
            state.outputs = {path: tensor.detach() for path, tensor in tensors}
            step = flow.hook.clock.train
            if step is not None and step.due and state.generator is not None:
                drawn = not torch.equal(state.generator, torch.get_rng_state())
                (self._random.add if drawn else self._random.discard)(root)


def describe_training(flow: Flow, step: OpenStep) -> None:
    """Record, once, what is being trained and how many steps it means to take."""
    models = flow.models
    types = {place.path: place.module_type for tree in models for _, place in tree.modules()}
    count = sum(parameter.numel() for root in models.roots() for parameter in unwrap(root).parameters())
    data: dict[str, Any] = {
        "module_types": types,
        "parameters": count,
        "roots": [type(unwrap(root)).__name__ for root in models.roots()],
        "compiled": any(is_compiled(root) for root in models.roots()),
    }
    step.records.facts.append(("model", "second step", data))
    given = flow.hook.config.planned_steps
    planned: dict[str, Any] | None
    planned = {"steps": given, "source": "as given"} if given else planned_steps(sys._getframe())
    if planned is not None:
        step.records.facts.append(("planned_steps", str(planned["source"]), planned))
