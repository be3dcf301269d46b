"""An import of PyTorch in a thread: the thread that trains is not known yet, and may be another one.

The thread that makes the first module, or runs the first backward, is taken for the one that trains.
"""

from __future__ import annotations

from typing import Any

from watchglass.capture.port import Port
from watchglass.capture.pytorch.adapter import PyTorchAdapter
from watchglass.capture.pytorch.public_calls import EVERY_BACKWARD, MODULE_MADE


def attach_at_first_use(port: Port) -> None:
    """Watch all modules that are trained, in the thread that first uses PyTorch."""
    leave = [
        MODULE_MADE.listen(port.guard, before=lambda args, kwargs: attach()),
        EVERY_BACKWARD.listen(port.guard, before=lambda args, kwargs: attach(args, kwargs)),
    ]

    def settle() -> bool:
        """Stop waiting; returns whether this thread is the first to do so."""
        first = False
        while leave:
            leave.pop()()
            first = True
        return first

    def attach(*backward: Any) -> None:
        if settle() and PyTorchAdapter.of(port) is None:
            port.guard.enter_thread()
            adapter = PyTorchAdapter(port, discover=True)
            if backward:  # its own listener comes too late for this one
                adapter.fast_path.before_backward(*backward)

    port.detach_with(settle)
