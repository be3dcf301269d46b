"""Verdicts on stored runs, from the records of their evaluator or by a new evaluation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace

from watchglass import diagnose, evaluate
from watchglass.cli.recovery import mention_unrecovered, recover
from watchglass.cli.terminal import working
from watchglass.config import EvaluatorConfig
from watchglass.errors import WatchglassError, in_a_line
from watchglass.records import Evaluation, Verdict
from watchglass.rules import default_rules
from watchglass.run import Run, is_judged, open_run, open_runs
from watchglass.store import layout, open_store


def verdict_on(run: Run, evaluation: Evaluation | None, config: EvaluatorConfig) -> Verdict:
    """The verdict on a run, with its location as configured; ``evaluation`` None takes the evaluator's findings."""
    verdict = diagnose.verdict(run, evaluation, causes=config.causes, price_per_hour=config.price_per_hour)
    return replace(verdict, run=config.run)


def judged(
    path: str, *, causes: Sequence[str] = (), price_per_hour: float | None = None, recovers: bool = True
) -> tuple[Run, Verdict]:
    """The run and its verdict; evaluated now with the default rules if no evaluator reached its end.

    Args:
        path: Location of the run.
        causes: Files of causes in addition to the built-in ones.
        price_per_hour: Price of an hour of the whole run.
        recovers: Whether to recover the last steps of killed processes first.

    Raises:
        WatchglassError: The location is no run, or the run is unreadable.
    """
    config = EvaluatorConfig(path, None, default_rules(), causes=tuple(causes), price_per_hour=price_per_hour)
    more = recovers and recover(path)
    with working("reading the run"):
        run = open_run(path)
        if not more and is_judged(run):
            mention_unrecovered(path, run)
            return run, verdict_on(run, None, config)
    return replayed(config, recovers=False)


def replayed(config: EvaluatorConfig, *, recovers: bool = True) -> tuple[Run, Verdict]:
    """The run and its verdict by a new evaluation. Writes only records recovered from the flight recorder.

    Args:
        config: The run and the rules.
        recovers: Whether to recover the last steps of killed processes first.

    Raises:
        WatchglassError: The location is no run, or the run is unreadable.
    """
    if recovers:
        recover(config.run)
    with working("evaluating the run"):
        run = open_run(config.run)
        mention_unrecovered(config.run, run)
        found = evaluate.replay(
            config.run, config.rules, calibration=config.calibration, rule_timeout_s=config.rule_timeout_s
        )
        return run, verdict_on(run, found, config)


def replayed_all(
    config: EvaluatorConfig, *, on_ray: bool = False, address: str | None = None
) -> tuple[list[Verdict], bool]:
    """Verdicts on the run, or on every run below the prefix, by name; and whether the location is a prefix.

    An unreadable run among many gets a verdict with the reason.

    Args:
        config: The run or prefix, and the rules.
        on_ray: Evaluate on a Ray cluster.
        address: Its address; None for the one in the environment, else for a new cluster.

    Raises:
        WatchglassError: There is no run, the only run is unreadable, or there is no cluster.
    """
    runs, many = runs_at(config.run)
    judge = _judged_on_ray(config, runs, address) if on_ray else lambda run: replayed(replace(config, run=run))[1]
    return _each(runs, judge, many=many), many


def judged_all(path: str, *, causes: Sequence[str] = (), price_per_hour: float | None = None) -> list[Verdict]:
    """Verdicts on every run below a prefix, by name, each as of :func:`judged`."""
    runs, _ = runs_at(path)
    return _each(runs, lambda run: judged(run, causes=causes, price_per_hour=price_per_hour)[1], many=True)


def runs_at(location: str) -> tuple[list[str], bool]:
    """The run, or the runs below a prefix by name; and whether the location is a prefix."""
    with closing(open_store(location)) as store:
        alone = store.size(layout.MANIFEST) is not None
        # For an empty folder, or one without runs, opening it as a run gives the right error.
        alone = alone or not any(True for _ in store.folders(""))
    if alone:
        return [location], False
    return [each.location for each in sorted(open_runs(location).listed, key=lambda each: each.name)], True


def _each(runs: Sequence[str], judge: Callable[[str], Verdict], *, many: bool) -> list[Verdict]:
    if not many:
        return [judge(runs[0])]
    verdicts = []
    for run in runs:
        try:
            verdicts.append(judge(run))
        except Exception as error:  # an error in one run must not end the evaluation of the others
            message = in_a_line(error)
            problem = f"{type(error).__name__}: {message}" if isinstance(error, WatchglassError) else message
            verdicts.append(Verdict(run, "unreadable", (), (), (), problems=(problem,)))
    return verdicts


def _judged_on_ray(config: EvaluatorConfig, runs: Sequence[str], address: str | None) -> Callable[[str], Verdict]:
    """Evaluate runs on a cluster; the result is a function that gives the verdict on a run or raises its error."""
    for run in runs:
        recover(run)
    with working("evaluating on Ray"):
        spread = evaluate.replay_on_ray(runs, config, address=address)

    def judge(run: str) -> Verdict:
        opened, found = open_run(run), spread[run]
        if isinstance(found, WatchglassError):
            raise found
        return verdict_on(opened, found, replace(config, run=run))

    return judge
