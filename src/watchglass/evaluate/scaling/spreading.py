"""Evaluating stored runs on a cluster: parts go out, answers come in, and what comes out is what one engine says."""

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

#: How often a part is begun again whose process died under it.
RETRIES = 4
#: Parts under way for each core: one that is worked on, one that waits so that no core does.
_UNDER_WAY = 2
#: Segments of all runs together whose names go out with the parts; of further runs each part lists them itself.
MOST_LISTED = 200_000
#: Seconds after which the driver looks up from waiting, so that signals arrive.
_LOOK_UP_S = 0.5


def replay_on_ray(
    runs: Sequence[str],
    config: EvaluatorConfig,
    *,
    address: str | None = None,
) -> dict[str, Evaluation | WatchglassError]:
    """Evaluates rules over everything that was stored of some runs, on a Ray cluster. Writes nothing.

    Each evaluation is what :func:`watchglass.evaluate.replay` gives: the same findings, order and statuses. A process
    of the cluster that dies costs the time of its part, which is done again.

    Args:
        runs: Locations of runs. The cluster has to see them: other machines do not see a folder of this one.
        config: Rules, thresholds, limits; its run does not matter.
        address: Address of a cluster, see :func:`cluster`; None for ``RAY_ADDRESS``, else one on this machine.

    Returns:
        What the rules say of each run, by its location as it was named; of a run that cannot be read, why.

    Raises:
        MissingExtraError: Ray is not installed.
        ClusterError: The cluster does not answer, or a part ended the process that worked on it again and again.
        WatchglassError: A rule is not right.
    """
    engine = Engine(config.rules, calibration=config.calibration)  # says what is wrong before anything starts
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
        except Exception as error:  # whatever is wrong with one run, the others are judged
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
    """Sends requests to a cluster, a bounded number at a time, and gives answers as they come.

    Args:
        connected: The cluster.
        requests: What to ask, see :func:`request_of`.
        names: What each is called in errors.

    Yields:
        Which request, and its answer, see :func:`read_answer`.

    Raises:
        ClusterError: A process died under the same part again and again, or the cluster was lost.
    """
    ray = connected.ray
    # Retries are for processes that die. A part that fails in order says so in its answer, and would fail again.
    task = ray.remote(answer).options(
        num_cpus=1, max_retries=RETRIES, retry_exceptions=False, scheduling_strategy="SPREAD"
    )
    waiting = deque(range(len(requests)))
    under_way: dict[object, int] = {}
    try:
        while waiting or under_way:
            most = _UNDER_WAY * connected.cores
            while waiting and len(under_way) < most:
                number = waiting.popleft()
                under_way[task.remote(requests[number])] = number
            ready, _ = ray.wait(list(under_way), num_returns=1, timeout=_LOOK_UP_S)
            if not ready:
                connected.check()
            for reference in ready:
                number = under_way.pop(reference)
                try:
                    text = ray.get(reference)
                except (ray.exceptions.LocalRayletDiedError, ray.exceptions.WorkerCrashedError) as error:
                    raise connected.died(names[number], 1 + RETRIES, error) from None
                except ray.exceptions.RayError as error:
                    raise ClusterError(f"the cluster could not evaluate {names[number]}: {in_short(error)}") from None
                yield number, text
    finally:
        for reference in under_way:  # of a cluster that others use: what nobody waits for any more is not begun
            with suppress(Exception):
                ray.cancel(reference)


def _names(parts: Sequence[Part]) -> list[str]:
    """Parts as errors call them."""
    return [f"{part.run}, {', '.join(part.workers) if part.workers is not None else 'all workers'}" for part in parts]
