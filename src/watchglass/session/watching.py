"""`watch`, one line in a script or notebook, and its like for trainings that take a callback instead of a model."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterable
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from watchglass.capture import FRAMEWORKS, Framework, Hook, attach, framework, owner_of
from watchglass.config import (
    DEFAULT_COLLECTIONS,
    DEFAULT_RUNS,
    SETTINGS,
    EvaluatorConfig,
    Layer,
    SessionConfig,
    check_names,
    environment,
    file_layer,
    find_file,
    joined,
    local_path,
    scheme_of,
)
from watchglass.errors import InvalidValueError, StoreError, TrainingStopped, importing
from watchglass.records import Severity
from watchglass.session.current import current_hook, hook_of_launch, set_current
from watchglass.session.evaluator import WatchedEvaluator
from watchglass.session.specs import action_specs, capture_of_rules, rule_specs, severity_of
from watchglass.store import layout, open_store

if TYPE_CHECKING:
    from xgboost.callback import TrainingCallback

_log = logging.getLogger("watchglass")


def watch(
    model: Any,
    *,
    optimizer: Any = None,
    run: str | os.PathLike[str] | None = None,
    runs: str | os.PathLike[str] | None = None,
    rules: str | Iterable[Any] | None = None,
    calibration: str = "default",
    stop_on: Severity | str | None = None,
    actions: str | Iterable[Any] | None = None,
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
        rules: As on the command line, ``"default"`` or ``"llm,my_rules.py:MyRule"``, or a list of such texts, rule
            classes and rule instances: evaluated in a process of their own while the training goes on, findings
            printed as they come. What they need is captured, where ``collections`` does not say otherwise. None
            evaluates nothing now; ``watchglass check`` can later.
        calibration: Thresholds that rules begin with: ``"default"``, or ``"sagemaker"``, those that SageMaker Debugger
            documents.
        stop_on: Stop the training at a finding of this severity: ``"error"`` or ``"warning"``. None never stops it.
        actions: What else to do about findings, beside what the file of settings names: texts as on the command line,
            ``"Webhook:url=https://example.org/hook"``, action classes and actions.
        config_file: File of settings; when not given, the nearest ``watchglass.toml`` if there is one.
        **settings: Fields of :class:`~watchglass.config.SessionConfig`: ``collections``, ``save_interval`` (steps),
            ``overhead_budget`` (ratio, 0.01), ``capture_memory_bytes``, ``planned_steps`` and so on. They come before
            those of the file.

    Raises:
        InvalidValueError: Something that is not a model, an unknown setting, or one outside its limits.
        MissingFileError: ``config_file`` is not there.
        NotARunError: ``run`` exists and is not a run.
        RunExistsError: Another training process, of no common launch, writes ``run`` now.
        UnknownNameError: A rule or an action that does not exist.
    """
    owner = owner_of(model)
    if owner is None:
        raise InvalidValueError(
            f"watch needs a model of an imported framework, as torch.nn.Module, but got {type(model).__name__}; for "
            "trees use xgboost_callback, for other loops Hook"
        )
    launch, hook = SessionConfig.from_env(), current_hook()
    if hook is not None and (run is None or launch is not None):
        if launch is None:
            _warn_of_ignored(
                rules=rules, calibration=calibration, stop_on=stop_on, actions=actions, config_file=config_file
            )
        if settings:
            hook.reconfigure(hook.config.with_settings(settings))
    elif launch is not None and not FRAMEWORKS[owner.name].discovers and not environment.disabled():
        hook = hook_of_launch(launch, owner, settings)
    else:
        asked = _Asked(
            owner, run=run, rules=rules, calibration=calibration, stop_on=stop_on, actions=actions,
            config_file=config_file, **settings,
        )  # fmt: skip
        hook = asked.begin(_default_run(runs))
    if hook.active:
        attach(hook, owner, model)
    return hook


