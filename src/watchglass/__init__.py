"""watchglass: an open training debugger.

``watchglass run train.py`` watches a training without changes to the script; :func:`watch` does it in one line.
Importing this package imports no machine-learning framework, and almost nothing else: names load when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from watchglass.actions import Action
    from watchglass.capture import Hook
    from watchglass.config import Collection
    from watchglass.errors import (
        DeliverLater,
        NeverError,
        NoMoreError,
        NotYetError,
        TrainingStopped,
        Undeliverable,
        UnknownNameError,
    )
    from watchglass.records import Event, Finding, Mode, Role, Severity
    from watchglass.rules import Needs, Rule
    from watchglass.run import Run, Runs, open_run, open_runs
    from watchglass.session import save_scalar, save_tensor, watch, xgboost_callback

__version__ = "0.1.0"

_HOMES = {
    "Action": "actions", "Collection": "config", "DeliverLater": "errors", "Event": "records", "Finding": "records",
    "Hook": "capture", "Mode": "records", "Needs": "rules",
    "NeverError": "errors", "NoMoreError": "errors", "NotYetError": "errors", "Role": "records", "Rule": "rules",
    "Run": "run", "Runs": "run", "Severity": "records", "TrainingStopped": "errors", "Undeliverable": "errors",
    "UnknownNameError": "errors",
    "open_run": "run", "open_runs": "run", "save_scalar": "session", "save_tensor": "session", "watch": "session",
    "xgboost_callback": "session",
}  # fmt: skip

__all__ = [
    "Action", "Collection", "DeliverLater", "Event", "Finding", "Hook", "Mode", "Needs", "NeverError", "NoMoreError",
    "NotYetError", "Role", "Rule", "Run", "Runs", "Severity", "TrainingStopped", "Undeliverable", "UnknownNameError",
    "__version__", "open_run", "open_runs", "save_scalar", "save_tensor", "watch", "xgboost_callback",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'watchglass' has no attribute {name!r}")
    value = getattr(import_module(f"watchglass.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
