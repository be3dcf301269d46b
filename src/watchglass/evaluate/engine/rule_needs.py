"""The needs of one rule over a whole run: which of them are met so far."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator, Sequence
from typing import Any

from numpy.typing import NDArray

from watchglass.evaluate.engine.rule_status import Met, best, need_order
from watchglass.evaluate.engine.unmet_needs import NeedSeen
from watchglass.evaluate.engine.windowing import Cutting
from watchglass.rules import Needs
from watchglass.tables import StepView, series_of


class RuleNeeds:
    """The needs of one rule, over all workers and their models. For one thread.

    Steps show whether a need is met, for each model on each worker. Whether a metric comes, rows of streams show, once
    for the run: metrics belong to machines.

    Args:
        needs: The needs.
        cutting: Cuts the windows of the rule; None if it takes none.
    """

    def __init__(self, needs: Sequence[Needs], cutting: Cutting | None) -> None:
        self._of_steps = tuple(need for need in needs if not need.metrics)
        of_metrics = [need for need in needs if need.metrics]
        self._metrics = [need for need in of_metrics if not need.optional]
        self._measured: set[str] = set()
        # A rule whose metrics are all optional does without streams.
        self._cutting = None if of_metrics and not self._metrics else cutting
        self._seen: dict[tuple[str, int], list[NeedSeen]] = {}
        self._in_order: list[tuple[str, int]] = []
        # Those that are still looked for.
        self._open: dict[tuple[str, int], list[NeedSeen]] = {}

    def look(self, view: StepView) -> None:
        """Looks in a step for what is not known to be met."""
        key = (view.worker, view.model)
        needs = self._open.get(key)
        if needs is None:
            self._seen[key] = self._unseen()
            insort(self._in_order, key, key=need_order)
            needs = self._open[key] = [need for need in self._seen[key] if _is_open(need)]
        if needs:
            for need in needs:
                need.look(view)
            if any(need.satisfied for need in needs):
                self._open[key] = [need for need in needs if _is_open(need)]

    def look_for_metrics(self, samples: NDArray[Any] | None) -> None:
        """Notes which metrics have a value among the samples of a stream."""
        if samples is not None and not all(map(self._is_measured, self._metrics)):
            wanted = [name for need in self._metrics for name in need.metrics if name not in self._measured]
            self._measured.update(name for name in wanted if len(series_of(samples, name).time_ns))

    def met(self) -> dict[tuple[str, int], tuple[Met, ...]]:
        """The state of each need, by worker and model; see :attr:`RuleFacts.needs`."""
        rows = {("", 0): self._unseen(), **self._seen}
        return {key: (*(need.met for need in needs), *self._of_streams()) for key, needs in rows.items()}

    def over_all(self) -> Iterator[Met]:
        """The state of each need over all workers and models, in order."""
        rows = [self._seen[key] for key in self._in_order] or [self._unseen()]
        for number, need in enumerate(self._of_steps):
            if not need.optional:
                yield best(row[number].met for row in rows)
        yield from self._of_streams()

    def _unseen(self) -> list[NeedSeen]:
        return [NeedSeen(need) for need in self._of_steps]

    def _is_measured(self, need: Needs) -> bool:
        return not self._measured.isdisjoint(need.metrics)

    def _of_streams(self) -> tuple[Met, ...]:
        """Whether rows and metrics for windows came, for a rule that takes windows; what has not come may be late."""
        if self._cutting is None:
            return ()
        reason = f"no stream of this run has rows of the kind {' or '.join(self._cutting.windows.kinds)}"
        rows = [Met(self._cutting.seen, "" if self._cutting.seen else reason, certain=False)]
        for need in self._metrics:
            why = f" (needed {need.why})" if need.why else ""
            lacks = "" if self._is_measured(need) else f"the machine of this run gave no {need.describe()}{why}"
            rows.append(Met(not lacks, lacks, certain=False, absent=bool(lacks)))
        return tuple(rows)


def _is_open(need: NeedSeen) -> bool:
    """Whether to look for it at further steps; whether an optional one is met changes nothing."""
    return not need.needs.optional and (not need.satisfied or need.needs.max_interval is not None)
