"""The inputs, outputs and settings of a forward, with which ``first_bad`` can run it a second time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from watchglass.capture.pytorch.modules.nested_tensors import tensors_in
from watchglass.capture.pytorch.step.random_state import Draws, Randomness

#: Arguments that hold no tensor.
PLAIN = (type(None), bool, int, float, str, bytes, torch.dtype, torch.device, torch.Size)


class Settings(NamedTuple):
    """Settings of PyTorch that affect a forward on the CPU. Gradients are on: other forwards are not repeated."""

    autocast: torch.dtype | None
    deterministic: bool
    warn_only: bool

    @staticmethod
    def now() -> Settings:
        """The settings as they are."""
        return Settings(
            torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None,
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        )

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Inside, the settings are these."""
        before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
        # Without its cache of converted weights: the training would find the entries of a re-run.
        autocast = torch.autocast("cpu", self.autocast, enabled=self.autocast is not None, cache_enabled=False)
        torch.use_deterministic_algorithms(self.deterministic, warn_only=self.warn_only)
        try:
            with autocast, torch.enable_grad():
                yield
        finally:
            torch.use_deterministic_algorithms(before[0], warn_only=before[1])


class KeptOutput(NamedTuple):
    """An output that is kept, detached, with its version: it may be changed in place later."""

    tensor: Tensor
    version: int


@dataclass(slots=True)
class ForwardState:
    """The data for a re-run of a forward. References only: nothing is copied but states of generators."""

    root: nn.Module  #: The outermost module.
    arguments: Any  #: Its positional arguments.
    kwargs: Any  #: Its keyword arguments; None where they were not seen.
    settings: Settings  #: PyTorch's settings.
    versions: tuple[int, ...] | None  #: Those of all tensors it was given; None where they cannot be read.
    states: Randomness  #: States of the generators that it may draw from, before it.
    draws: Draws  #: From which ones it is known to draw.
    most_bytes: int  #: Outputs, and gradients of outputs, that are larger are not kept.
    outputs: dict[str, KeptOutput] = field(default_factory=dict)  #: Its small outputs, by path.
    gradients: dict[str, Tensor] = field(default_factory=dict)  #: Small gradients of the loss for its outputs, by path.
    #: Name, further arguments and keyword arguments of the loss function that was given its output.
    loss_call: tuple[str, tuple[Any, ...], dict[str, Any]] | None = None
    loss: float | None = None  #: The value that its backward started from; None where it is not known.

    def keep_outputs(self, outputs: list[tuple[str, Tensor]]) -> None:
        """Keep the small outputs of the forward, without their graph."""
        room = self.most_bytes
        for path, tensor in outputs:
            if tensor.nbytes <= room and not tensor.is_inference():
                room -= tensor.nbytes
                self.outputs[path] = KeptOutput(tensor.detach(), tensor._version)

    def keep_gradient(self, path: str, gradient: Tensor) -> None:
        """Keep the gradient for an output, if it is small."""
        if gradient.nbytes <= self.most_bytes:
            self.gradients[path] = gradient


def versions(arguments: Any, kwargs: Any) -> tuple[int, ...] | None:
    """How often each tensor that a module is given has been changed in place; None for what does not count it."""
    found: list[int] = []
    try:
        for value in (*arguments, *kwargs.values()) if kwargs else arguments:
            if isinstance(value, Tensor):
                found.append(value._version)
            elif not isinstance(value, PLAIN):
                found += [tensor._version for _, tensor in tensors_in(value)]
    except RuntimeError:
        return None  # made in inference mode
    return tuple(found)