def xgboost_callback(
    *, runs: str | os.PathLike[str] | None = None, train: str = "", loss: str = "", **watching: Any
) -> TrainingCallback:
    """A callback for ``xgboost.train``, ``xgboost.cv`` and the scikit-learn estimators that records the training.

    Each boosting round is a step: metrics of all evaluation sets at every round, feature importances as often as the
    overhead budget allows. Each training it is used for is a run, or an attempt of the run that is named. Under
    ``watchglass run`` the training joins that run. What is wrong is said here, not when the training begins.

    Example::

        xgboost.train(params, dtrain, 500, evals=[(dtrain, "train"), (dvalid, "validation")],
                      callbacks=[watchglass.xgboost_callback(rules="default", stop_on="error")])

    Args:
        runs: As for :func:`watch`.
        train: Name of the evaluation set that is the training data; the first whose name contains "train" when not
            given. scikit-learn's estimators call theirs ``validation_0`` and so on.
        loss: Metric that is the loss, for metrics of your own; the first known one (``logloss``, ``rmse`` ...) when not
            given.
        **watching: The other arguments and the settings of :func:`watch`, ``rules``, ``stop_on``, ``save_interval``
            (rounds) and so on.

    Raises:
        MissingExtraError: XGBoost is not installed.
        InvalidValueError: An unknown setting, or one outside its limits.
        MissingFileError: ``config_file`` is not there.
        UnknownNameError: A rule that does not exist.
    """
    with importing("xgboost_callback needs XGBoost", "xgboost"):
        from watchglass.capture.xgboost import XGBoostCallback
    owner = framework("xgboost")
    asked = _Asked(owner, **watching)

    def begin() -> Hook:
        launch = SessionConfig.from_env()
        if launch is None or environment.disabled():
            return asked.begin(_unused(_default_run(runs)))
        hook = hook_of_launch(launch, owner, asked.settings)
        if hook.stopping and not hook.active:
            raise TrainingStopped("the run was stopped")
        return hook

    def end(hook: Hook, status: str | None) -> None:
        if SessionConfig.from_env() is None:  # of a launcher it goes on: the script may train again
            hook.close(status)

    return XGBoostCallback(begin, end, train=train, loss=loss)


class _Asked:
    """What a script asks for, checked when it asks; ``begin`` makes the hook of a run of it."""

    def __init__(
        self,
        owner: Framework,
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
        file = file_layer(found)
        if found is not None:
            _log.info("watchglass: settings from %s", found)
        kept = owner.collections
        default = kept or DEFAULT_COLLECTIONS
        by_rules = capture_of_rules(self._evaluation, file.settings, settings, default=default, always=kept)
        arguments = Layer(settings, "the arguments of watch", lambda name: f"SessionConfig: {name}")
        self._config = SessionConfig.merged(path, Layer({"collections": default}), Layer(by_rules), file, arguments)

    def begin(self, run: str) -> Hook:
        """A new hook, the current one from now on, of the run that the script names, else of ``run``."""
        config = self._config if self._config.run else replace(self._config, run=run)
        hook = Hook(config=config)
        if environment.disabled():
            hook.close()
            return hook
        if self._evaluation is not None:  # it begins when training has begun, and ends with it
            evaluator = WatchedEvaluator(replace(self._evaluation, run=config.run))
            hook.on_start.append(evaluator.start)
            hook.on_look.append(evaluator.look)
            hook.on_close.append(evaluator.finish)
        set_current(hook)
        return hook


def _warn_of_ignored(**given: Any) -> None:
    names = [name for name, value in given.items() if value is not None and (name, value) != ("calibration", "default")]
    if names:
        _log.warning(
            "watchglass: this process is watched already, so %s of this call of watch %s ignored: give them in the "
            "first, or close its hook before", " and ".join(names), "is" if len(names) == 1 else "are",
        )  # fmt: skip


def _location(name: str, given: Any) -> str:
    if not isinstance(given, (str, os.PathLike)) or not os.fspath(given):
        raise InvalidValueError(f"{name} must be a path or an address but got {given!r}")
    return os.fspath(given)


def _default_run(runs: str | os.PathLike[str] | None = None) -> str:
    """Location of a run that is not named: script and time, below ``runs`` or where the environment says."""
    script = Path(sys.argv[0] or "python").stem if not hasattr(sys, "ps1") else "session"
    folder = _location("runs", runs) if runs is not None else environment.runs() or DEFAULT_RUNS
    return joined(folder, f"{script or 'session'}-{time.strftime('%Y%m%d-%H%M%S')}")


def _unused(location: str) -> str:
    """Several trainings may begin in one second."""
    found, number = location, 2
    while _is_used(found):
        found, number = f"{location}-{number}", number + 1
    return found


def _is_used(location: str) -> bool:
    if not scheme_of(location):
        return os.path.lexists(local_path(location))
    with closing(open_store(location)) as store, suppress(StoreError):
        return store.size(layout.MANIFEST) is not None
    return False  # whoever writes to a store that is unreachable now says so
