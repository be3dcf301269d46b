"""Where the training steps of PyTorch end, for windows that are profiled: each step of an optimizer."""

from __future__ import annotations

from collections.abc import Callable

from torch.optim.optimizer import register_optimizer_step_post_hook

from watchglass.capture.port import Port
from watchglass.capture.profiling.step_windows import StepBoundaries
from watchglass.capture.pytorch.compiled.graphs import captured, compiling


class OptimizerSteps(StepBoundaries):
    """An optimizer has stepped.

    Args:
        port: Its guard runs the callbacks.
    """

    missing = "no optimizer of PyTorch has stepped in the training thread, which a window needs"

    def __init__(self, port: Port) -> None:
        self._port = port

    def listen(self, passed: Callable[[], None]) -> Callable[[], None]:  # noqa: D102
        after = self._port.guard.shielded(lambda optimizer, args, kwargs: passed(), unless=compiling)
        return register_optimizer_step_post_hook(after).remove

    def obstacle(self) -> str:  # noqa: D102
        return "a CUDA graph is being captured" if captured() else ""
