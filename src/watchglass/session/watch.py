"""`watch`: one line in a script or notebook."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from watchglass.capture import Hook
from watchglass.config import DEFAULT_RUNS, EvaluatorConfig, SessionConfig, environment, find_file, joined, read_file
from watchglass.errors import InvalidValueError
from watchglass.records import Severity
from watchglass.session.current import current_hook, set_current
from watchglass.session.evaluator import WatchedEvaluator, rule_specs

_log = logging.getLogger("watchglass")


def watch(
    model: Any,
    *,
    optimizer: Any = None,
    run: str | os.PathLike[str] | None = None,
    runs: str | os.PathLike[str] | None = None,
    rules: str | Iterable[Any] | None = None,
    stop_on: Severity | str | None = None,
    config_file: str | os.PathLike[str] | None = None,
    **settings: Any,
) -> Hook:
    """Watch a model's training from here on; returns the hook, whose ``close`` ends it.

    Losses, accuracy, learning rates, weights, gradients, updates and module outputs are found by themselves. In a
    script that runs under ``watchglass run`` the model joins that run: settings that are given here hold there too,
    where its command line does not say otherwise, and the other arguments are not needed.

    Args:
        model: A ``torch.nn.Module``, as it is called in the training loop.
        optimizer: Its optimizer; may be left out, every optimizer of the model's parameters is found.
        run: Where the run is written, a folder or ``s3://bucket/path``; ``<script>-<time>`` below ``runs`` when not
            given.
        runs: Folder or prefix of runs that are not named; ``$WATCHGLASS_RUNS``, or ``runs``, when not given.
        rules: ``"default"``, or a list of names, ``"file.py:Class"`` or rule instances: evaluated in a process of
            their own while the training goes on, findings printed as they come. None evaluates nothing now;
            ``watchglass check`` can later.
        stop_on: Stop the training at a finding of this severity: ``"error"`` or ``"warning"``. None never stops it.
        config_file: File of settings; when not given, the nearest ``watchglass.toml`` if there is one.
        **settings: Fields of :class:`~watchglass.config.SessionConfig`: ``collections``, ``save_interval`` (steps),
            ``overhead_budget`` (ratio, 0.01), ``capture_memory_bytes``, ``planned_steps`` and so on. They come before
            those of the file.

    Raises:
        InvalidValueError: Something that is not a model, an unknown setting, or one outside its limits.
        MissingFileError: ``config_file`` is not there.
        NotARunError: ``run`` exists and is not a run.
        UnknownNameError: A rule that nobody has.
    """
    _check_model(model, optimizer)
    hook = current_hook()
    if hook is not None and (run is None or SessionConfig.from_env() is not None):
        if SessionConfig.from_env() is None:
            _warn_of_ignored(rules=rules, stop_on=stop_on, config_file=config_file)
        _reconfigure(hook, settings)
        _adapter(hook, discover=False).attach(model)
        return hook
    path = os.fspath(run) if run is not None else _default_run(runs)
    hook = Hook(config=_configuration(path, config_file, settings))
    if environment.disabled():
        hook.close()
        return hook
    if stop_on is not None and rules is None:
        rules = "default"
    if rules is not None:
        evaluator = WatchedEvaluator(EvaluatorConfig(path, None, rule_specs(rules), _severity(stop_on)))
        hook.on_start.append(evaluator.start)
        hook.on_close.append(evaluator.finish)
    _adapter(hook, discover=False).attach(model)
    set_current(hook)
    return hook


def _configuration(run: str, config_file: str | os.PathLike[str] | None, settings: dict[str, Any]) -> SessionConfig:
    config = SessionConfig(run=run)
    found = None if environment.disabled() and config_file is None else find_file(config_file)
    if found is not None:
        config = config.with_settings(read_file(found))
        _log.info("watchglass: settings from %s", found)
    return config.with_settings(settings)


def _reconfigure(hook: Hook, settings: dict[str, Any]) -> None:
    """Settings of a script whose process is watched already; how records are written stays as it is."""
    if settings:
        config, before = hook.config.with_settings(settings), hook.plan.budget
        # A path that looks ahead to the next captured step must look again.
        hook.settle()
        hook.config = config
        hook.plan.configure(config)
        # What watching has cost so far it has cost.
        after = hook.plan.budget
        after.cost_ns, after.train_ns = before.cost_ns, before.train_ns


def _warn_of_ignored(**given: Any) -> None:
    names = [name for name, value in given.items() if value is not None]
    if names:
        _log.warning(
            "watchglass: this process is watched already, so %s of this call of watch %s ignored: give them in the "
            "first, or close its hook before", " and ".join(names), "is" if len(names) == 1 else "are",
        )  # fmt: skip


def _adapter(hook: Hook, *, discover: bool) -> Any:
    from watchglass.capture.pytorch import PyTorchAdapter

    found = PyTorchAdapter.of(hook)
    return found if found is not None else PyTorchAdapter(hook, discover=discover)


def _check_model(model: Any, optimizer: Any) -> None:
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(model, torch.nn.Module):
        raise InvalidValueError(
            f"watch needs a torch.nn.Module but got {type(model).__name__}; for other loops use Hook"
        )
    if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
        raise InvalidValueError(f"optimizer must be a torch.optim.Optimizer but got {type(optimizer).__name__}")


def _severity(stop_on: Severity | str | None) -> Severity | None:
    if stop_on is None:
        return None
    try:
        return Severity(stop_on)
    except ValueError:
        raise InvalidValueError(f'stop_on must be "error", "warning" or "info" but got {stop_on!r}') from None


def _default_run(runs: str | os.PathLike[str] | None = None) -> str:
    script = Path(sys.argv[0] or "python").stem if not hasattr(sys, "ps1") else "session"
    folder = os.fspath(runs) if runs is not None else environment.runs() or DEFAULT_RUNS
    return joined(folder, f"{script or 'session'}-{time.strftime('%Y%m%d-%H%M%S')}")
