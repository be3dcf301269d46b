"""Metrics as Prometheus scrapes them: names, types, labels, bounds, and a port that is another's."""

from __future__ import annotations

import math
import re
import socket
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from watchglass.errors import InvalidValueError, MissingExtraError
from watchglass.evaluate import MetricsServer, Snapshots
from watchglass.evaluate.live.snapshot import RunSnapshot
from watchglass.evaluate.many.metrics import MOST_RUNS, MOST_SCALARS, MOST_WORKERS
from watchglass.records import Finding, Mode, RuleStatus, Severity, Status

HOSTILE = 'a"b\\c\nd{e="f"} 1\n# TYPE x counter \ud800'

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def finding(number: int, rule: str, severity: Severity) -> Finding:
    return Finding(
        id=f"{number:012x}", rule=rule, severity=severity, step=1, last_step=1, count=1, mode=Mode.TRAIN,
        worker="worker_0", tensors=(), value=None, limit=None, message="as ever",
    )  # fmt: skip


SNAPSHOT = RunSnapshot(
    "/runs/mine", "mine", 0,
    (RuleStatus("DeadRelu", Status.ISSUES_FOUND), RuleStatus("Overfit", Status.IN_PROGRESS)),
    (finding(1, "DeadRelu", Severity.WARNING), finding(2, "DeadRelu", Severity.WARNING)),
    {"worker_0": 120, "worker_1": 118}, {"loss": math.nan, "learning_rate": 0.1}, "",
    {("Webhook", "done"): 3, ("Webhook", "failed"): 1, ("Webhook", "waiting"): 2}, 0.0,
)  # fmt: skip


@pytest.fixture
def snapshots() -> Snapshots:
    return Snapshots()


@pytest.fixture
def server(snapshots: Snapshots) -> Iterator[MetricsServer]:
    with MetricsServer(lambda: snapshots.newest, port=0) as found:
        yield found


def scraped(server: MetricsServer) -> tuple[dict[str, str], Samples]:
    """Types of the families, and samples by name and labels; no sample comes twice."""
    with urllib.request.urlopen(server.url, timeout=30) as answer:
        text = answer.read().decode()
    types: dict[str, str] = {}
    samples: Samples = {}
    for family in text_string_to_metric_families(text):
        types[family.name] = family.type
        assert family.documentation or not family.name.startswith("watchglass")
        for sample in family.samples:
            key = sample.name, tuple(sorted(sample.labels.items()))
            assert key not in samples, f"{key} comes twice"
            samples[key] = sample.value
    return types, samples


def value(samples: Samples, metric: str, **labels: str) -> float:
    return samples[f"watchglass_{metric}", tuple(sorted(labels.items()))]


def test_a_run_is_shown_in_metrics(server: MetricsServer, snapshots: Snapshots) -> None:
    snapshots.publish([SNAPSHOT])
    types, samples = scraped(server)
    assert value(samples, "findings", run="mine", rule="DeadRelu", severity="warning") == 2
    assert value(samples, "findings", run="mine", rule="DeadRelu", severity="error") == 0
    assert value(samples, "findings", run="mine", rule="Overfit", severity="error") == 0
    found = {key[1][2][1]: flag for key, flag in samples.items() if key[0] == "watchglass_rule_status"
             and ("rule", "DeadRelu") in key[1]}  # fmt: skip
    assert found == {status.value: float(status is Status.ISSUES_FOUND) for status in Status}
    assert value(samples, "train_step", run="mine", worker="worker_1") == 118
    assert math.isnan(value(samples, "scalar", run="mine", name="loss"))
    assert value(samples, "last_news_seconds", run="mine") > 0
    assert value(samples, "deliveries_total", run="mine", action="Webhook", outcome="done") == 3
    assert value(samples, "deliveries_waiting", run="mine", action="Webhook") == 2
    assert not [key for key in samples if key[0] == "watchglass_run_ended"]
    assert value(samples, "runs", state="running") == 1
    assert types["watchglass_findings"] == types["watchglass_scalar"] == "gauge"
    assert types["watchglass_deliveries"] == "counter"
    assert types["process_cpu_seconds"] == "counter"
    assert "python_gc_objects_collected" not in types, "the registry is of our own"


def test_metrics_follow_the_snapshots(server: MetricsServer, snapshots: Snapshots) -> None:
    _, samples = scraped(server)
    assert value(samples, "runs", state="running") == 0
    snapshots.publish([SNAPSHOT, replace(SNAPSHOT, name="other", ended="finished")])
    _, samples = scraped(server)
    assert value(samples, "run_ended", run="other", status="finished") == 1
    assert value(samples, "runs", state="ended") == 1


