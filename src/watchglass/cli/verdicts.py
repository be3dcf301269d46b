"""A verdict on a run, from what its evaluator wrote or by evaluating it again."""

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
from watchglass.run import Run, open_run, open_runs
from watchglass.store import layout, open_store


def verdict_on(run: Run, evaluation: Evaluation | None, config: EvaluatorConfig) -> Verdict:
    """The verdict on a run by the name that was asked for; ``evaluation`` None takes what its evaluator found."""
    told = diagnose.verdict(run, evaluation, causes=config.causes, price_per_hour=config.price_per_hour)
    return replace(told, run=config.run)


def judged(path: str, *, causes: Sequence[str] = (), price_per_hour: float | None = None) -> tuple[Run, Verdict]:
    """The run and what its evaluator found; evaluated now with the default rules where none came to the end of it.

    Args:
        path: Where the run is.
        causes: Files of causes beside the built-in ones.
        price_per_hour: What an hour of the whole training costs.

    Raises:
        WatchglassError: It is no run, or not readable.
    """
    config = EvaluatorConfig(path, None, default_rules(), causes=tuple(causes), price_per_hour=price_per_hour)
    more = recover(path)
    with working("reading the run"):
        run = open_run(path)
        if not more and evaluate.is_judged(run):
            mention_unrecovered(path, run)
            return run, verdict_on(run, None, config)
    return replayed(config)


def replayed(config: EvaluatorConfig) -> tuple[Run, Verdict]:
    """The run and what the rules of a configuration find in it now. Only what the flight recorder holds is written.

    Raises:
        WatchglassError: It is no run, or not readable.
    """
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
    """What the rules find in the run, or in every run below the prefix, by name; and whether it was such a prefix.

    A run of many that cannot be read has a verdict that says so.

    Args:
        config: The run or prefix, and the rules.
        on_ray: Evaluate on a Ray cluster.
        address: Its address; None for the one that the environment names, else one of our own.

    Raises:
        WatchglassError: There is no run, or the only one is not readable; or there is no cluster.
    """
    with closing(open_store(config.run)) as store:
        alone = store.size(layout.MANIFEST) is not None
        # What is empty, or is no folder of runs, has an error of its own for whoever wanted to open a run.
        alone = alone or not any(True for _ in store.folders(""))
    listed = [] if alone else sorted(open_runs(config.run).listed, key=lambda each: each.name)
    runs = [config.run] if alone else [each.location for each in listed]
    judge = _judged_on_ray(config, runs, address) if on_ray else lambda run: replayed(replace(config, run=run))[1]
    if alone:
        return [judge(config.run)], False
    verdicts = []
    for run in runs:
        try:
            verdicts.append(judge(run))
        except Exception as error:  # whatever is wrong with one run, the others are judged
            told = in_a_line(error)
            problem = f"{type(error).__name__}: {told}" if isinstance(error, WatchglassError) else told
            verdicts.append(Verdict(run, "unreadable", (), (), (), problems=(problem,)))
    return verdicts, True


def _judged_on_ray(config: EvaluatorConfig, runs: Sequence[str], address: str | None) -> Callable[[str], Verdict]:
    """Evaluates runs on a cluster; what comes back gives the verdict on each, or raises why there is none."""
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
