"""What evaluators know, for Prometheus: metrics over HTTP, taken from snapshots at each scrape."""

from __future__ import annotations

import hashlib
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from watchglass.errors import InvalidValueError, MissingExtraError
from watchglass.evaluate.many.snapshot import RunSnapshot
from watchglass.records import Severity, Status

if TYPE_CHECKING:
    from prometheus_client import Metric
    from typing_extensions import Self

#: A scrape holds at most so many runs, those that go on first and the newest of the others; of each so many workers,
#: those that are behind first, scalars by name, and rules. What is left out is counted.
MOST_RUNS, MOST_WORKERS, MOST_SCALARS, MOST_RULES = 200, 64, 64, 200
#: Scalars that are kept where there are too many.
_FIRST_SCALARS = ("loss", "learning_rate", "gradient_norm", "accuracy")
#: The outcome of what has none yet, and so goes down again.
_WAITING = "waiting"
#: Characters of a label's value, and of what stands for the rest of a longer one.
_LABEL, _REST = 200, 8


class MetricsServer:
    """Serves metrics at ``http://host:port/metrics`` until it is closed, from threads of its own.

    Args:
        snapshots: The newest snapshot of each run; called at each scrape, from another thread.
        port: Port to listen at; 0 for any that is free, see :attr:`port`.
        host: Address to listen at. Whoever reaches it reads names and losses of all runs.

    Raises:
        MissingExtraError: prometheus_client is not installed.
        InvalidValueError: The address cannot be listened at.
    """

    def __init__(self, snapshots: Callable[[], Sequence[RunSnapshot]], *, port: int, host: str = "127.0.0.1") -> None:
        try:
            from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server
        except ImportError as error:
            raise MissingExtraError(
                f"metrics need prometheus_client ({error}); install it with: pip install 'watchglass[metrics]'"
            ) from error
        # Of our own: what a rule's file may import registers itself in the global one.
        registry = CollectorRegistry()
        registry.register(SnapshotCollector(snapshots))
        ProcessCollector(registry=registry)
        try:
            self._server, self._thread = start_http_server(port, addr=host, registry=registry)
        except (OSError, OverflowError, UnicodeError) as error:
            why = getattr(error, "strerror", None) or error
            raise InvalidValueError(
                f"metrics cannot be served at {host} port {port}: {why}; choose another one with --metrics-port, 0 for "
                "any that is free, or another address of this machine with --metrics-host"
            ) from error
        #: Where metrics are served.
        self.host, self.port = host, int(self._server.server_port)

    @property
    def url(self) -> str:
        """Address to scrape."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/metrics"

    def close(self) -> None:
        """Stop listening. A second call does nothing."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class SnapshotCollector:
    """Makes metrics of snapshots. Any thread may ask.

    Args:
        snapshots: The newest snapshot of each run.
        clock: Seconds of the clock that snapshots are stamped with; for tests.
    """

    def __init__(
        self, snapshots: Callable[[], Sequence[RunSnapshot]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._snapshots, self._clock = snapshots, clock

    def collect(self) -> Iterator[Metric]:
        """All metrics as they are now."""
        from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily

        from watchglass import __version__

        snapshots = self._snapshots()
        yield InfoMetricFamily("watchglass_build", "The release that evaluates.", value={"version": __version__})
        runs = GaugeMetricFamily("watchglass_runs", "Runs that are known, by whether they go on.", labels=("state",))
        ended = sum(bool(snapshot.ended) for snapshot in snapshots)
        runs.add_metric(("running",), len(snapshots) - ended)
        runs.add_metric(("ended",), ended)
        yield runs
        left_out: Counter[str] = Counter(dict.fromkeys(("runs", "workers", "scalars", "rules"), 0))
        shown = _shown(snapshots, left_out)
        yield from _families(shown, self._clock(), left_out)
        missing = GaugeMetricFamily(
            "watchglass_left_out", "What these metrics leave out, so that they stay few.", labels=("what",)
        )
        for what, amount in left_out.items():
            missing.add_metric((what,), amount)
        yield missing


def _families(shown: Mapping[str, RunSnapshot], now_s: float, left_out: Counter[str]) -> Iterator[Metric]:
    """The metrics that each run has."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    def gauge(name: str, help_text: str, *labels: str) -> Any:
        return GaugeMetricFamily(f"watchglass_{name}", help_text, labels=("run", *labels))

    findings = gauge("findings", "Findings so far; repeats of one thing count once.", "rule", "severity")
    statuses = gauge("rule_status", "1 for the status in which the rule is, 0 for all others.", "rule", "status")
    steps = gauge("train_step", "Training steps evaluated.", "worker")
    scalars = gauge("scalar", "Last value of a scalar at a training step.", "name")
    news = gauge("last_news_seconds", "Seconds since something new was read of the run.")
    ends = gauge("run_ended", "1 for how the run ended; no sample while it goes on.", "status")
    waiting = gauge("deliveries_waiting", "Deliveries of actions that are still to be made.", "action")
    deliveries = CounterMetricFamily(
        "watchglass_deliveries", "What actions did, by action and outcome.", labels=("run", "action", "outcome")
    )
    for run, snapshot in shown.items():
        amounts = Counter((finding.rule, finding.severity) for finding in snapshot.findings)
        rules = {status.rule: status.status for status in snapshot.statuses}
        named = sorted({*rules, *(rule for rule, _ in amounts)})
        left_out["rules"] += max(0, len(named) - MOST_RULES)
        for rule in named[:MOST_RULES]:
            for severity in Severity:
                findings.add_metric((run, _label(rule), severity.value), amounts[rule, severity])
            for status in Status if rule in rules else ():
                statuses.add_metric((run, _label(rule), status.value), rules[rule] is status)
        for worker, step in _behind_first(snapshot.train_steps, left_out):
            steps.add_metric((run, _label(worker)), step)
        for name, value in _important_first(snapshot.scalars, left_out):
            scalars.add_metric((run, name), value)
        news.add_metric((run,), max(0.0, now_s - snapshot.read_s))
        if snapshot.ended:
            ends.add_metric((run, _label(snapshot.ended)), 1)
        for (action, outcome), amount in _deliveries(snapshot.deliveries).items():
            if outcome == _WAITING:
                waiting.add_metric((run, action), amount)
            else:
                deliveries.add_metric((run, action, outcome), amount)
    yield from (findings, statuses, steps, scalars, news, ends, deliveries, waiting)


def _shown(snapshots: Sequence[RunSnapshot], left_out: Counter[str]) -> dict[str, RunSnapshot]:
    """The runs that are shown, each by a label of its own."""
    newest = sorted(snapshots, key=lambda each: (bool(each.ended), -each.read_s))
    left_out["runs"] += max(0, len(newest) - MOST_RUNS)
    shown: dict[str, RunSnapshot] = {}
    # In an order that lasts, so that a run has the same label at the next scrape, whoever was read last.
    for snapshot in sorted(newest[:MOST_RUNS], key=lambda each: (each.name, each.run)):
        label = _label(snapshot.name or snapshot.run)
        number = 1
        while label in shown:  # names that look the same; a sample that comes twice spoils the whole scrape
            number += 1
            label = f"{_label(snapshot.name or snapshot.run)}#{number}"
        shown[label] = snapshot
    return shown


def _behind_first(steps: Mapping[str, int], left_out: Counter[str]) -> Iterable[tuple[str, int]]:
    left_out["workers"] += max(0, len(steps) - MOST_WORKERS)
    return sorted(steps.items(), key=lambda item: item[1])[:MOST_WORKERS]


def _important_first(scalars: Mapping[str, float], left_out: Counter[str]) -> Iterable[tuple[str, float]]:
    named: dict[str, float] = {}
    for name, value in scalars.items():
        named.setdefault(_label(name), value)
    ordered = sorted(named, key=lambda name: (name not in _FIRST_SCALARS, name))
    left_out["scalars"] += max(0, len(scalars) - len(ordered[:MOST_SCALARS]))
    # A number as it is: Prometheus knows NaN and infinities.
    return [(name, float(named[name])) for name in ordered[:MOST_SCALARS] if not isinstance(named[name], str)]


def _deliveries(told: Mapping[str, int]) -> dict[tuple[str, str], int]:
    """Amounts by action and outcome, of ``{"Webhook done": 3}``."""
    found: Counter[tuple[str, str]] = Counter()
    for words, amount in told.items():
        action, _, outcome = words.rpartition(" ")
        if math.isfinite(amount):
            found[_label(action or outcome), _label(outcome)] += amount
    return dict(found)


def _label(text: str) -> str:
    """A label's value: short, valid UTF-8, and another one for another text. The library escapes it."""
    label = text[:_LABEL].encode("utf-8", "replace").decode()
    if label == text:
        return label
    rest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_REST]
    return f"{label[: _LABEL - _REST - 1]}~{rest}"
