"""Actions of an evaluator on findings and statuses: each is delivered once, and no failure harms the evaluator."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from clocks import Now
from evaluators.ray_in_this_process import Processes, elsewhere
from evaluators.receivers import Receiver, receiver
from waiting import PATIENCE_S, until
from watchglass.actions import DeliveryOutcome, build_action
from watchglass.config import ActionSpec, EvaluatorConfig, EvaluatorTiming, RuleSpec
from watchglass.errors import RunExistsError
from watchglass.evaluate.live import acting, deliveries
from watchglass.evaluate.live.evaluator import Evaluator
from watchglass.evaluate.live.reporting import Reporting
from watchglass.records import Observation, Status
from watchglass.run import open_run
from watchglass.store import JournalWriter, LocalStore, layout, read_manifest, this_process
from watchglass.supervise import CompanionProcess
from watchglass.testing import RunBuilder, example_event

NAN = float("nan")
RULES = (RuleSpec("ExplodingTensor"),)


def config(run: Path, *actions: ActionSpec, **options: Any) -> EvaluatorConfig:
    return EvaluatorConfig(
        str(run), options.pop("attempt", 0), options.pop("rules", RULES), actions=actions, poll_s=0.02, quiet=True,
        timing=EvaluatorTiming(delivery_pauses_s=(0.05, 300.0), **options.pop("timing", {})), **options,
    )  # fmt: skip


def hook(server: Receiver, **parameters: Any) -> ActionSpec:
    return ActionSpec("Webhook", {"url": server.url, **parameters})


@pytest.fixture
def server() -> Iterator[Receiver]:
    with receiver() as listening:
        yield listening


def opened(settings: EvaluatorConfig, **more: Any) -> Evaluator:
    evaluator = Evaluator(settings, **more)
    evaluator.open(lambda _: False, patience_s=0.0)
    return evaluator


def turns(evaluator: Evaluator, condition: Callable[[], object]) -> None:
    def turned() -> object:
        evaluator.turn()
        return condition()

    until(turned)


def actions_of(run: Path) -> list[Observation]:
    return [seen for seen in open_run(run).journal.observations if seen.kind.startswith("action_")]


def kinds(run: Path) -> list[str]:
    return [seen.kind for seen in actions_of(run)]


def events(server: Receiver) -> list[dict[str, Any]]:
    return [json.loads(request.body) for request in server.requests]


def broken(builder: RunBuilder, *, leave: str = "finished") -> None:
    for loss in (2.0, 1.9, NAN, NAN):
        builder.step(scalars={"loss": loss})
    if leave:
        builder.leave(leave)


def test_a_finding_is_delivered_once_while_the_training_goes_on(run_path: Path, server: Receiver) -> None:
    with RunBuilder(run_path) as builder:
        evaluator = opened(config(run_path, hook(server)))
        broken(builder, leave="")
        turns(evaluator, lambda: "action_done" in kinds(run_path))
        builder.step(scalars={"loss": NAN})
        for _ in range(5):
            evaluator.turn()
        assert evaluator.snapshot().deliveries == {("Webhook", "done"): 1}
        builder.leave()
        evaluator.finish()
    assert kinds(run_path) == ["action_due", "action_done"]
    (event,) = events(server)
    (finding,) = open_run(run_path).journal.findings
    assert event["data"]["finding"]["id"] == finding.id
    assert event["data"]["run"] == str(run_path)


def test_what_is_found_in_the_last_step_is_delivered_too(run_path: Path, server: Receiver) -> None:
    """Most training runs that break end with it: nothing of it was read while they went on."""
    with RunBuilder(run_path) as builder:
        broken(builder, leave="failed")
    evaluator = opened(config(run_path, hook(server)))
    evaluator.finish()
    assert kinds(run_path) == ["action_due", "action_done"]


def test_changes_of_status_are_events(run_path: Path, server: Receiver) -> None:
    rules = (*RULES, RuleSpec("Overfit"))
    with RunBuilder(run_path) as builder:
        evaluator = opened(config(run_path, hook(server, on="status"), rules=rules))
        broken(builder, leave="")
        turns(evaluator, lambda: server.requests)
        builder.leave()
        evaluator.finish()
    changes = [(e["data"]["rule"], e["data"]["previous"], e["data"]["status"]["status"]) for e in events(server)]
    assert changes[0] == ("ExplodingTensor", "InProgress", "IssuesFound")
    assert [rule for rule, _, _ in changes[1:]] == ["Overfit"], "it has come to its end as well"
    assert [event["id"] for event in events(server)] == [
        seen.data["event"] for seen in actions_of(run_path) if seen.kind == "action_due"
    ]


@pytest.mark.parametrize("on", ["finding", "status"])
def test_an_evaluator_that_starts_again_delivers_nothing_twice(run_path: Path, server: Receiver, on: str) -> None:
    with RunBuilder(run_path) as builder:
        first = opened(config(run_path, hook(server, on=on)))
        broken(builder, leave="")
        turns(first, lambda: "action_done" in kinds(run_path))
        first.close()
        statuses = open_run(run_path).journal.statuses
        assert statuses[0].status is Status.ISSUES_FOUND
        second = opened(config(run_path, hook(server, on=on)))
        assert open_run(run_path).journal.statuses == statuses, "it has not gone back to where it was long ago"
        for _ in range(5):
            second.turn()
        builder.leave()
        second.finish()
    assert len(server.requests) == 1
    assert kinds(run_path) == ["action_due", "action_done"]


def test_an_evaluator_that_starts_again_goes_on_with_what_was_due(run_path: Path, server: Receiver) -> None:
    server.answers = [(503, {})]
    with RunBuilder(run_path) as builder:
        first = opened(config(run_path, hook(server)))
        broken(builder, leave="")
        turns(first, lambda: server.requests)
        first.close()
        assert kinds(run_path) == ["action_due"]
        server.answers = [(204, {})]
        second = opened(config(run_path, hook(server)))
        turns(second, lambda: "action_done" in kinds(run_path))
        builder.leave()
        second.finish()
    assert len({event["id"] for event in events(server)}) == 1


def test_one_whose_journal_is_anothers_delivers_nothing_any_more(run_path: Path, server: Receiver) -> None:
    """Its machine slept for a while, and another evaluator took over what was due."""
    server.answers = [(503, {})]
    with RunBuilder(run_path) as builder:
        clock = Now()
        others = set(psutil.Process().children())  # of tests before
        evaluator = opened(config(run_path, hook(server)), clock=clock)
        broken(builder, leave="")
        turns(evaluator, lambda: server.requests and set(psutil.Process().children()) <= others)
        other = replace(this_process(), host="elsewhere", pid=1)
        LocalStore(run_path).write(f"{layout.LEASE}.1", json.dumps(other.to_json()).encode())
        clock.advance(600.0)  # the delivery is due
        with pytest.raises(RunExistsError, match="was taken over by process 1 on elsewhere"):
            evaluator.turn()
        assert set(psutil.Process().children()) <= others
        evaluator.close()
        builder.leave()


def test_what_was_found_before_anybody_asked_is_history(run_path: Path, server: Receiver) -> None:
    with RunBuilder(run_path) as builder:
        first = opened(config(run_path))
        broken(builder, leave="")
        turns(first, lambda: open_run(run_path).journal.findings)
        first.close()
        second = opened(config(run_path, hook(server)))
        for _ in range(5):
            second.turn()
        builder.leave()
        second.finish()
    assert kinds(run_path) == []
    assert server.requests == []


def test_findings_of_earlier_attempts_are_history(run_path: Path, server: Receiver) -> None:
    with RunBuilder(run_path) as builder:
        broken(builder)
    with RunBuilder(run_path) as builder:
        evaluator = opened(config(run_path, hook(server), attempt=None))
        builder.step(scalars={"loss": 1.0})
        builder.leave()
        evaluator.finish()
    assert [finding.attempt for finding in open_run(run_path).journal.findings] == [0]
    assert kinds(run_path) == []


def test_each_action_gets_what_it_asks_for(run_path: Path, server: Receiver) -> None:
    actions = (
        hook(server, rules="Overfit"), hook(server, severity="error"), hook(server, on="status", statuses="Error"),
    )  # fmt: skip
    rules = (*RULES, RuleSpec("Overfit"))
    with RunBuilder(run_path) as builder:
        evaluator = opened(config(run_path, *actions, rules=rules))
        broken(builder)
        evaluator.finish()
    assert [(seen.kind, seen.data["action"]) for seen in actions_of(run_path)] == [
        ("action_due", "Webhook-2"), ("action_done", "Webhook-2"),
    ]  # fmt: skip


def test_an_address_without_a_server_leaves_dead_letters_and_a_line(run_path: Path, capsys: Any) -> None:
    with RunBuilder(run_path) as builder:
        settings = config(run_path, ActionSpec("Webhook", {"url": "http://127.0.0.1:9/", "retries": 1}))
        evaluator = Evaluator(settings, output=sys.stderr)
        evaluator.open(lambda _: False, patience_s=0.0)
        broken(builder)
        evaluator.finish()
    (due, failed) = actions_of(run_path)
    assert failed.data["reason"] == "cannot be reached: Connection refused"
    letter = json.loads((run_path / layout.dead_letter("Webhook", due.data["event"])).read_text())
    assert letter["event"]["finding"]["rule"] == "ExplodingTensor"
    assert (
        "watchglass: Webhook: 1 not delivered (cannot be reached: Connection refused), see dead-letters/ in the run;"
        " watchglass actions RUN --resend sends them again\n" in capsys.readouterr().err
    )


def test_the_end_waits_no_longer_than_its_patience(run_path: Path, tmp_path: Path) -> None:
    with RunBuilder(run_path) as builder:
        settings = config(run_path, action(tmp_path, "time.sleep(600)", timeout_s=500))
        evaluator = opened(settings)
        broken(builder)
        evaluator.finish(action_patience_s=1.0)
    assert kinds(run_path) == ["action_due", "action_failed"]
    assert actions_of(run_path)[1].data["reason"] == (
        "the run has ended, and it has not arrived within the last 1 s of waiting"
    )


def test_the_end_goes_on_waiting_as_long_as_one_after_the_other_arrives(run_path: Path) -> None:
    """Sixty of them, each a process of three seconds: together three minutes."""
    lines, clock = slow_lines(run_path, 60, each_s=3.0)
    assert lines == {"done": 60, "failed": 0}
    assert clock.now_s == pytest.approx(180.0, abs=10.0)


def test_the_end_does_not_go_on_for_ever(run_path: Path) -> None:
    lines, clock = slow_lines(run_path, 600, each_s=3.0)
    assert 90 <= lines["done"] <= 100
    assert lines["done"] + lines["failed"] == 600, "none is lost"
    assert clock.now_s == pytest.approx(300.0, abs=10.0)
    assert (
        "within all 300 s of waiting" in json.loads(sorted(run_path.rglob("dead-letters/*"))[0].read_text())["reason"]
    )


class Clock:
    """Time that passes where somebody waits."""

    now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def time_ns(self) -> int:
        return int(self.now_s * 1e9)

    def pause(self, seconds: float) -> bool:
        self.now_s += seconds
        return True


class Slow:
    """A delivery that arrives after so long."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self.clock, self.done_s = clock, clock.now_s + seconds

    def poll(self) -> DeliveryOutcome | None:
        return DeliveryOutcome(True) if self.clock.now_s >= self.done_s else None

    def end(self) -> None:
        return


