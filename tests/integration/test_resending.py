"""Dead letters sent again: with the same identifiers, in their order, and never by two at once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from evaluators.receivers import Receiver, receiver
from watchglass.cli import main
from watchglass.config import ActionSpec, EvaluatorConfig, RuleSpec
from watchglass.errors import InvalidValueError, RunExistsError
from watchglass.evaluate import Resent, resend
from watchglass.evaluate.live.evaluator import Evaluator
from watchglass.records import Observation
from watchglass.run import open_run
from watchglass.store import JournalWriter, LocalStore, layout
from watchglass.testing import RunBuilder, build_run, example_event


@pytest.fixture
def server() -> Iterator[Receiver]:
    with receiver() as listening:
        yield listening


@pytest.fixture
def run(run_path: Path) -> Path:
    build_run(run_path)
    return run_path


def hook(server: Receiver, **parameters: Any) -> ActionSpec:
    return ActionSpec("Webhook", {"url": server.url, **parameters})


def letter(run: Path, number: int, by: str = "Webhook", **changed: Any) -> str:
    """Writes a dead letter as an evaluator does; returns the identifier of its event."""
    event = {**example_event().to_json(), "id": f"{number:016x}", "time_ns": 1_000 - number}
    document = {"action": by, "event": event, "tries": 4, "reason": "answered with 503", "time_ns": 1, **changed}
    path = layout.dead_letter(by, f"{number:016x}")
    LocalStore(run).write(path, json.dumps(document).encode())
    return f"{number:016x}"


def letters(run: Path) -> list[dict[str, Any]]:
    store = LocalStore(run)
    return [json.loads(store.read(entry.path)) for entry in store.list(layout.DEAD_LETTERS)]


def outcomes(run: Path) -> list[tuple[str, str, int]]:
    seen = [seen for seen in open_run(run).journal.observations if seen.kind.startswith("action_")]
    return [(each.kind, each.data["event"], each.data.get("tries", 0)) for each in seen]


def sent(run: Path, *actions: ActionSpec) -> list[Resent]:
    return resend(LocalStore(run), actions, print)


def test_what_could_not_be_delivered_arrives_with_the_identifier_it_had(run_path: Path, server: Receiver) -> None:
    server.answers = [(400, {})]
    config = EvaluatorConfig(str(run_path), 0, (RuleSpec("ExplodingTensor"),), actions=(hook(server),), quiet=True)
    with RunBuilder(run_path) as builder:
        evaluator = Evaluator(config)
        evaluator.open(lambda _: False, patience_s=0.0)
        builder.step(scalars={"loss": float("nan")})
        builder.leave("failed")
        evaluator.finish()
    assert len(letters(run_path)) == 1
    server.answers = [(204, {})]
    assert sent(run_path, hook(server)) == [Resent("Webhook", arrived=1)]
    first, second = (json.loads(request.body) for request in server.requests)
    assert first == second
    assert letters(run_path) == []
    assert outcomes(run_path) == [
        ("action_due", first["id"], 0), ("action_failed", first["id"], 1), ("action_done", first["id"], 2),
    ]  # fmt: skip
    assert sent(run_path, hook(server)) == []
    evaluator = Evaluator(config)
    evaluator.open(lambda _: False, patience_s=0.0)
    evaluator.finish()
    assert len(server.requests) == 2, "the next evaluator does not deliver it again"


def test_they_are_sent_in_the_order_of_their_events(run: Path, server: Receiver) -> None:
    one, two, three = (letter(run, number) for number in (1, 2, 3))
    assert sent(run, hook(server)) == [Resent("Webhook", arrived=3)]
    assert [json.loads(request.body)["id"] for request in server.requests] == [three, two, one]


def test_one_that_cannot_be_delivered_now_keeps_those_behind_it_for_later(run: Path, server: Receiver) -> None:
    letter(run, 1), letter(run, 2)
    server.answers = [(503, {})]
    (became,) = sent(run, hook(server))
    assert (became.arrived, became.left) == (0, 2)
    assert became.reason.startswith("answered with 503")
    assert len(server.requests) == 1
    assert [each["tries"] for each in letters(run)] == [4, 5]
    assert outcomes(run) == [("action_failed", f"{2:016x}", 5)]


def test_one_that_never_will_be_keeps_no_other_from_arriving(run: Path, server: Receiver) -> None:
    letter(run, 1), letter(run, 2)
    server.answers = [(400, {}), (204, {})]
    (became,) = sent(run, hook(server))
    assert (became.arrived, became.left) == (1, 1)
    assert [each["event"]["id"] for each in letters(run)] == [f"{2:016x}"]


def test_each_goes_to_the_action_that_it_was_for(run: Path, server: Receiver) -> None:
    letter(run, 1), letter(run, 2, "Webhook-2"), letter(run, 3, "Notify")
    with receiver() as second:
        became = sent(run, ActionSpec("StopTraining"), hook(server), hook(second))
    assert [len(each.requests) for each in (server, second)] == [1, 1]
    assert json.loads(second.requests[0].body)["id"] == f"{2:016x}"
    assert became == [Resent("Notify", left=1, named=False), Resent("Webhook", 1), Resent("Webhook-2", 1)]
    assert [each["action"] for each in letters(run)] == ["Notify"]


def test_one_that_was_delivered_and_not_yet_removed_is_not_sent_once_more(run: Path, server: Receiver) -> None:
    event_id = letter(run, 1)
    with JournalWriter(LocalStore(run)) as journal:
        journal.write([Observation("action_done", 0, None, {"action": "Webhook", "event": event_id})])
    assert sent(run, hook(server)) == [Resent("Webhook", arrived=1)]
    assert letters(run) == []
    assert server.requests == []


@pytest.mark.parametrize(
    "changed",
    [
        {"event": {**example_event().to_json(), "id": "../../outside"}},
        {"event": {"id": f"{1:016x}"}},
        {"event": None},
        {"action": "Command"},
        {"tries": []},
    ],
)
def test_what_is_no_letter_of_ours_stays_as_it_is(
    run: Path, server: Receiver, changed: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    letter(run, 1, **changed)
    before = letters(run)
    assert sent(run, hook(server)) == []
    assert letters(run) == before
    assert server.requests == []
    assert "is not a valid dead letter" in capsys.readouterr().out


def test_an_evaluator_at_work_may_be_sending_itself(run: Path, server: Receiver) -> None:
    letter(run, 1)
    with JournalWriter(LocalStore(run)), pytest.raises(RunExistsError, match="is held by process"):
        sent(run, hook(server))
    assert server.requests == []
    assert sent(run, hook(server)) == [Resent("Webhook", arrived=1)]


def test_it_needs_an_action_that_delivers(run: Path) -> None:
    letter(run, 1)
    with pytest.raises(InvalidValueError, match="StopTraining delivers nothing; give --action, as for run"):
        sent(run, ActionSpec("StopTraining"))
    with pytest.raises(InvalidValueError, match="no action is named; give --action, as for run"):
        sent(run)


def test_the_verb_takes_actions_from_the_file_and_from_its_options(
    run: Path, server: Receiver, in_tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    letter(run, 1), letter(run, 2, "Webhook-2")
    (in_tmp_path / "watchglass.toml").write_text(f'[[actions]]\nname = "Webhook"\nurl = "{server.url}"\n')
    assert main(["actions", str(run), "--resend"]) == 2
    assert capsys.readouterr().out == (
        "Webhook: 1 arrived\nWebhook-2: 0 arrived, 1 left (no such action was named; give it with --action)\n"
    )
    assert main(["actions", str(run), "--resend", "--action", f"Webhook:url={server.url}"]) == 0
    assert capsys.readouterr().out == "Webhook-2: 1 arrived\n"
    assert main(["actions", str(run), "--resend"]) == 0
    assert capsys.readouterr().out == f"{run} has no dead letters to send\n"
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--resend"], "--resend needs the run"),
        (
            ["Webhook", "--action", "Webhook:url=https://example.org"],
            "--action needs --resend",
        ),
        (["nowhere", "--resend", "--action", "Webhook:url=https://example.org"], "nowhere does not exist"),
        (["nowhere", "--resend", "--action", "Webhok"], 'did you mean "Webhook"'),
    ],
)
def test_mistakes_are_one_line(
    words: list[str], message: str, in_tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["actions", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
