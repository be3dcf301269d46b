"""The planned number of training steps, read from the variables of the script."""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any

from watchglass.records import facts

_EPOCHS = ("epochs", "num_epochs", "n_epochs", "max_epochs", "total_epochs", "nepochs", "EPOCHS", "NUM_EPOCHS")
_STEPS = ("max_steps", "total_steps", "num_steps", "train_steps", "n_steps", "max_iters", "iterations", "total_iters")
_SPACES = ("args", "config", "cfg", "opt", "hparams", "params", "settings", "self", "trainer")
_MAX_FRAMES = 40


def planned_steps(frame: types.FrameType | None, batches_per_step: int = 1) -> facts.PlannedSteps | None:
    """Those of the calling script, or None where no variable holds it.

    Searches the calling frames for variables with common names: a number of steps, or a number of epochs and a data
    loader of known length. The source names the variable.

    Args:
        frame: The innermost frame.
        batches_per_step: Batches of an update.
    """
    for scope in _scopes(frame):
        found = _find(scope, _STEPS)
        if found is not None:
            return facts.PlannedSteps(found[1], found[0])
        epochs = _find(scope, _EPOCHS)
        loader = _loader(scope)
        if epochs is not None and loader is not None:
            # The micro-batches left over at the end of an epoch make one more update.
            steps = epochs[1] * -(-loader[1] // batches_per_step)
            return facts.PlannedSteps(steps, f"{epochs[0]} x len({loader[0]})")
    return None


def _scopes(frame: types.FrameType | None) -> Iterator[dict[str, Any]]:
    """Variables by name, innermost frame first, each frame added to those before it.

    So epochs in one function and a loader in another are found together.
    """
    gathered: dict[str, Any] = {}
    for _ in range(_MAX_FRAMES):
        if frame is None:
            return
        name = frame.f_globals.get("__name__", "")
        if not name.startswith(("watchglass", "torch.")):
            for variables in (_variables(frame), frame.f_globals if name == "__main__" else {}):
                for key, value in variables.items():
                    gathered.setdefault(key, value)
            yield gathered
        frame = frame.f_back


def _variables(frame: types.FrameType) -> dict[str, Any]:
    variables = dict(frame.f_locals)
    if sys.version_info < (3, 13) and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        # Until 3.13 a function's frame keeps this snapshot, and with it a batch of data, until it returns.
        frame.f_locals.clear()
    return variables


def _find(scope: Mapping[str, Any], names: tuple[str, ...]) -> tuple[str, int] | None:
    for name in names:
        count = _count(scope, name)
        if count is not None:
            return name, count
    for space in _SPACES:
        values = _values(scope.get(space))
        for name in names:
            count = _count(values, name)
            if count is not None:
                return f"{space}.{name}", count
    return None


# Objects of a script may raise anything when they are read: a missing setting, an unbound proxy.


def _values(holder: Any) -> Mapping[str, Any]:
    try:
        return holder if isinstance(holder, Mapping) else vars(holder)
    except Exception:
        return {}


def _count(values: Mapping[str, Any], name: str) -> int | None:
    try:
        value = values.get(name)
        counts = isinstance(value, int) and not isinstance(value, bool) and 0 < value < 10**12
        return int(value) if counts else None  # type: ignore[arg-type]
    except Exception:
        return None


def _loader(scope: Mapping[str, Any]) -> tuple[str, int] | None:
    torch_data = sys.modules.get("torch.utils.data")
    if torch_data is None:
        return None
    found = [(name, value) for name, value in scope.items() if _is(value, torch_data.DataLoader)]
    found.sort(key=lambda item: "train" not in item[0].lower())
    for name, loader in found:
        try:
            return name, len(loader)
        except Exception:
            continue
    return None


def _is(value: Any, kind: type) -> bool:
    try:
        return isinstance(value, kind)
    except Exception:
        return False
