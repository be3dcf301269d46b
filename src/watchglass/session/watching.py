"""`watch` for scripts and notebooks, and the callback for frameworks that take callbacks instead of models."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from watchglass.capture import FRAMEWORKS, Hook, Loop, Port, attach, loop, loop_of
from watchglass.config import (
    DEFAULT_COLLECTIONS,
    DEFAULT_RUNS,
    SETTINGS,
    EvaluatorConfig,
    SessionConfig,
    SettingsLayer,
    absolute,
    check_names,
    environment,
    find_file,
    joined,
    local_path,
    read_file,
    scheme_of,
    suggest,
)
from watchglass.errors import InvalidValueError, StoreError, TrainingStopped, UnknownNameError, importing
from watchglass.records import Severity
from watchglass.session.current import current_hook, hook_of_launch, set_current
from watchglass.session.evaluator import WatchedEvaluator, accompany, export_of, sampler_of
from watchglass.session.specs import action_specs, capture_of_rules, rule_specs, severity_of
from watchglass.store import layout, open_store

_log = logging.getLogger("watchglass")


def watch(
    model: Any,
    *,
    run: str | os.PathLike[str] | None = None,
    runs: str | os.PathLike[str] | None = None,
    rules: str | Iterable[Any] | None = None,
    calibration: str = "default",
    stop_on: Severity | str | None = None,
    actions: str | Iterable[Any] | None = None,
    config_file: str | os.PathLike[str] | None = None,
    **settings: Any,
) -> Hook:
    """Watch the training of a model from now on. Returns the hook; its ``close`` ends the watch.

    Losses, accuracy, optimizers, learning rates, weights, gradients, updates and module outputs are found
    automatically. In a script under ``watchglass run`` the model joins that run. The settings given here then apply
    unless the command line overrides them, and the other arguments are not needed.

    Args:
        model: A ``torch.nn.Module``, as it is called in the training loop.
        run: Location of the run, a folder or ``s3://bucket/path``; by default ``<script>-<time>`` below ``runs``. If
            this process watches that run already, as a notebook does in a cell that is run again, the watch is ended
            first, and the run gets a new attempt.
        runs: Folder or prefix for runs without ``run``; by default ``$WATCHGLASS_RUNS``, else ``runs``.
        rules: As on the command line, ``"default"`` or ``"llm,my_rules.py:MyRule"``, or a list of such texts, rule
            classes and rule instances. A separate process evaluates them during the run and prints findings. The
            tensors that they need are captured unless ``collections`` excludes them. None evaluates no rule now;
            ``watchglass check`` can do it later.
        calibration: Default thresholds of the rules: ``"default"``, or ``"sagemaker"``, those that SageMaker Debugger
            documents.
        stop_on: Stop when a finding reaches this severity, ``"error"`` or ``"warning"`` (None: never).
        actions: Actions for findings, in addition to those of the file of settings: texts as on the command line,
            ``"Webhook:url=https://example.org/hook"``, action classes and actions.
        config_file: File of settings; by default the nearest ``watchglass.toml``, if any.
        **settings: Fields of :class:`~watchglass.config.SessionConfig`: ``collections``, ``save_interval`` (steps),
            ``overhead_budget`` (ratio, 0.01), ``capture_memory_bytes``, ``planned_steps`` and so on. They override
            those of the file.

    Raises:
        InvalidValueError: The object is not a model; an unknown or invalid setting.
        MissingFileError: ``config_file`` does not exist.
        NotARunError: ``run`` exists and is not a run.
        RunExistsError: A training process of another launch writes ``run`` now.
        UnknownNameError: A rule or an action that does not exist.
    """
    driver = loop_of(model)
    if driver is None:
        raise InvalidValueError(
            f"watch needs a model of an imported framework, such as torch.nn.Module, but got {type(model).__name__}; "
            "for boosted trees use watchglass.callback('xgboost'), for other training loops use Hook"
        )
    watching: dict[str, Any] = {
        "rules": rules, "calibration": calibration, "stop_on": stop_on, "actions": actions, "config_file": config_file,
    }  # fmt: skip
    launch, hook = SessionConfig.from_env(), current_hook()
    if hook is not None and (run is None or launch is not None):
        if launch is None:
            _warn_of_ignored(watching)
        if settings:
            hook.port.reconfigure(hook.port.config.with_settings(settings))
    elif launch is not None and not FRAMEWORKS[driver.name].discovers and not environment.disabled():
        hook = hook_of_launch(launch, driver, settings)
    else:
        call = _WatchCall(driver, run=run, **watching, **settings)
        if hook is not None and absolute(call.run) == absolute(hook.port.config.run):
            hook.close()  # a cell that is run again: its run ends with its verdict, and continues as a new attempt
        hook = call.begin(_default_run(runs))
    if hook.active:
        attach(hook.port, driver, model)
    return hook


def callback(framework: str, *, runs: str | os.PathLike[str] | None = None, **watching: Any) -> Any:
    """A callback of a framework that records each training of the loop that it is given to.

    For those who prefer a line in the script to ``watchglass run``. Each training makes a run, or an attempt of the
    named run. Under ``watchglass run`` it joins that run. Invalid arguments raise here, not when training begins.

    Example::

        Trainer(model=model, args=args, train_dataset=data, callbacks=[watchglass.callback("transformers")])
        lightning.Trainer(callbacks=[watchglass.callback("lightning", rules="default", stop_on="error")])
        xgboost.train(params, dtrain, 500, evals=[(dtrain, "train"), (dvalid, "validation")],
                      callbacks=[watchglass.callback("xgboost")])

    Args:
        framework: ``"transformers"``, ``"lightning"``, ``"pytorch_lightning"`` or ``"xgboost"``.
        runs: As for :func:`watch`.
        **watching: The other arguments and the settings of :func:`watch`, ``rules``, ``stop_on``, ``save_interval``
            and so on. For XGBoost also ``train``, the name of the evaluation set with the training data (by default
            the first whose name contains "train"; scikit-learn's estimators name the sets ``validation_0`` and so on),
            and ``loss``, the metric that is the loss (by default the first known one, ``logloss``, ``rmse`` ...).

    Returns:
        ``transformers.TrainerCallback``, ``lightning.Callback`` or ``xgboost.callback.TrainingCallback``.

    Raises:
        MissingExtraError: The framework is not installed.
        InvalidValueError: A framework that takes no callback; an unknown or invalid setting.
        MissingFileError: ``config_file`` does not exist.
        UnknownNameError: No such framework, or a rule that does not exist.
    """
    entry = FRAMEWORKS.get(framework)
    if entry is None:
        raise UnknownNameError(f"no framework {framework!r} is known{suggest(framework, list(FRAMEWORKS))}")
    with importing(f'callback("{framework}") needs {framework}', framework):
        import_module(entry.module or framework)
        driver = loop(framework)
    options = {name: watching.pop(name) for name in driver.options if name in watching}
    call = _WatchCall(driver, **watching)

    def begin() -> Port:
        launch = SessionConfig.from_env()
        if launch is None or environment.disabled():
            return call.begin(_unused(_default_run(runs))).port
        hook = hook_of_launch(launch, driver, call.settings)
        if hook.port.changes.stopping and not hook.active:
            raise TrainingStopped("the run was stopped")
        return hook.port

    def end(port: Port, status: str | None) -> None:
        if SessionConfig.from_env() is None:  # under a launcher the hook stays open: the script may train again
            port.close(status)

    return driver.callback(begin, end, **options)


class _WatchCall:
    """The arguments of a call of ``watch``, validated at once; ``begin`` makes the hook of the run."""

    def __init__(
        self,
        driver: Loop,
        *,
        run: str | os.PathLike[str] | None = None,
        rules: str | Iterable[Any] | None = None,
        calibration: str = "default",
        stop_on: Severity | str | None = None,
        actions: str | Iterable[Any] | None = None,
        config_file: str | os.PathLike[str] | None = None,
        **settings: Any,
    ) -> None:
        path = "" if run is None else _location("run", run)
        check_names(settings, SETTINGS, "SessionConfig")
        self.settings = settings
        severity = severity_of(stop_on)
        if rules is None and (stop_on is not None or actions is not None):
            rules = "default"
        self._evaluation: EvaluatorConfig | None = None
        if not environment.disabled():
            specs = rule_specs(() if rules is None else rules, calibration)
            if rules is not None:
                taken = action_specs(actions, specs, config_file)
                self._evaluation = EvaluatorConfig(path, None, specs, severity, taken, calibration=calibration)
        found = None if environment.disabled() and config_file is None else find_file(config_file)
        file = read_file(found)
        if found is not None:
            _log.info("watchglass: settings from %s", found)
        kept = driver.collections
        default = kept or DEFAULT_COLLECTIONS
        by_rules = capture_of_rules(self._evaluation, file.settings, settings, default=default, always=kept)
        arguments = SettingsLayer(settings, "the arguments of watch", lambda name: f"SessionConfig: {name}")
        of_rules = (SettingsLayer({"collections": default}), SettingsLayer(by_rules))
        self._config = SessionConfig.merged(path, *of_rules, file, arguments)

    @property
    def run(self) -> str:
        """The run that the script names; "" for none."""
        return self._config.run

    def begin(self, run: str) -> Hook:
        """A new hook for the run that the script names, else for ``run``; it becomes the current one."""
        config = self._config if self._config.run else replace(self._config, run=run)
        hook = Hook(config=config)
        if environment.disabled():
            hook.close()
            return hook
        if config.tensorboard is not None:
            accompany(hook, export_of(config, config.tensorboard))
        if self._evaluation is not None:  # it starts with the first step and ends with the run
            accompany(hook, WatchedEvaluator(replace(self._evaluation, run=config.run)))
        if config.profiler.enabled:
            accompany(hook, sampler_of(config))
        set_current(hook)
        return hook


def _warn_of_ignored(given: Mapping[str, Any]) -> None:
    names = [name for name, value in given.items() if value is not None and (name, value) != ("calibration", "default")]
    if names:
        _log.warning(
            "watchglass: this process is already watched, so %s of this call of watch %s ignored; pass them to the "
            "first call, or close its hook before", " and ".join(names), "is" if len(names) == 1 else "are",
        )  # fmt: skip


def _location(name: str, given: Any) -> str:
    if not isinstance(given, (str, os.PathLike)) or not os.fspath(given):
        raise InvalidValueError(f"{name} must be a path or an address but got {given!r}")
    return os.fspath(given)


def _default_run(runs: str | os.PathLike[str] | None = None) -> str:
    """Location of a run without a name: script and time, below ``runs`` or the folder of the environment."""
    script = Path(sys.argv[0] or "python").stem if not hasattr(sys, "ps1") else "session"
    folder = _location("runs", runs) if runs is not None else environment.runs() or DEFAULT_RUNS
    return joined(folder, f"{script or 'session'}-{time.strftime('%Y%m%d-%H%M%S')}")


def _unused(location: str) -> str:
    """A location that is not used yet: several runs may begin in one second."""
    found, number = location, 2
    while _is_used(found):
        found, number = f"{location}-{number}", number + 1
    return found


def _is_used(location: str) -> bool:
    if not scheme_of(location):
        return os.path.lexists(local_path(location))
    with closing(open_store(location)) as store, suppress(StoreError):
        return store.size(layout.MANIFEST) is not None
    return False  # the writer reports a store that is unreachable now
