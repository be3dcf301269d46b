"""The current hook of this process."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from watchglass.capture import Hook, Loop, attach, loop, named_by, report_uncaught
from watchglass.config import SessionConfig, environment

_log = logging.getLogger("watchglass")
_current: Hook | None = None
#: The hook of this process in the run of its launcher.
_launched: Hook | None = None
#: Whether a hook of this process has seen a training step, and the backward passes before such a step.
_trained, _early_backwards = False, 0


def current_hook() -> Hook | None:
    """The hook that watches this process; None for none."""
    return _current if _current is not None and _current.active else None


def set_current(hook: Hook) -> None:
    """Make ``hook`` the one that :func:`save_scalar` and :func:`save_tensor` write to."""
    global _current
    _current = hook
    hook.port.on_close.append(functools.partial(_forget, hook))


def _forget(hook: Hook) -> None:
    global _current, _launched, _trained, _early_backwards
    _trained = _trained or hook.started
    _early_backwards += hook.port.early_backwards
    if _current is hook:
        _current = None
    # A hook that was stopped or failed gets no successor.
    if _launched is hook and not (hook.port.changes.stopping or hook.port.guard.broken):
        _launched = None


def hook_of_launch(launch: SessionConfig, driver: Loop, settings: Mapping[str, Any]) -> Hook:
    """The hook of this process in the run of its launcher, created on first use.

    Args:
        launch: The configuration of the launcher.
        driver: The loop, whose default collections are recorded.
        settings: The settings of the script.
    """
    global _launched
    hook = _launched if _launched is not None and _launched.port.config.run == launch.run else None
    config = launch if hook is None else hook.port.config
    names = {each.name for each in config.collections}
    kept = (*config.collections, *(each for each in driver.collections if each.name not in names))
    config = replace(config, collections=kept).with_settings(settings)
    if hook is not None:
        if config != hook.port.config:
            hook.port.reconfigure(config)
        return hook
    hook = _launched = Hook(config=config)
    if launch.tensorboard is None:  # else the launcher has started it
        hook.port.on_start.append(functools.partial(_export_of_script, hook))
    set_current(hook)
    return hook


def _export_of_script(hook: Hook, attempt: int) -> None:
    """Start to write for TensorBoard if the script has asked for it by the first step."""
    from watchglass.session.evaluator import export_of

    config = hook.port.config
    if config.tensorboard is not None:
        export = export_of(config, config.tensorboard)
        export.start(attempt)
        hook.port.on_look.append(export.look)
        hook.port.on_close.append(export.finish)


def on_framework_imported(name: str, begun_s: float | None = None) -> None:
    """Watch the models of a framework that was imported in a process of ``watchglass run``.

    Never raises: a training run must not fail because it cannot be watched. One warning gives the reason.

    Args:
        name: Name of the module that makes it known, ``"torch"``, ``"transformers.trainer"``.
        begun_s: Start of the import of this package, of :func:`time.perf_counter`; None if unknown.
    """
    if environment.disabled():
        return
    try:
        launch = SessionConfig.from_env()
        if launch is None:
            return
        driver = loop(named_by(name))
        hook = hook_of_launch(launch, driver, {})
        if not hook.active:
            return
        attach(hook.port, driver)
        if begun_s is not None:
            hook.port.cost.began(int((time.perf_counter() - begun_s) * 1e9))
    except Exception as error:
        if environment.strict():
            raise
        _log.warning("watchglass: this run is not captured: %s: %s", type(error).__name__, error)


def on_failure(first: bool) -> None:
    """Report to the launcher the uncaught exception that ends this process.

    Called when the interpreter ends, after the hook of this process has been closed.

    Args:
        first: Whether the launcher started this process.
    """
    report_uncaught(first=first, trains=_trained)


def recorded() -> tuple[bool, int]:
    """Whether this process has recorded a training step, and the number of backward passes before; at its end."""
    return _trained, _early_backwards


def save_scalar(name: str, value: float, collection: str | None = None) -> None:
    """Record one number at the current step; does nothing in a run that is not watched.

    Args:
        name: Its name in the run, ``"reward"``.
        value: A number, or a tensor of one element.
        collection: Name of a collection to file it under; ``metrics`` when not given.
    """
    hook = current_hook()
    if hook is not None:
        hook.save_scalar(name, value, collection)


def save_tensor(name: str, value: Any, collection: str | None = None) -> None:
    """Record a tensor's statistics at the current step; does nothing in a run that is not watched.

    Args:
        name: Its name in the run.
        value: Anything NumPy can read; a PyTorch tensor may live on any device.
        collection: Name of a collection to file it under.
    """
    hook = current_hook()
    if hook is not None:
        hook.save_tensor(name, value, collection)