def slow_lines(run: Path, events: int, *, each_s: float) -> tuple[dict[str, int], Clock]:
    """What becomes of many events of one action at the end of a training run."""
    with RunBuilder(run) as builder:
        builder.step(scalars={"loss": 1.0})
    clock, made = Clock(), []

    def make(*args: Any, **options: Any) -> deliveries.Deliveries:
        made.append(deliveries.Deliveries(*args, start=lambda *_, **__: Slow(clock, each_s), **options))
        return made[0]

    settings = config(run, ActionSpec("Webhook", {"url": "http://127.0.0.1:9/", "per_hour": None}))
    acts = acting.Acting(LocalStore(run), settings, "id", clock=clock, deliveries=make)
    finding = example_event().finding
    assert finding is not None
    acts.found([replace(finding, id=f"{number:012x}") for number in range(events)])
    acts.finish(lambda _: None, lambda _: None, ended=True, pause=clock.pause, patience_s=60.0)
    return {name: made[0].counts[name] for name in ("done", "failed")}, clock


class Never(Slow):
    """A delivery that does not end."""

    def __init__(self) -> None:
        super().__init__(Clock(), 1.0)


@pytest.fixture
def no_process_left(tmp_path: Path) -> Iterator[None]:
    """Deliveries of other runs are as many as this process may have."""
    spec = ActionSpec("Webhook", {"url": "http://127.0.0.1:9/"})
    lines = [
        deliveries.Deliveries(
            "Webhook", spec, build_action(spec), LocalStore(tmp_path / f"other{number}"),  # type: ignore[arg-type]
            start=lambda *_, **__: Never(), timing=EvaluatorTiming(),
        )
        for number in range(deliveries.MOST_OF_ALL_RUNS)
    ]  # fmt: skip
    for line in lines:
        line.add(example_event())
        line.tick(may_start=True)
    yield
    deliveries.end_all()


