"""``assert_trains_healthy``: one line in a test, for a stored run or a function that trains."""

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
    """Assert that a run is healthy, and return its verdict.

    A stored run is evaluated. A callable is called without arguments, in this process, and watched: PyTorch without any
    change to it, XGBoost through its callback. Every step is captured, so the verdict is the same each time. All hooks
    are removed when this returns.

    Args:
        run_or_callable: Location of a run, a :class:`~watchglass.run.Run`, or a function that trains.
        rules: As for :func:`watchglass.watch`; the default ones if None.
        calibration: As for :func:`watchglass.watch`.
        fail_on: Lowest severity of a finding that fails: ``"warning"``, ``"error"`` or ``"never"``.
        allow_unfinished: Whether a run that is not finished, or of which records are missing, may be healthy.
        run: Where the run of a function is written. If None, in a temporary folder, which is kept and named in the
            message only if the run is not healthy.
        **settings: Fields of :class:`~watchglass.config.SessionConfig` for a function: ``save_interval`` (1),
            ``collections`` and so on.

    Raises:
        AssertionError: The run is not healthy, or could not be judged; the message is the verdict. An exception of the
            function is its cause.
        WatchglassError: There is no such run, or an argument is not valid.
        Exception: The exception of the function, if no finding explains it.
    """
    __tracebackhide__ = True
    if fail_on not in FAIL_ON:
        raise InvalidValueError(f"fail_on must be one of {', '.join(FAIL_ON)} but got {fail_on!r}")
    terms = Terms(fail_on, allow_unfinished)
    specs = rule_specs("default" if rules is None else rules, calibration)
    config = EvaluatorConfig("", None, specs, calibration=calibration)
    location = _location(run_or_callable)
    if location is not None:
        if settings or run is not None:
            given = ", ".join([*settings, *(["run"] if run is not None else [])])
            raise InvalidValueError(f"{given} needs a function that trains, but got the run {location}")
        found = _evaluated(replace(config, run=location))
        _check(found, terms, None, f"run: {location}")
        return found
    if run is not None:
        return _trained(run_or_callable, replace(config, run=os.fspath(run)), settings, terms)
    return _in_temporary_folder(run_or_callable, config, settings, terms)


def _in_temporary_folder(
    training: Callable[[], Any], config: EvaluatorConfig, settings: dict[str, Any], terms: Terms
) -> Verdict:
    """As :func:`_trained`, in a temporary folder that is kept only if the message names it."""
    __tracebackhide__ = True
    folder = tempfile.mkdtemp(prefix="watchglass-")
    path = os.path.join(folder, "run")
    try:
        found = _trained(training, replace(config, run=path), settings, terms)
    except BaseException as error:
        if not str(error).endswith(_kept(path)):
            shutil.rmtree(folder, ignore_errors=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)
    return found


def _kept(run: str) -> str:
    """The last line of a message about a run that is kept."""
    return f"run: {run} (kept; look at it with: watchglass report {run} -o report.html)"


def _trained(training: Callable[[], Any], config: EvaluatorConfig, settings: dict[str, Any], terms: Terms) -> Verdict:
    """The verdict on the run of a function. Its exception propagates if there are no findings."""
    __tracebackhide__ = True
    failure, broken = call_watched(training, config, settings)
    if failure is not None and not isinstance(failure, Exception):
        raise failure  # a skipped test, Ctrl-C, SystemExit
    if broken:
        raise AssertionError(
            'the run could not be judged: capture failed and was switched off, see the log of "watchglass"'
        ) from failure
    try:
        found = _evaluated(config)
    except MissingFileError:
        if failure is not None:
            raise failure from None
        raise AssertionError(
            "the run could not be judged: no training step was seen; does the function train, with PyTorch or with "
            "watchglass.callback('xgboost')?"
        ) from None
    if failure is not None and not counted(found, terms):
        raise failure
    _check(found, terms, failure, _kept(config.run))
    return found


def _location(run_or_callable: Any) -> str | None:
    """Location of the run, None for a function.

    Raises:
        InvalidValueError: The argument is neither.
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


def _evaluated(config: EvaluatorConfig) -> Verdict:
    run = open_run(config.run)
    found = verdict(run, replay(config.run, config.rules, calibration=config.calibration))
    return replace(found, run=config.run)


def _check(found: Verdict, terms: Terms, failure: Exception | None, last_line: str) -> None:
    """Raise with the verdict as message, unless it is clean."""
    __tracebackhide__ = True
    answer = outcome(found, terms)
    if answer == "clean":
        return
    reason = not_answered(found, terms)
    first = "the run is not healthy" if answer == "findings" else "the run could not be judged"
    notes = [*failed_rules(found), *([reason] if reason else [])] if answer == "no answer" else []
    lines = [first, "", *(f"{note}\n" for note in notes), verdict_text(found).rstrip(), "", last_line]
    raise AssertionError("\n".join(lines)) from failure
