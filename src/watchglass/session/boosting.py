"""`xgboost_callback`: one argument of `xgboost.train`."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from watchglass.capture import Hook
from watchglass.config import (
    EvaluatorConfig,
    SessionConfig,
    environment,
    find_file,
    local_path,
    read_file,
    scheme_of,
)
from watchglass.errors import MissingExtraError, StoreError, TrainingStopped
from watchglass.records import Severity
from watchglass.session.current import current_hook, set_current
from watchglass.session.rules import capture_of_rules
from watchglass.session.watching import default_run, evaluated_by, evaluation, reconfigure
from watchglass.store import layout, open_store

if TYPE_CHECKING:
    from xgboost.callback import TrainingCallback


def xgboost_callback(
    *,
    run: str | os.PathLike[str] | None = None,
    runs: str | os.PathLike[str] | None = None,
    rules: str | Iterable[Any] | None = None,
    calibration: str = "default",
    stop_on: Severity | str | None = None,
    actions: str | Iterable[Any] | None = None,
    train: str = "",
    loss: str = "",
    config_file: str | os.PathLike[str] | None = None,
    **settings: Any,
) -> TrainingCallback:
    """A callback for ``xgboost.train``, ``xgboost.cv`` and the scikit-learn estimators that records the training.

    Each boosting round is a step: metrics of all evaluation sets at every round, feature importances as often as the
    overhead budget allows. Each training it is used for is a run, or an attempt of the run that is named. Under
    ``watchglass run`` the training joins that run: settings that are given here hold there too, where its command line
    does not say otherwise, and the arguments up to ``stop_on`` are not needed.

    Example::

        xgboost.train(params, dtrain, 500, evals=[(dtrain, "train"), (dvalid, "validation")],
                      callbacks=[watchglass.xgboost_callback(rules="default", stop_on="error")])

    Args:
        run: Where the run is written, a folder or ``s3://bucket/path``; ``<script>-<time>`` below ``runs`` when not
            given.
        runs: Folder or prefix of runs that are not named; ``$WATCHGLASS_RUNS``, or ``runs``, when not given.
        rules: As for :func:`watchglass.watch`; ``"trees"`` are those for boosted trees.
        calibration: As for :func:`watchglass.watch`.
        stop_on: Stop the training at a finding of this severity, after a round, as early stopping does: ``"error"`` or
            ``"warning"``. None never stops it.
        actions: As for :func:`watchglass.watch`.
        train: Name of the evaluation set that is the training data; the first whose name contains "train" when not
            given. scikit-learn's estimators call theirs ``validation_0`` and so on.
        loss: Metric that is the loss, for metrics of your own; the first known one (``logloss``, ``rmse`` ...) when not
            given.
        config_file: File of settings; when not given, the nearest ``watchglass.toml`` if there is one.
        **settings: Fields of :class:`~watchglass.config.SessionConfig`: ``save_interval`` (rounds), ``collections``,
            ``overhead_budget`` (ratio, 0.01), ``planned_steps`` and so on. They come before those of the file.

    Raises:
        MissingExtraError: XGBoost is not installed.
        InvalidValueError: An unknown setting, or one outside its limits.
        MissingFileError: ``config_file`` is not there.
        UnknownNameError: A rule that does not exist.
    """
    try:
        from watchglass.capture.xgboost import XGBoostCallback
    except ImportError as error:
        raise MissingExtraError(
            f"xgboost_callback needs XGBoost ({error}); install it with: pip install 'watchglass[xgboost]'"
        ) from error
    # What is wrong is said here, not when the training begins.
    told = evaluation("", rules, calibration, stop_on, actions, config_file)
    config = _configuration("" if run is None else os.fspath(run), config_file, settings, told)
    folder = None if runs is None else os.fspath(runs)
    begin = functools.partial(_open, config, settings, told, folder)
    return XGBoostCallback(begin, _close, train=train, loss=loss)


#: The hook of the training that this thread began last; it is still open where an exception ended that training.
_latest = threading.local()


def _configuration(
    run: str,
    config_file: str | os.PathLike[str] | None,
    settings: Mapping[str, Any],
    told: EvaluatorConfig | None,
) -> SessionConfig:
    from watchglass.capture.xgboost import FEATURE_IMPORTANCE

    kept = (FEATURE_IMPORTANCE,)
    found = None if environment.disabled() and config_file is None else find_file(config_file)
    in_file = {} if found is None else read_file(found)
    asked = capture_of_rules(told, in_file, settings, default=kept, always=kept)
    config = SessionConfig(run=run, collections=kept).with_settings(asked)
    return config.with_settings(in_file).with_settings(settings)


def _open(
    config: SessionConfig,
    settings: Mapping[str, Any],
    told: EvaluatorConfig | None,
    runs: str | None,
) -> Hook:
    before: Hook | None = getattr(_latest, "hook", None)
    joined = SessionConfig.from_env()
    if joined is not None and before is not None and before.config.run == joined.run:
        if before.stopping and not before.active:
            raise TrainingStopped("the run was stopped")
        return before
    if before is not None:
        before.close("failed")
    hook = _joining(joined, settings) if joined is not None else _own(config, told, runs)
    _latest.hook = hook
    if environment.disabled():
        hook.close()
    else:
        set_current(hook)
    return hook


def _joining(joined: SessionConfig, settings: Mapping[str, Any]) -> Hook:
    from watchglass.capture.xgboost import FEATURE_IMPORTANCE

    hook = current_hook()
    if hook is not None:
        reconfigure(hook, dict(settings))
        return hook
    if all(collection.name != FEATURE_IMPORTANCE.name for collection in joined.collections):
        joined = replace(joined, collections=(*joined.collections, FEATURE_IMPORTANCE))
    return Hook(config=joined.with_settings(settings))


def _own(config: SessionConfig, told: EvaluatorConfig | None, runs: str | None) -> Hook:
    hook = Hook(config=config if config.run else replace(config, run=_unused(default_run(runs))))
    if told is not None and not environment.disabled():
        evaluated_by(hook, replace(told, run=hook.config.run))
    return hook


def _close(hook: Hook, status: str | None) -> None:
    """Under ``watchglass run`` the run goes on: the script may train again."""
    if SessionConfig.from_env() is None:
        hook.close(status)
        if getattr(_latest, "hook", None) is hook:
            del _latest.hook


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
    return False  # a store that is away now is told by whoever writes to it