def test_the_end_waits_no_longer_where_no_process_may_be_started(
    run_path: Path, server: Receiver, no_process_left: None
) -> None:
    """Deliveries of other runs go on while the evaluator does not poll them."""
    pauses: list[float] = []

    def pause(seconds: float) -> bool:
        pauses.append(seconds)
        assert len(pauses) < 10_000
        return True

    with RunBuilder(run_path) as builder:
        evaluator = opened(config(run_path, hook(server)))
        broken(builder)
        evaluator.finish(action_patience_s=0.01, pause=pause)
    assert kinds(run_path) == ["action_due", "action_failed"]


def test_the_end_says_for_what_and_how_long_it_waits_and_can_be_hurried(run_path: Path, tmp_path: Path) -> None:
    said = io.StringIO()
    with RunBuilder(run_path) as builder:
        settings = config(run_path, action(tmp_path, "time.sleep(600)"), timing={"reported_wait_s": 0.0})
        evaluator = Evaluator(settings, output=said)
        evaluator.open(lambda _: False, patience_s=0.0)
        broken(builder)
        evaluator.finish(pause=lambda _: False)
    assert "waiting for deliveries, 60 s at most for the next one to arrive: Mine 1" in said.getvalue()
    assert "stopped waiting for deliveries" in actions_of(run_path)[1].data["reason"]


