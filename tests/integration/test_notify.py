"""Notify: an email that a real server receives, and servers that refuse it."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest

from evaluators.receivers import mail_server
from waiting import until
from watchglass.actions import Courier, DeliveryOutcome, checked_actions, parse_action
from watchglass.config import ActionSpec
from watchglass.errors import InvalidValueError
from watchglass.testing import delivered, example_event


def send(
    *urls: str, kind: str = "finding", environ: dict[str, str] | None = None, **parameters: Any
) -> DeliveryOutcome:
    spec = ActionSpec("Notify", {"urls": list(urls), "on": "finding,status", **parameters})
    return delivered(spec, example_event(kind), environ={**os.environ, **(environ or {})})


def test_an_email_says_what_where_when_and_what_to_try() -> None:
    with mail_server() as server:
        outcome = send(server.url)
        assert outcome.done, outcome.reason
    (message,) = server.messages
    assert message["Subject"] == "[watchglass] error: ExplodingTensor at step 7"
    assert "people@example.org" in message["To"]
    text = message.get_content().replace("\r\n", "\n")
    assert "the loss became NaN at step 7" in text
    assert "rule    ExplodingTensor" in text
    assert "step    7 (TRAIN, worker_0)" in text
    assert "run     /runs/mine" in text
    assert "What to try:\n- Lower the learning rate, to 0.05 for a start\n- Clip the gradient norm" in text


def test_a_change_of_status_and_a_summary_have_words_of_their_own() -> None:
    with mail_server() as server:
        assert send(server.url, kind="status").done
        assert send(server.url, kind="summary").done
    status, summary = server.messages
    assert status["Subject"] == "[watchglass] ExplodingTensor is IssuesFound"
    assert "before: InProgress" in status.get_content()
    assert "37 more events" in summary.get_content()


def test_title_and_body_are_templates() -> None:
    with mail_server() as server:
        assert send(server.url, title="{rule}/{severity}", body="see {run} {{run}}").done
    (message,) = server.messages
    assert message["Subject"] == "ExplodingTensor/error"
    assert message.get_content().startswith("see /runs/mine {run}")


def test_the_right_password_comes_from_a_variable() -> None:
    with mail_server(password="geheim-1234") as server:
        assert send(server.url_of("me", "${MAIL_PASSWORD}"), environ={"MAIL_PASSWORD": "geheim-1234"}).done
        refused = send(server.url_of("me", "${MAIL_PASSWORD}"), environ={"MAIL_PASSWORD": "falsch-1234"})
    assert len(server.messages) == 1
    assert "535" in refused.reason
    assert not refused.again
    assert "falsch" not in refused.reason


def test_a_server_that_refuses_is_reported_in_its_words() -> None:
    with mail_server(refuse="550 5.1.1 no such mailbox") as server:
        outcome = send(server.url)
    assert (outcome.done, outcome.again) == (False, False)
    assert "550" in outcome.reason
    assert "no such mailbox" in outcome.reason


def test_no_server_is_tried_again() -> None:
    outcome = send("mailto://127.0.0.1:9?from=a@example.org&to=b@example.org&mode=insecure")
    assert (outcome.done, outcome.again) == (False, True)
    assert "Connection refused" in outcome.reason


def test_of_several_addresses_each_is_tried_and_the_one_that_failed_is_named() -> None:
    with mail_server() as server:
        outcome = send("mailto://127.0.0.1:9?from=a@example.org&to=b@example.org&mode=insecure", server.url)
    assert len(server.messages) == 1
    assert outcome.reason.startswith("ConnectionError: address 1 of urls")
    assert outcome.arrived == (2,)


def test_the_next_try_goes_to_those_alone_that_the_first_has_not_reached() -> None:
    spec = ActionSpec("Notify", {"urls": ["$ADDRESSES"]})
    with mail_server(refuse="450 4.2.1 come again") as refusing, mail_server() as server, mail_server() as third:
        environ = {**os.environ, "ADDRESSES": f"{server.url}, {refusing.url}, {third.url}"}
        first = delivered(spec, example_event(), environ=environ)
        assert (first.done, first.again, first.arrived) == (False, True, (1, 3))
        courier = Courier(spec, example_event(), 30.0, environ, arrived=first.arrived)
        second = until(courier.poll)
    assert isinstance(second, DeliveryOutcome)
    assert (second.done, second.arrived) == (False, (1, 3))
    assert (len(server.messages), len(third.messages)) == (1, 1)


def test_an_address_that_is_none_does_not_keep_others_from_theirs() -> None:
    with mail_server() as server:
        outcome = send("$ADDRESS", server.url, environ={"ADDRESS": "geheim"})
    assert len(server.messages) == 1
    assert (outcome.again, outcome.reason) == (False, "address 1 of urls is unknown to apprise or unreadable")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Notify", "Notify needs urls"),
        ("Notify:urls=slak://a/b/c", "address 1 of urls, of slak://, is unknown to apprise"),
        ("Notify:urls=geheim", "address 1 of urls is unknown to apprise"),
        ("Notify:urls=json://localhost,title={rul}", 'has no placeholder {rul} .did you mean "rule"'),
    ],
)
def test_what_cannot_be_is_refused_before_a_training_run(text: str, message: str) -> None:
    with pytest.raises(InvalidValueError, match=message) as refused:
        checked_actions([parse_action(text)], [])
    assert "geheim" not in str(refused.value)


@pytest.mark.parametrize(
    ("address", "secrets"),
    [
        ("json://me:geheim-1@127.0.0.1:9/token-2/x", ("geheim-1", "token-2")),
        ("json://127.0.0.1:9/services/T1JJ3T3L2/A1BRTD4JD?+X-Key=token-3", ("T1JJ3T3L2", "A1BRTD4JD", "token-3")),
        ("ntfy://127.0.0.1:9/geheim%20topic", ("geheim",)),
    ],
)
@pytest.mark.parametrize("in_variable", [True, False])
def test_an_unreachable_service_reveals_no_part_of_its_address(
    address: str, secrets: tuple[str, ...], in_variable: bool
) -> None:
    outcome = send("$ADDRESS" if in_variable else address, environ={"ADDRESS": address})
    assert "127.0.0.1" in outcome.reason  # which server is no secret
    assert "Connection refused" in outcome.reason
    for secret in secrets:
        assert secret not in outcome.reason


def test_a_tensor_of_many_lines_makes_no_header_of_its_own() -> None:
    name = "a\r\nBcc: evil@example.org\r\n\r\n\N{FIRE}"
    event = example_event()
    assert event.finding is not None
    event = replace(event, finding=replace(event.finding, tensors=(name,)))
    with mail_server() as server:
        outcome = delivered(ActionSpec("Notify", {"urls": server.url, "title": "{tensor} \N{FIRE}"}), event)
        assert outcome.done, outcome.reason
    (message,) = server.messages
    assert message["Bcc"] is None
    assert message["Subject"].endswith("\N{FIRE} \N{FIRE}")
    assert "the loss became NaN" in message.get_content()
