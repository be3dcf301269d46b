"""The hook that watches this process, if any."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from watchglass.capture import Framework, Hook, attach, framework, report_uncaught
from watchglass.config import SessionConfig, environment

_log = logging.getLogger("watchglass")
_current: Hook | None = None
#: The hook of this process in the run of its launcher.
_launched: Hook | None = None
#: Whether a hook of this process has seen a training step.
_trained = False


def current_hook() -> Hook | None:
    """The hook that watches this process, None when nothing does."""
    return _current if _current is not None and _current.active else None


def set_current(hook: Hook) -> None:
    """Make ``hook`` the one that :func:`save_scalar` and :func:`save_tensor` write to."""
    global _current
    _current = hook
    hook.on_close.append(functools.partial(_forget, hook))


def _forget(hook: Hook) -> None:
    global _current, _launched, _trained
    _trained = _trained or hook.started
    if _current is hook:
        _current = None
    # One that was stopped or broke is not followed by another.
    if _launched is hook and not (hook.stopping or hook.broken):
        _launched = None


def hook_of_launch(launch: SessionConfig, owner: Framework, settings: Mapping[str, Any]) -> Hook:
    """The hook of this process in the run that its launcher began, made when it is first asked for.

    Args:
        launch: What the launcher says.
        owner: A framework whose models are to be watched: what is kept of them by default is kept.
        settings: What the script gives.
    """
    global _launched
    hook = _launched if _launched is not None and _launched.config.run == launch.run else None
    config = launch if hook is None else hook.config
    names = {each.name for each in config.collections}
    kept = (*config.collections, *(each for each in owner.collections if each.name not in names))
    config = replace(config, collections=kept).with_settings(settings)
    if hook is not None:
        if config != hook.config:
            hook.reconfigure(config)
        return hook
    hook = _launched = Hook(config=config)
    set_current(hook)
    return hook


def on_framework_imported(name: str, begun_s: float | None = None) -> None:
    """A framework has been imported in a process that ``watchglass run`` started: watch what it trains.

    Never raises: a training run must not fail because it cannot be watched. One warning says why it is not.

    Args:
        name: Name of the framework, ``"torch"``.
        begun_s: When importing this package began, of :func:`time.perf_counter`; None where that is not known.
    """
    if environment.disabled():
        return
    try:
        launch = SessionConfig.from_env()
        if launch is None:
            return
        owner = framework(name)
        hook = hook_of_launch(launch, owner, {})
        if not hook.active:
            return
        attach(hook, owner)
        if begun_s is not None:
            hook.cost.began(int((time.perf_counter() - begun_s) * 1e9))
    except Exception as error:
        if environment.strict():
            raise
        _log.warning("watchglass: this training is not captured: %s: %s", type(error).__name__, error)


def on_failure(first: bool) -> None:
    """An exception that nothing caught ends a process that ``watchglass run`` started: the launcher shall know which.

    Called when the interpreter ends, after the hook of this process has been closed.

    Args:
        first: Whether it is the process that the launcher started.
    """
    report_uncaught(first=first, trains=_trained)


def save_scalar(name: str, value: float, collection: str | None = None) -> None:
    """Record one number at the current step; does nothing where the training is not watched.

    Args:
        name: Its name in the run, ``"reward"``.
        value: A number, or a tensor of one element.
        collection: Name of a collection to file it under; ``metrics`` when not given.
    """
    hook = current_hook()
    if hook is not None:
        hook.save_scalar(name, value, collection)


def save_tensor(name: str, value: Any, collection: str | None = None) -> None:
    """Record a tensor's statistics at the current step; does nothing where the training is not watched.

    Args:
        name: Its name in the run.
        value: Anything NumPy can read; a PyTorch tensor may live on any device.
        collection: Name of a collection to file it under.
    """
    hook = current_hook()
    if hook is not None:
        hook.save_tensor(name, value, collection)