def test_what_a_message_holds_steers_no_terminal(run_path: Path) -> None:
    said = io.StringIO()
    with RunBuilder(run_path):
        reporting = Reporting(LocalStore(run_path), replace(config(run_path), quiet=False), "id", said)
    finding = example_event().finding
    assert finding is not None
    reporting.findings([replace(finding, message="a\x1b[2J\nwatchglass: all is well")], [])
    reporting.report("b\x1b[2J")
    first, second = said.getvalue().splitlines()
    assert first.endswith("a\\x1b[2J watchglass: all is well (ExplodingTensor)")
    assert second.endswith("b\\x1b[2J")


@pytest.mark.parametrize(
    "changed",
    [
        {"id": "../../../outside"},
        {"kind": "command"},
        {"left_out": "many"},
        {"rule": {"name": "Overfit"}},
        {"status": None, "previous": None},
        {"time_ns": 1e300},
    ],
)
def test_what_no_evaluator_would_write_is_not_delivered(
    run_path: Path, server: Receiver, changed: dict[str, Any]
) -> None:
    """A run may come from anybody."""
    event = {**example_event("status").to_json(), "id": "0123456789abcdef"}
    data = [
        {"action": "Webhook", "event": made["id"], "kind": "status", "content": made}
        for made in ({**event, **changed}, event)
    ]
    data[1]["content"] = {**event, "run": "/elsewhere"}
    server.answers = [(400, {})]
    with RunBuilder(run_path) as builder:
        builder.step(scalars={"loss": 1.0})
        builder.leave()
    with JournalWriter(LocalStore(run_path)) as journal:
        journal.write([Observation("action_due", 0, None, each) for each in data])
    evaluator = opened(config(run_path, hook(server)))
    evaluator.finish()
    (request,) = server.requests
    run_id = read_manifest(LocalStore(run_path)).run_id
    assert json.loads(request.body)["data"] == {**event, "run": str(run_path), "run_id": run_id}


def test_an_evaluator_that_has_to_end_leaves_what_is_due_to_the_next(run_path: Path, tmp_path: Path) -> None:
    with RunBuilder(run_path) as builder:
        evaluator = opened(config(run_path, action(tmp_path, "time.sleep(600)")))
        broken(builder, leave="")
        turns(evaluator, lambda: kinds(run_path))
        evaluator.finish()
        assert kinds(run_path) == ["action_due"]
        assert LocalStore(run_path).list(layout.DEAD_LETTERS) == []
        builder.leave()


def action(folder: Path, body: str, **parameters: Any) -> ActionSpec:
    head = 'import os, time\nimport watchglass\n\n\nclass Mine(watchglass.Action):\n    """Mine."""\n\n'
    (folder / "mine.py").write_text(f"{head}    def act(self, event):\n" + textwrap.indent(body, " " * 8))
    return ActionSpec(f"{folder}/mine.py:Mine", {"retries": 0, **parameters})


@pytest.mark.parametrize("body", ["1 / 0", "time.sleep(600)", "os.kill(os.getpid(), 9)", "os.fork() and 1 / 0"])
def test_an_action_that_fails_does_not_keep_others_from_anything(
    run_path: Path, tmp_path: Path, server: Receiver, body: str
) -> None:
    bad = action(tmp_path, body, timeout_s=2.0)
    with RunBuilder(run_path) as builder:
        evaluator = opened(config(run_path, bad, hook(server)))
        broken(builder, leave="")
        turns(evaluator, lambda: "action_done" in kinds(run_path))
        (tmp_path / "mine.py").unlink()
        builder.leave()
        evaluator.finish()
    assert {(seen.kind, seen.data["action"]) for seen in actions_of(run_path)} == {
        ("action_due", "Mine"), ("action_failed", "Mine"), ("action_due", "Webhook"), ("action_done", "Webhook"),
    }  # fmt: skip
    assert open_run(run_path).journal.statuses[0].status is Status.ISSUES_FOUND


