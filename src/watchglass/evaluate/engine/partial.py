"""A run evaluated in parts, some workers and some rules each, and the parts put together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from watchglass.config import RuleSpec
from watchglass.errors import InvalidValueError
from watchglass.evaluate.engine.examined import hardly_examined
from watchglass.evaluate.engine.rule_status import (
    Examined,
    ExaminedKey,
    PartialEvaluation,
    RuleFacts,
    WorkerFacts,
    status_of,
)
from watchglass.records import Evaluation, Finding, RuleStatus, count
from watchglass.store import layout


def merge(parts: Sequence[PartialEvaluation], rules: Sequence[RuleSpec]) -> Evaluation:
    """The evaluation of one engine over all workers and rules, from parts that cover each worker and rule once.

    Findings come in the same order, and statuses with the same reasons, for any parts in any order.

    Args:
        parts: The parts. Of none, there is no evaluation.
        rules: All rules.

    Raises:
        InvalidValueError: There is no part, or one rule is in none of them.
    """
    if not parts:
        raise InvalidValueError("an evaluation needs at least one part but got none")
    by_rule: dict[int, list[RuleFacts]] = {number: [] for number in range(len(rules))}
    for part in parts:
        for number, facts in part.rules.items():
            by_rule.setdefault(number, []).append(facts)
    missing = [rules[number].name for number, facts in by_rule.items() if not facts]
    if missing or len(by_rule) > len(rules):
        what = f"{missing[0]} is in none of them" if missing else f"there is one of rule {max(by_rule)}"
        raise InvalidValueError(f"parts must cover each of {count(len(rules), 'rule')} but {what}")
    train_steps = {key: count for part in parts for key, count in part.train_steps.items()}
    newest = max(part.newest for part in parts)
    ended = not any(part.running for part in parts if part.newest == newest)
    chosen = {number: _chosen(facts, newest, ended) for number, facts in by_rule.items()}
    examined = {key: found for part in parts for key, found in part.examined.items()}
    statuses = tuple(_status(facts, chosen[number], examined, ended=ended) for number, facts in by_rule.items())
    problems = tuple(dict.fromkeys(problem for part in parts for problem in part.problems))
    return Evaluation(parts[0].run, _ordered(chosen), statuses, most_steps(train_steps), ended, problems)


def _status(
    facts: Sequence[RuleFacts], chosen: Sequence[WorkerFacts], examined: Mapping[ExaminedKey, Examined], *, ended: bool
) -> RuleStatus:
    """The status of one rule."""
    first = facts[0]
    status = status_of(
        first.name,
        chosen,
        {key: met for part in facts for key, met in part.needs.items()},
        ended=ended,
        not_applicable=first.not_applicable,
        unexamined=lambda: hardly_examined(examined, chosen) if first.of_tensors else "",
    )
    return replace(status, parameters=first.parameters)


def _chosen(facts: Sequence[RuleFacts], newest: int, ended: bool) -> list[WorkerFacts]:
    """Facts at the end of all attempts that have ended, and so far of the one that has not."""
    at_end = {(w.attempt, w.worker, w.model): w for part in facts for w in part.at_end if ended or w.attempt < newest}
    so_far = {(w.attempt, w.worker, w.model): w for part in facts for w in part.so_far}
    return list({**so_far, **at_end}.values())


def _ordered(chosen: dict[int, list[WorkerFacts]]) -> tuple[Finding, ...]:
    rows = [
        (worker.attempt, order, number, layout.worker_order(worker.worker), worker.model, finding)
        for number, facts in chosen.items()
        for worker in facts
        for order, finding in worker.findings
    ]
    return tuple(row[-1] for row in sorted(rows, key=lambda row: row[:-1]))


def most_steps(train_steps: Mapping[tuple[int, str], int]) -> int:
    """TRAIN steps of the worker with the most, over all attempts, of those by attempt and worker."""
    return max(steps_by_worker(train_steps).values(), default=0)


def steps_by_worker(train_steps: Mapping[tuple[int, str], int]) -> Counter[str]:
    """TRAIN steps by worker, of those by attempt and worker."""
    found: Counter[str] = Counter()
    for (_, worker), steps in train_steps.items():
        found[worker] += steps
    return found
