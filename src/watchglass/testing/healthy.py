"""``assert_trains_healthy``: one line in a test, over a run or a training that runs now."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from watchglass.config import EvaluatorConfig
from watchglass.diagnose import verdict
from watchglass.errors import InvalidValueError, MissingFileError
from watchglass.evaluate import replay
from watchglass.records import Verdict
from watchglass.run import open_run
from watchglass.session import rule_specs
from watchglass.testing.watched_call import call_watched
from watchglass.view import FAIL_ON, Terms, counted, failed_rules, not_answered, outcome, verdict_text


def assert_trains_healthy(
    run_or_callable: Any,
    *,
    rules: str | Iterable[Any] | None = None,
    calibration: str = "default",
    fail_on: str = "warning",
    allow_unfinished: bool = False,
    run: str | os.PathLike[str] | None = None,
    **settings: Any,
) -> Verdict:
    """Assert that a training is healthy, and return the verdict on it.

    A run that is there is evaluated. Anything that can be called is called without arguments, in this process, and
    what it trains is watched meanwhile, with no change to it: PyTorch by itself, XGBoost through its callback. Every
    step is captured, so that the answer is the same each time. All hooks are gone when this returns.

    Args:
        run_or_callable: Location of a run, a :class:`~watchglass.run.Run`, or what trains when it is called.
        rules: As for :func:`watchglass.watch`; the default ones if None.
        calibration: As for :func:`watchglass.watch`.
        fail_on: Least severity of a finding that fails: ``"warning"``, ``"error"`` or ``"never"``.
        allow_unfinished: Whether a run that is not finished, or of which records are missing, may be healthy.
        run: Where a training that is called writes its run; a temporary folder when not given, which is kept, and
            named in the message, only where there is a verdict that the training is not healthy.
        **settings: Fields of :class:`~watchglass.config.SessionConfig` for a training that is called:
            ``save_interval`` (1), ``collections`` and so on.

    Raises:
        AssertionError: It is not healthy, or nothing can be said; the message is the verdict. What the training
            itself raised is its cause.
        WatchglassError: There is no such run, or an argument is not right.
        Exception: What the training raised, where nothing was found that explains it.
    """
    __tracebackhide__ = True
    if fail_on not in FAIL_ON:
        raise InvalidValueError(f"fail_on must be one of {', '.join(FAIL_ON)} but got {fail_on!r}")
    terms = Terms(fail_on, allow_unfinished)
    specs = rule_specs("default" if rules is None else rules, calibration)
    told = EvaluatorConfig("", None, specs, calibration=calibration)
    location = _location(run_or_callable)
    if location is not None:
        if settings or run is not None:
            given = ", ".join([*settings, *(["run"] if run is not None else [])])
            raise InvalidValueError(f"{given} is for a training that is called, but got the run {location}")
        found = _evaluated(replace(told, run=location))
        _check(found, terms, None, f"run: {location}")
        return found
    if run is not None:
        return _trained(run_or_callable, replace(told, run=os.fspath(run)), settings, terms)
    return _trained_for_once(run_or_callable, told, settings, terms)


def _trained_for_once(
    training: Callable[[], Any], told: EvaluatorConfig, settings: dict[str, Any], terms: Terms
) -> Verdict:
    """The same with a temporary folder, which stays only where a message names it: nobody would ever find it."""
    __tracebackhide__ = True
    folder = tempfile.mkdtemp(prefix="watchglass-")
    path = os.path.join(folder, "run")
    try:
        found = _trained(training, replace(told, run=path), settings, terms)
    except BaseException as error:
        if not str(error).endswith(_kept(path)):
            shutil.rmtree(folder, ignore_errors=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)
    return found


def _kept(run: str) -> str:
    """The last line of a message about a run that stays."""
    return f"run: {run} (kept; look at it with: watchglass report {run} -o report.html)"


def _trained(training: Callable[[], Any], told: EvaluatorConfig, settings: dict[str, Any], terms: Terms) -> Verdict:
    """The verdict on a training that is run now. What it raises goes on where nothing was found."""
    __tracebackhide__ = True
    failure, broken = call_watched(training, told, settings)
    if failure is not None and not isinstance(failure, Exception):
        raise failure  # a skipped test, Ctrl-C, a stop that the training asked for
    if broken:
        raise AssertionError(
            'nothing can be said of this training: watching it failed and was switched off, see the log of "watchglass"'
        ) from failure
    try:
        found = _evaluated(told)
    except MissingFileError:
        if failure is not None:
            raise failure from None
        raise AssertionError(
            "nothing can be said of this training: no training step was seen; does it train, with PyTorch or with "
            "watchglass.xgboost_callback()?"
        ) from None
    if failure is not None and not counted(found, terms):
        raise failure
    _check(found, terms, failure, _kept(told.run))
    return found


def _location(run_or_callable: Any) -> str | None:
    """Where the run is, None for something to call.

    Raises:
        InvalidValueError: Neither.
    """
    if isinstance(run_or_callable, (str, os.PathLike)):
        return os.fspath(run_or_callable)
    location = getattr(run_or_callable, "location", None)
    if isinstance(location, str) and not callable(run_or_callable):
        return location
    if not callable(run_or_callable):
        raise InvalidValueError(
            f"assert_trains_healthy needs the location of a run, a Run, or a function that trains, but got "
            f"{type(run_or_callable).__name__}"
        )
    return None


def _evaluated(told: EvaluatorConfig) -> Verdict:
    run = open_run(told.run)
    found = verdict(run, replay(told.run, told.rules, calibration=told.calibration))
    return replace(found, run=told.run)


def _check(found: Verdict, terms: Terms, failure: Exception | None, last_line: str) -> None:
    """Raise with the verdict as message, unless it is clean."""
    __tracebackhide__ = True
    answer = outcome(found, terms)
    if answer == "clean":
        return
    reason = not_answered(found, terms)
    first = "this training is not healthy" if answer == "findings" else "nothing can be said of this training"
    notes = [*failed_rules(found), *([reason] if reason else [])] if answer == "no answer" else []
    lines = [first, "", *(f"{note}\n" for note in notes), verdict_text(found).rstrip(), "", last_line]
    raise AssertionError("\n".join(lines)) from failure