def test_a_stop_is_an_action_with_parameters(run_path: Path) -> None:
    stop = ActionSpec("StopTraining", {"severity": "error", "rules": "Overfit"})
    with RunBuilder(run_path) as builder:
        evaluator = opened(config(run_path, stop, rules=(*RULES, RuleSpec("Overfit"))))
        broken(builder, leave="")
        for _ in range(5):
            evaluator.turn()
        assert LocalStore(run_path).list("control") == []
        evaluator.close()
        evaluator = opened(config(run_path, ActionSpec("StopTraining", {"rules": "ExplodingTensor"})))
        builder.step(scalars={"loss": NAN})
        turns(evaluator, lambda: LocalStore(run_path).size(layout.control_commit("stop", 0)))
        builder.leave("stopped")
        evaluator.finish()
    assert [seen.kind for seen in open_run(run_path).journal.observations] == ["stop_requested", "stop_committed"]


def test_killed_between_delivery_and_record_it_is_delivered_again_with_the_same_id(
    run_path: Path, server: Receiver
) -> None:
    """At least once: the receiver knows a repeat by its id."""
    settings = config(run_path, hook(server)).to_line()
    command = [sys.executable, "-m", "watchglass.evaluate"]

    def start() -> subprocess.Popen[bytes]:
        process = subprocess.Popen(command, stdin=subprocess.PIPE)
        process.stdin.write(settings.encode() + b"\n")
        process.stdin.flush()
        return process

    with RunBuilder(run_path) as builder:
        server.gate = threading.Event()
        first = start()
        broken(builder, leave="")
        until(lambda: server.requests)
        first.kill()
        first.communicate()
        assert kinds(run_path) == ["action_due"]
        server.gate.set()
        second = start()
        until(lambda: "action_done" in kinds(run_path))
        builder.leave()
        second.communicate(timeout=PATIENCE_S)
    assert kinds(run_path) == ["action_due", "action_done"]
    assert len(server.requests) == 2
    assert len({event["id"] for event in events(server)}) == 1


def test_secrets_are_nowhere(run_path: Path, server: Receiver) -> None:
    environ = {**os.environ, "HOOK": server.url + "/geheim-1234", "KEY": "geheim-5678"}
    server.answers = [(400, {})]
    settings = config(run_path, ActionSpec("Webhook", {"url": "$HOOK", "secret": "$KEY"}))
    assert "geheim" not in settings.to_line()
    process = subprocess.Popen([sys.executable, "-m", "watchglass.evaluate"], stdin=subprocess.PIPE, env=environ)
    process.stdin.write(settings.to_line().encode() + b"\n")
    process.stdin.flush()
    with RunBuilder(run_path) as builder:
        broken(builder)
        until(lambda: "action_failed" in kinds(run_path))
        process.communicate(timeout=PATIENCE_S)
    assert server.requests[0].path.endswith("geheim-1234")
    assert server.requests[0].verified(b"geheim-5678")
    written = b"".join(path.read_bytes() for path in run_path.rglob("*") if path.is_file())
    assert b"geheim" not in written


def test_nothing_of_actions_goes_to_the_cluster(run_path: Path) -> None:
    ray, said = Processes(), io.StringIO()
    with RunBuilder(run_path) as builder:
        broken(builder)
    hook = ActionSpec("Webhook", {"url": "http://127.0.0.1:9/very-secret", "retries": 0})
    evaluator = opened(config(run_path, hook), output=said, judging=elsewhere(ray))
    evaluator.finish()
    assert "not delivered" in said.getvalue()  # but accepted, and tried here
    assert evaluator.snapshot().findings
    assert "very-secret" not in "".join([*ray.setups, *ray.requests])
    assert json.loads(json.loads(ray.setups[0])["config"])["actions"] == []


def test_its_configuration_is_in_no_command_line(run_path: Path, server: Receiver) -> None:
    with RunBuilder(run_path) as builder:
        process = CompanionProcess(config(run_path, ActionSpec("Webhook", {"url": server.url + "/geheim"})), os.environ)
        try:
            builder.step(scalars={"loss": 1.0})
            until(lambda: open_run(run_path).journal.statuses)
            seen = psutil.Process(process.pid)
            assert seen.cmdline()[1:] == ["-m", "watchglass.evaluate"]
            assert not any("geheim" in value for value in seen.environ().values())
            builder.leave()
        finally:
            process.end()
