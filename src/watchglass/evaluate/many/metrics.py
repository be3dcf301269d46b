"""Metrics of followed runs for Prometheus, over HTTP, taken from snapshots at each scrape."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeVar

from watchglass.errors import InvalidValueError, importing
from watchglass.evaluate.live.snapshot import RunSnapshot
from watchglass.records import Severity, Status
from watchglass.version import __version__

if TYPE_CHECKING:
    from prometheus_client import Metric

_T = TypeVar("_T")

#: Most runs in a scrape: active runs first, then the newest of the others. Of each run, most workers (the slowest
#: first), scalars and rules. Omitted ones are counted.
MOST_RUNS, MOST_WORKERS, MOST_SCALARS, MOST_RULES = 200, 64, 64, 200
#: Scalars that are kept where there are too many.
_FIRST_SCALARS = ("loss", "learning_rate", "gradient_norm", "accuracy")
#: The outcome of what has none yet, and so goes down again.
_WAITING = "waiting"
#: Characters of a label's value, and of what stands for the rest of a longer one.
_LABEL, _REST = 200, 8


class MetricsServer(AbstractContextManager["MetricsServer"]):
    """Serves metrics at ``http://host:port/metrics`` until it is closed, from separate threads.

    Args:
        snapshots: The newest snapshot of each run; called at each scrape, from another thread.
        port: Port to listen at; 0 for any that is free, see :attr:`port`.
        host: Address to listen at. Every client that reaches it can read names and losses of all runs.

    Raises:
        MissingExtraError: prometheus_client is not installed.
        InvalidValueError: The address cannot be listened at.
    """

    def __init__(self, snapshots: Callable[[], Sequence[RunSnapshot]], *, port: int, host: str = "127.0.0.1") -> None:
        with importing("metrics need prometheus_client", "metrics"):
            from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server
        self._snapshots = snapshots
        # Not the global registry: modules that a rule's file imports register metrics there.
        registry = CollectorRegistry()
        registry.register(self)
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

    def collect(self) -> Iterator[Metric]:
        """All metrics as they are now, for the registry; any thread may ask."""
        from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily

        snapshots = self._snapshots()
        yield InfoMetricFamily("watchglass_build", "The release that evaluates.", value={"version": __version__})
        runs = GaugeMetricFamily("watchglass_runs", "Known runs, by state.", labels=("state",))
        ended = sum(bool(snapshot.ended) for snapshot in snapshots)
        runs.add_metric(("running",), len(snapshots) - ended)
        runs.add_metric(("ended",), ended)
        yield runs
        left_out: Counter[str] = Counter(dict.fromkeys(("runs", "workers", "scalars", "rules"), 0))
        shown = _shown(snapshots, left_out)
        yield from _families(shown, time.monotonic(), left_out)
        missing = GaugeMetricFamily(
            "watchglass_left_out", "What these metrics omit, to limit their number.", labels=("what",)
        )
        for what, amount in left_out.items():
            missing.add_metric((what,), amount)
        yield missing

    def __exit__(self, *exc: object) -> None:
        self.close()


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
    ends = gauge("run_ended", "1 for how the run ended; no sample while it is active.", "status")
    waiting = gauge("deliveries_waiting", "Deliveries of actions that are still to be made.", "action")
    deliveries = CounterMetricFamily(
        "watchglass_deliveries", "What actions did, by action and outcome.", labels=("run", "action", "outcome")
    )
    for run, snapshot in shown.items():
        amounts = Counter((finding.rule, finding.severity) for finding in snapshot.findings)
        rules = {status.rule: status.status for status in snapshot.statuses}
        named = sorted({*rules, *(rule for rule, _ in amounts)})
        for rule in _first(named, MOST_RULES, "rules", left_out):
            for severity in Severity:
                findings.add_metric((run, _label(rule), severity.value), amounts[rule, severity])
            for status in Status if rule in rules else ():
                statuses.add_metric((run, _label(rule), status.value), rules[rule] is status)
        behind_first = sorted(snapshot.train_steps.items(), key=lambda item: item[1])
        for worker, step in _first(behind_first, MOST_WORKERS, "workers", left_out):
            steps.add_metric((run, _label(worker)), step)
        values = {_label(name): value for name, value in snapshot.scalars.items()}
        important_first = sorted(values, key=lambda name: (name not in _FIRST_SCALARS, name))
        for name in _first(important_first, MOST_SCALARS, "scalars", left_out):
            scalars.add_metric((run, name), values[name])
        news.add_metric((run,), max(0.0, now_s - snapshot.read_s))
        if snapshot.ended:
            ends.add_metric((run, _label(snapshot.ended)), 1)
        for (action, outcome), amount in snapshot.deliveries.items():
            if outcome == _WAITING:
                waiting.add_metric((run, _label(action)), amount)
            else:
                deliveries.add_metric((run, _label(action), outcome), amount)
    yield from (findings, statuses, steps, scalars, news, ends, deliveries, waiting)


def _shown(snapshots: Sequence[RunSnapshot], left_out: Counter[str]) -> dict[str, RunSnapshot]:
    """The runs that are shown, each by a unique label."""
    newest_first = sorted(snapshots, key=lambda each: (bool(each.ended), -each.read_s))
    newest = _first(newest_first, MOST_RUNS, "runs", left_out)
    shown: dict[str, RunSnapshot] = {}
    # In a stable order, so that a run has the same label at the next scrape, whichever run was read last.
    for snapshot in sorted(newest, key=lambda each: (each.name, each.run)):
        label = _label(snapshot.name or snapshot.run)
        number = 1
        while label in shown:  # names that look the same; a sample that comes twice spoils the whole scrape
            number += 1
            label = f"{_label(snapshot.name or snapshot.run)}#{number}"
        shown[label] = snapshot
    return shown


def _first(items: Sequence[_T], most: int, what: str, left_out: Counter[str]) -> Sequence[_T]:
    """The first items; those beyond the bound are counted."""
    left_out[what] += max(0, len(items) - most)
    return items[:most]


def _label(text: str) -> str:
    """A label's value: short, valid UTF-8, and different for different texts. The library escapes it."""
    label = text[:_LABEL].encode("utf-8", "replace").decode()
    if label == text:
        return label
    rest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_REST]
    return f"{label[: _LABEL - _REST - 1]}~{rest}"
