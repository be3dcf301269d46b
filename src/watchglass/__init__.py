"""watchglass: an open training debugger.

``watchglass run train.py`` watches a training run without changes to the script; :func:`watch` does it in one line.
Importing this package imports no machine-learning framework, and almost nothing else: names load when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from watchglass.lazy_imports import lazily
from watchglass.version import __version__ as __version__

if TYPE_CHECKING:
    from watchglass import jax
    from watchglass.actions import Action
    from watchglass.capture import Hook
    from watchglass.config import Collection, ProfilerConfig, TensorBoardConfig
    from watchglass.errors import (
        DeliverLater,
        EndOfRunError,
        ProfileRefusedError,
        StepNotReadyError,
        StepNotRecordedError,
        TrainingStopped,
        UndeliverableError,
        UnknownNameError,
    )
    from watchglass.records import Event, Finding, Mode, ModuleKind, Role, Severity
    from watchglass.rules import Needs, Rule
    from watchglass.run import Run, Runs, open_run, open_runs
    from watchglass.session import callback, save_scalar, save_tensor, watch
    from watchglass.view import live


__all__ = [
    "Action",
    "Collection",
    "DeliverLater",
    "EndOfRunError",
    "Event",
    "Finding",
    "Hook",
    "Mode",
    "ModuleKind",
    "Needs",
    "ProfileRefusedError",
    "ProfilerConfig",
    "Role",
    "Rule",
    "Run",
    "Runs",
    "Severity",
    "StepNotReadyError",
    "StepNotRecordedError",
    "TensorBoardConfig",
    "TrainingStopped",
    "UndeliverableError",
    "UnknownNameError",
    "__version__",
    "callback",
    "jax",
    "live",
    "open_run",
    "open_runs",
    "save_scalar",
    "save_tensor",
    "watch",
]  # fmt: skip

if not TYPE_CHECKING:
    __getattr__ = lazily(__name__)


def __dir__() -> list[str]:
    return __all__
