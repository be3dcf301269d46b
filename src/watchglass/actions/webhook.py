"""Webhook: events as signed CloudEvents over HTTP."""

from __future__ import annotations

import base64
import binascii
import email.utils
import hashlib
import hmac
import http.client
import ssl
import time
import urllib.error
import urllib.request
from datetime import datetime, timezone
from typing import Any
from urllib.parse import quote, urlsplit

from watchglass.actions.action import Action
from watchglass.actions.variables import has_variable
from watchglass.config import parameter, scheme_of
from watchglass.errors import DeliverLater, InvalidValueError, UndeliverableError, importing
from watchglass.records import Event

_SECRET_PREFIX = "whsec_"
#: Statuses after which the same request may succeed later.
_LATER = {408, 425, 429}


class Webhook(Action):
    """Posts each event to a web service, as a signed CloudEvent.

    The event is CloudEvents 1.0 in JSON, of type ``watchglass.finding.v1``, ``watchglass.status.v1`` or
    ``watchglass.summary.v1``. An event that is delivered twice has the same id, so a receiver can recognise it. With a
    secret, each request is signed according to Standard Webhooks. A response 2xx is success. After 408, 425, 429, 5xx
    or no response, the request is retried, after the time in ``Retry-After`` if given. All other responses are final,
    including redirects. Needs the extra ``actions``.

    Example: Webhook:url=https://example.org/hook,secret=$HOOK_SECRET
    """

    takes_summaries = True

    url: str = parameter("", help="address: https://... or http://..., or $NAME")
    secret: str = parameter("", help="key of the signature, as $NAME; no signature if not given")
    mode: str = parameter("structured", help="the whole event in the body, or its attributes in headers",
                          choices=("structured", "binary"))  # fmt: skip
    headers: tuple[str, ...] = parameter((), help="further headers, 'Authorization: Bearer ${TOKEN}'", split=False)
    dead_letter: str = parameter("", help="local file that gets a line for each event that could not be delivered")
    timeout_s: float = parameter(10.0, help="time limit of one attempt", unit="seconds", gt=0, le=3600)
    retries: int = parameter(5, help="number of retries of a failed delivery", ge=0, le=100)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.url:
            raise InvalidValueError('Webhook needs url, as in url=https://example.org/hook or url="$NAME"')
        if not has_variable(self.url):
            _check_url(self.url)
        for header in self.headers:
            name, colon, value = header.partition(":")
            if (
                not colon
                or not name.replace("-", "").isalnum()
                or not name.isascii()
                or not (value.isascii() and value.isprintable())
            ):
                raise InvalidValueError("Webhook: headers must each read 'Name: value', in one line and in ASCII")
        if self.secret and not has_variable(self.secret):
            _key(self.secret)
        if has_variable(self.dead_letter):  # the evaluator writes this file, and it reads no variables
            raise InvalidValueError(
                f"Webhook: dead_letter must be a path, but got {self.dead_letter}; give the path itself"
            )

    def check(self) -> None:
        """Refuse a missing extra."""
        _cloudevents()

    def act(self, event: Event) -> None:
        """Post it."""
        headers, body = self._message(event)
        for header in self.headers:
            name, _, value = header.partition(":")
            headers[name.strip()] = value.strip()
        headers["User-Agent"] = "watchglass"
        if self.secret:
            headers |= signature(self.secret, event.id, int(time.time()), body)
        _post(self.url, headers, body, self.timeout_s)

    def _message(self, event: Event) -> tuple[dict[str, str], bytes]:
        cloud_event, bindings, json_format = _cloudevents()
        body = cloud_event(
            {
                "id": event.id,
                "source": _source(event.run),
                "type": f"watchglass.{event.kind}.v1",
                "specversion": "1.0",
                "time": datetime.fromtimestamp(event.time_ns / 1e9, timezone.utc),
                "datacontenttype": "application/json",
                **({"subject": event.rule} if event.rule else {}),
            },
            event.to_json(),
        )
        make = bindings.to_structured if self.mode == "structured" else bindings.to_binary
        message = make(body, json_format())
        return dict(message.headers), message.body


