"""Webhook: CloudEvents that a real server receives, verifies, refuses, or answers late."""

from __future__ import annotations

import base64
import json
import os
import socket
import ssl
import threading
from typing import Any

import pytest
from cloudevents.core.bindings.http import HTTPMessage, from_http_event

from evaluators.receivers import receiver
from watchglass.actions import Action, DeliveryOutcome, build_action, checked_actions, parse_action
from watchglass.actions.delivering import deliver
from watchglass.actions.webhook import signature
from watchglass.config import ActionSpec
from watchglass.errors import InvalidValueError, WatchglassError
from watchglass.testing import example_event


def post(url: str, kind: str = "finding", environ: dict[str, str] | None = None, **parameters: Any) -> DeliveryOutcome:
    spec = ActionSpec("Webhook", {"url": url, "on": "finding,status", **parameters})
    return DeliveryOutcome(**deliver(spec, example_event(kind), {**os.environ, **(environ or {})}))


@pytest.mark.parametrize("mode", ["structured", "binary"])
@pytest.mark.parametrize("kind", ["finding", "status", "summary"])
def test_a_receiver_reads_a_cloud_event(mode: str, kind: str) -> None:
    with receiver() as server:
        assert post(server.url, kind, mode=mode).done
    (request,) = server.requests
    event = from_http_event(HTTPMessage(request.headers, request.body))
    assert event.get_type() == f"watchglass.{kind}.v1"
    assert event.get_source() == "file:///runs/mine"
    assert event.get_id() == example_event(kind).id
    assert event.get_specversion() == "1.0"
    data = event.get_data()
    assert data == example_event(kind).to_json()
    if kind == "finding":
        assert event.get_subject() == "ExplodingTensor"
        assert (data["finding"]["step"], data["finding"]["value"]) == (7, "NaN")
    expected = "application/cloudevents+json" if mode == "structured" else "application/json"
    assert request.headers["content-type"].startswith(expected)
    assert json.loads(request.body)


def test_a_request_is_signed_with_what_a_variable_holds() -> None:
    with receiver() as server:
        assert post(server.url, environ={"KEY": "geheim-1234"}, secret="$KEY").done
        assert post(server.url).done
    signed, unsigned = server.requests
    assert signed.verified(b"geheim-1234")
    assert not signed.verified(b"another")
    signed.body += b" "
    assert not signed.verified(b"geheim-1234")
    assert "webhook-signature" not in unsigned.headers


def test_the_signature_is_that_of_standard_webhooks() -> None:
    """The example of its specification."""
    headers = signature(
        "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}'
    )
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_headers_carry_what_variables_hold() -> None:
    with receiver() as server:
        assert post(server.url, environ={"TOKEN": "t0k3n"}, headers=["Authorization: Bearer ${TOKEN}"]).done
    assert server.requests[0].headers["authorization"] == "Bearer t0k3n"


@pytest.mark.parametrize(("status", "again"), [(500, True), (503, True), (429, True), (408, True), (400, False),
                                               (401, False), (404, False), (410, False)])  # fmt: skip
def test_what_a_refusal_means(status: int, again: bool) -> None:
    with receiver(status) as server:
        outcome = post(server.url)
    assert (outcome.done, outcome.again) == (False, again)
    assert outcome.reason.startswith(f"answered with {status}")


@pytest.mark.parametrize(("value", "seconds"), [("17", 17.0), ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0), ("soon", None)])
def test_retry_after_is_read(value: str, seconds: float | None) -> None:
    with receiver((503, {"Retry-After": value})) as server:
        assert post(server.url).after_s == seconds


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_not_followed(status: int) -> None:
    with receiver() as elsewhere, receiver((status, {"Location": elsewhere.url})) as server:
        outcome = post(server.url)
    assert elsewhere.requests == []
    assert not outcome.again
    assert "redirects are not followed" in outcome.reason


def test_an_address_without_a_server_is_tried_again() -> None:
    outcome = post("http://127.0.0.1:9/")
    assert (outcome.again, outcome.reason) == (True, "cannot be reached: Connection refused")


def test_a_server_that_hangs_is_given_up_in_time() -> None:
    with receiver() as server:
        server.gate = threading.Event()
        outcome = post(server.url, timeout_s=1.0)
    assert not outcome.done
    assert outcome.again


def test_a_certificate_without_a_trusted_issuer_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        error = ssl.SSLCertVerificationError(1, "certificate verify failed")
        error.verify_message = "self-signed certificate"
        raise error

    monkeypatch.setattr(ssl.SSLContext, "wrap_socket", refuse)
    with socket.create_server(("127.0.0.1", 0)) as server:
        action = build_action(ActionSpec("Webhook", {"url": f"https://127.0.0.1:{server.getsockname()[1]}/"}))
        assert isinstance(action, Action)
        with pytest.raises(WatchglassError, match="self-signed"):
            action.act(example_event())


def test_a_secret_in_an_address_is_in_no_error() -> None:
    outcome = post("${BASE}/hook", environ={"BASE": "ftp://geheim-1234"})
    assert not outcome.again
    assert "geheim" not in outcome.reason


def test_an_address_that_is_none_is_not_shown_not_even_in_part() -> None:
    outcome = post("$BASE", environ={"BASE": "geheimes-wort:1234/5678"})
    assert outcome.reason == "Webhook: url must begin with https:// or http:// and name a host, but it has no ://"


def test_an_empty_variable_does_not_leave_requests_unsigned() -> None:
    with receiver() as server:
        outcome = post(server.url, secret="$HOOK_SECRET", environ={"HOOK_SECRET": ""})
    assert not outcome.done
    assert not outcome.again
    assert "the environment variable HOOK_SECRET is empty" in outcome.reason
    assert not server.requests


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Webhook", "Webhook needs url"),
        ("Webhook:url=example.org/hook", "must begin with https:// or http://"),
        ("Webhook:url=file:///etc/passwd", "must begin with https:// or http://"),
        ("Webhook:url=https://me:pass@example.org/", "must not hold a name or password"),
        ("Webhook:url=https://example.org:port/", "is not an address"),
        ("Webhook:url=https://example.org/,headers=Nothing", "must each read 'Name: value'"),
        ("Webhook:url=https://example.org/h\x7fk", "must be one word without spaces"),
        ("Webhook:url=https://example.org/?a=\N{EURO SIGN}", "must be percent-encoded after its host"),
        ("Webhook:url=https://example.org/,dead_letter=${HOME}/letters", "dead_letter must be a path"),
        ("Webhook:url=https://example.org/,secret=whsec_!!", "must continue in base64"),
        ("Webhook:url=https://example.org/,secret=whsec_", "must continue in base64"),
        ("Webhook:url=https://example.org/,headers=X-Who: \N{EURO SIGN}", "in one line and in ASCII"),
        ("Webhook:url=https://example.org/,mode=both", "mode must be one of structured, binary but got .both."),
        ("Webhook:url=https://example.org/,timeout_s=-1", "timeout_s must be > 0"),
        ("Webhook:url=https://example.org/,retries=many", "retries must be a whole number"),
    ],
)
def test_what_cannot_be_is_refused_before_a_training_run(text: str, message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        checked_actions([parse_action(text)], [])


def test_a_secret_in_base64_is_what_it_stands_for() -> None:
    secret = "whsec_" + base64.b64encode(b"geheim").decode()
    assert signature(secret, "a", 1, b"b") == signature("geheim", "a", 1, b"b")
