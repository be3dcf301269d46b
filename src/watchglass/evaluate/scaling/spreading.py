"""Evaluates stored runs on a cluster: sends out parts, and merges the answers to the result of one engine."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import replace

from watchglass.config import EvaluatorConfig, absolute
from watchglass.errors import ClusterError, WatchglassError
from watchglass.evaluate.engine.engine import Engine
from watchglass.evaluate.engine.partial import merge
from watchglass.evaluate.engine.rule_status import PartialEvaluation
from watchglass.evaluate.scaling.cluster import Cluster, cluster, in_short
from watchglass.evaluate.scaling.contents import RunContents, contents_of
from watchglass.evaluate.scaling.plan import Part, plan
from watchglass.evaluate.scaling.rule_files import absolute_rules, read_rule_files
from watchglass.evaluate.scaling.tasks import answer, error_of, error_to_json, read_answer, request_of
from watchglass.records import Evaluation
from watchglass.store import open_store, read_manifest

#: Parts under way for each core: one that is evaluated, and one that waits so that the core does not.
_UNDER_WAY = 2
#: Segments of all runs together whose names are sent with the parts; those of further runs each part lists itself.
MOST_LISTED = 200_000


def replay_on_ray(
    runs: Sequence[str],
    config: EvaluatorConfig,
    *,
    address: str | None = None,
) -> dict[str, Evaluation | WatchglassError]:
    """Evaluates rules over everything that was stored of some runs, on a Ray cluster. Writes nothing.

    Each evaluation equals that of :func:`watchglass.evaluate.replay`: the same findings, order and statuses. A process
    of the cluster that dies costs the time of its part, which is evaluated again.

    Args:
        runs: Locations of runs that the cluster can read: other machines cannot read a folder of this one.
        config: Rules, thresholds, limits; its run does not matter.
        address: Address of a cluster, see :func:`cluster`; None for ``RAY_ADDRESS``, else one on this machine.

    Returns:
        The evaluation of each run, by its location as the caller named it; the error for a run that cannot be read.

    Raises:
        MissingExtraError: Ray is not installed.
        ClusterError: The cluster does not answer, or a part ended its process again and again.
        WatchglassError: A rule is not right.
    """
    engine = Engine(config.rules, calibration=config.calibration)  # raises for a wrong rule before anything starts
    files = read_rule_files(config.rules)
    config = replace(config, rules=absolute_rules(config.rules))
    places = {run: absolute(run) for run in runs}
    contents: dict[str, RunContents] = {}
    errors: dict[str, WatchglassError] = {}
    left = MOST_LISTED
    for run, place in places.items():
        try:
            with closing(open_store(run)) as store:
                read_manifest(store)
                found = contents[place] = contents_of(store, place, most_listed=left)
        except Exception as error:  # of one run; the others are evaluated
            errors[place] = error_of(*error_to_json(error))
        else:
            left -= found.objects if found.segments is not None else 0
    answers: dict[str, list[PartialEvaluation]] = {}
    if contents:
        with cluster(address) as connected:
            parts = plan(list(contents.values()), len(config.rules), connected.cores, whole=engine.whole)
            requests = [request_of(part, config, files, contents[part.run]) for part in parts]
            for number, text in ask(connected, requests, _names(parts)):
                place = parts[number].run
                try:
                    answers.setdefault(place, []).append(read_answer(text))
                except WatchglassError as error:
                    errors.setdefault(place, error)
    return {run: errors.get(place) or merge(answers[place], config.rules) for run, place in places.items()}


def ask(connected: Cluster, requests: Sequence[str], names: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Sends requests to a cluster, a bounded number at a time, and gives answers as they arrive.

    Args:
        connected: The cluster.
        requests: The parts, see :func:`request_of`.
        names: The name of each part in errors.

    Yields:
        Which request, and its answer, see :func:`read_answer`.

    Raises:
        ClusterError: A process died under the same part again and again, or the cluster was lost.
    """
    ray, patience = connected.ray, connected.patience
    # Retries are for processes that die. An error in a part is its answer, and would come again.
    task = ray.remote(answer).options(
        num_cpus=1, max_retries=patience.retries, retry_exceptions=False, scheduling_strategy="SPREAD"
    )
    waiting = deque(range(len(requests)))
    under_way: dict[object, int] = {}
    try:
        while waiting or under_way:
            most = _UNDER_WAY * connected.cores
            while waiting and len(under_way) < most:
                number = waiting.popleft()
                under_way[task.remote(requests[number])] = number
            ready, _ = ray.wait(list(under_way), num_returns=1, timeout=patience.wake_s)
            if not ready:
                connected.check()
            for reference in ready:
                number = under_way.pop(reference)
                try:
                    text = ray.get(reference)
                except (ray.exceptions.LocalRayletDiedError, ray.exceptions.WorkerCrashedError) as error:
                    raise connected.died(names[number], 1 + patience.retries, error) from None
                except ray.exceptions.RayError as error:
                    raise ClusterError(f"the cluster could not evaluate {names[number]}: {in_short(error)}") from None
                yield number, text
    finally:
        for reference in under_way:  # others use the cluster too: a part whose answer is not needed must not start
            with suppress(Exception):
                ray.cancel(reference)


def _names(parts: Sequence[Part]) -> list[str]:
    """The names of parts in errors."""
    return [f"{part.run}, {', '.join(part.workers) if part.workers is not None else 'all workers'}" for part in parts]