def signature(secret: str, event_id: str, timestamp_s: int, body: bytes) -> dict[str, str]:
    """The headers of a signed request, as Standard Webhooks 1.0 describes them.

    Args:
        secret: Any text, or ``whsec_`` and the key in base64.
        event_id: The header ``webhook-id``.
        timestamp_s: Seconds since 1970; receivers refuse old ones.
        body: The body of the request.
    """
    signed = f"{event_id}.{timestamp_s}.".encode() + body
    digest = hmac.new(_key(secret), signed, hashlib.sha256).digest()
    return {
        "webhook-id": event_id,
        "webhook-timestamp": str(timestamp_s),
        "webhook-signature": "v1," + base64.b64encode(digest).decode(),
    }


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Redirects are errors: events and signature are only for the given address."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


def _post(url: str, headers: dict[str, str], body: bytes, timeout_s: float) -> None:
    request = urllib.request.Request(url, data=body, headers=headers, method="POST")
    context = ssl.create_default_context()
    opener = urllib.request.build_opener(_NoRedirects, urllib.request.HTTPSHandler(context=context))
    try:
        with opener.open(request, timeout=timeout_s):
            return
    except urllib.error.HTTPError as error:
        with error:
            status, after_s = error.code, _after_s(error.headers.get("Retry-After"))
        said = f"answered with {status} {http.client.responses.get(status, '')}".rstrip()
        if 300 <= status < 400:
            raise UndeliverableError(f"{said}; give the final address, because redirects are not followed") from None
        if status in _LATER or status >= 500:
            raise DeliverLater(said, after_s) from None
        raise UndeliverableError(said) from None
    except urllib.error.URLError as error:
        reason = error.reason
        if isinstance(reason, ssl.SSLCertVerificationError):
            raise UndeliverableError(f"its certificate is not trusted: {reason.verify_message}") from None
        words = getattr(reason, "strerror", None) or reason
        raise DeliverLater(f"cannot be reached: {words}") from None
    except (OSError, http.client.HTTPException) as error:
        raise DeliverLater(f"the connection broke: {type(error).__name__}: {error}") from None


def _after_s(value: str | None) -> float | None:
    """Seconds that a ``Retry-After`` asks for, given in seconds or as a date; None for none."""
    text = (value or "").strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return None


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        host = parts.hostname
        _ = parts.port
    except ValueError:
        raise InvalidValueError("Webhook: url is not an address; it must look like https://example.org/hook") from None
    if parts.scheme not in ("http", "https") or not host:
        # The message does not quote the url: it may hold a secret.
        got = f"begins with {parts.scheme}://" if "://" in url else "has no ://"
        raise InvalidValueError(f"Webhook: url must begin with https:// or http:// and name a host, but it {got}")
    if parts.username is not None:
        raise InvalidValueError(
            "Webhook: url must not hold a name or password; use headers, as in 'Authorization: Basic ${CREDENTIALS}'"
        )
    if any(ord(letter) <= 32 or ord(letter) == 127 for letter in url):
        raise InvalidValueError("Webhook: url must be one word without spaces")
    if not f"{parts.path}{parts.query}".isascii():
        raise InvalidValueError("Webhook: url must be percent-encoded after its host, as %C3%A4 for \u00e4")


def _key(secret: str) -> bytes:
    if not secret.startswith(_SECRET_PREFIX):
        return secret.encode()
    try:
        key = base64.b64decode(secret[len(_SECRET_PREFIX) :], validate=True)
    except binascii.Error:
        key = b""
    if not key:
        raise InvalidValueError("Webhook: a secret that begins with whsec_ must continue in base64")
    return key


def _source(run: str) -> str:
    """A run as the URI that a CloudEvent comes from."""
    return run if scheme_of(run) else ("file://" if run.startswith("/") else "") + quote(run)


def _cloudevents() -> tuple[Any, Any, Any]:
    with importing("Webhook needs cloudevents", "actions"):
        from cloudevents.core.bindings import http as bindings
        from cloudevents.core.formats.json import JSONFormat
        from cloudevents.core.v1.event import CloudEvent
    return CloudEvent, bindings, JSONFormat
