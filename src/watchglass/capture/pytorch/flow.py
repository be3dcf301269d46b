"""Where the training is right now, as far as the adapter's parts need to tell each other."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from watchglass.capture.hook import Hook
from watchglass.capture.pytorch.models import Models
from watchglass.record import Forward


@dataclass
class Flow:
    """Shared by the parts of one adapter; written by the training's thread only.

    Attributes:
        hook: Where everything goes.
        models: The models that are watched.
        forward: The last outermost forward.
        forward_depth: Watched outermost modules that are being called, inside one another.
        in_backward: A backward runs: forwards inside it are recomputations.
        update_depth: Optimizers that are stepping, inside one another.
        in_closure: The stepping optimizer was given a closure, so forwards inside it belong to its step.
        quiet_steps: TRAIN steps since a new model was seen.
        output: What the last forward returned, when that was one tensor.
        loss: What a loss function made of exactly that tensor.
        unplaced: Losses of backwards with no forward before them: compiled code hides a model's calls.
        chained: Backwards in a row that started from exactly such a loss. While that is the habit, a forward needs no
            mark: the chain of output, loss and backward proves that it was trained on.
    """

    hook: Hook
    models: Models = field(default_factory=Models)
    forward: Forward | None = None
    forward_depth: int = 0
    in_backward: bool = False
    update_depth: int = 0
    in_closure: bool = False
    quiet_steps: int = 0
    output: weakref.ref[Tensor] | None = None
    loss: weakref.ref[Tensor] | None = None
    unplaced: list[Any] = field(default_factory=list)
    chained: int = 0