def test_no_name_breaks_the_scrape(server: MetricsServer, snapshots: Snapshots) -> None:
    hostile = replace(
        SNAPSHOT, name=HOSTILE, scalars={HOSTILE: 1.0}, train_steps={HOSTILE: 1}, ended=HOSTILE,
        statuses=(RuleStatus(HOSTILE, Status.ERROR),), findings=(finding(1, HOSTILE, Severity.ERROR),),
        deliveries={(HOSTILE, "done"): 1},
    )  # fmt: skip
    snapshots.publish([hostile, replace(hostile, run="elsewhere")])
    _, samples = scraped(server)
    (label,) = {dict(labels)["rule"] for _, labels in samples if "rule" in dict(labels)}
    assert re.fullmatch(re.escape(HOSTILE.replace("\ud800", "?")) + "~[0-9a-f]{8}", label)
    assert value(samples, "findings", run=label, rule=label, severity="error") == 1
    assert value(samples, "findings", run=f"{label}#2", rule=label, severity="error") == 1


def test_names_that_differ_at_their_end_only_are_distinguished_and_stay_who_they_are(
    server: MetricsServer, snapshots: Snapshots
) -> None:
    long = "sweep/" + "a" * 300
    one = replace(SNAPSHOT, name=long + "1", train_steps={long + "x": 1, long + "y": 2}, scalars={})
    other = replace(SNAPSHOT, name=long + "2", train_steps={"worker_0": 3}, scalars={})
    seen = []
    for read_s in (0.0, 9.0):  # whichever was read last
        snapshots.publish([one, replace(other, read_s=read_s - 1)])
        _, samples = scraped(server)
        seen.append({key: step for key, step in samples.items() if key[0] == "watchglass_train_step"})
    assert seen[0] == seen[1]
    assert sorted(seen[0].values()) == [1, 2, 3]
    assert all(len(text) <= 200 for _, labels in seen[0] for _, text in labels)
    same = [replace(SNAPSHOT, name="same", run=f"/runs/{number}", train_steps={"w": number}) for number in range(2)]
    for order in (same, same[::-1]):
        snapshots.publish([replace(each, read_s=number) for number, each in enumerate(order)])
        _, samples = scraped(server)
        assert value(samples, "train_step", run="same", worker="w") == 0
        assert value(samples, "train_step", run="same#2", worker="w") == 1


def test_what_is_too_much_is_left_out_and_counted(server: MetricsServer, snapshots: Snapshots) -> None:
    big = replace(
        SNAPSHOT,
        train_steps={f"worker_{number}": 1000 - number for number in range(MOST_WORKERS + 10)},
        scalars={**{f"a{number}": 0.0 for number in range(MOST_SCALARS + 5)}, "loss": 1.0},
    )
    runs = [replace(SNAPSHOT, name=f"run-{number}", ended="finished") for number in range(MOST_RUNS + 3)]
    snapshots.publish([*runs, replace(big, name="goes on")])
    _, samples = scraped(server)
    assert value(samples, "left_out", what="runs") == 4
    assert value(samples, "left_out", what="workers") == 10
    assert value(samples, "left_out", what="scalars") == 6
    assert value(samples, "scalar", run="goes on", name="loss") == 1
    assert value(samples, "train_step", run="goes on", worker=f"worker_{MOST_WORKERS + 9}") == 1000 - MOST_WORKERS - 9
    of_it = [key[0] for key in samples if ("run", "goes on") in key[1]]
    assert of_it.count("watchglass_train_step") == MOST_WORKERS
    assert of_it.count("watchglass_scalar") == MOST_SCALARS
    assert value(samples, "runs", state="ended") == MOST_RUNS + 3
    assert len({dict(key[1])["run"] for key in samples if key[0] == "watchglass_train_step"}) == MOST_RUNS


def test_only_this_machine_is_served_unless_asked(server: MetricsServer) -> None:
    assert server.url == f"http://127.0.0.1:{server.port}/metrics"
    # All of 127.0.0.0/8 is this machine, so a server of all addresses would answer there.
    with pytest.raises((ConnectionRefusedError, TimeoutError)):
        socket.create_connection(("127.0.0.2", server.port), timeout=5)


def test_a_port_in_use_is_one_line(server: MetricsServer) -> None:
    with pytest.raises(InvalidValueError, match=f"127.0.0.1 port {server.port}: Address already in use; choose"):
        MetricsServer(tuple, port=server.port)


def test_a_host_that_is_none_is_one_line() -> None:
    with pytest.raises(InvalidValueError, match=r"cannot be served at no host\.invalid port 0: "):
        MetricsServer(tuple, port=0, host="no host.invalid")


def test_nothing_listens_once_it_is_closed() -> None:
    server = MetricsServer(tuple, port=0)
    server.close()
    server.close()
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", server.port)) != 0


def test_a_missing_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'watchglass\[metrics\]'"):
        MetricsServer(tuple, port=0)
