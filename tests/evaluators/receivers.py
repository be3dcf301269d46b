"""Real servers on loopback that events are delivered to: over HTTP, and by email."""

from __future__ import annotations

import base64
import hashlib
import hmac
import socket
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import EmailMessage
from email.parser import BytesParser
from email.policy import default
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, Session


@dataclass
class Request:
    path: str
    headers: dict[str, str]
    body: bytes

    def verified(self, secret: bytes) -> bool:
        """Whether the signature is right, by the standard library alone."""
        headers = self.headers
        signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + self.body
        expected = "v1," + base64.b64encode(hmac.new(secret, signed, hashlib.sha256).digest()).decode()
        fresh = abs(time.time() - int(headers["webhook-timestamp"])) < 300
        return fresh and hmac.compare_digest(expected, headers["webhook-signature"])


@dataclass
class Receiver:
    """An HTTP server that answers with the given statuses in order, and repeats the last one."""

    url: str = ""
    answers: list[tuple[int, dict[str, str]]] = field(default_factory=lambda: [(204, {})])
    requests: list[Request] = field(default_factory=list)
    #: Set to make every request wait until it is set.
    gate: threading.Event | None = None


@contextmanager
def receiver(*answers: int | tuple[int, dict[str, str]]) -> Iterator[Receiver]:
    served = Receiver(answers=[answer if isinstance(answer, tuple) else (answer, {}) for answer in answers or (204,)])

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            served.requests.append(Request(self.path, headers, self.rfile.read(length)))
            if served.gate is not None:
                served.gate.wait(30)
            status, further = served.answers.pop(0) if len(served.answers) > 1 else served.answers[0]
            try:
                self.send_response(status)
                for name, value in further.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", "0")
                self.end_headers()
            except OSError:
                return  # the client has ended meanwhile

        do_GET = do_POST  # noqa: N815  the name that the server calls

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    served.url = f"http://127.0.0.1:{server.server_address[1]}/hook"
    try:
        yield served
    finally:
        if served.gate is not None:
            served.gate.set()
        server.shutdown()
        thread.join()
        server.server_close()


class _Mail:
    def __init__(self, refuse: str) -> None:
        self.refuse = refuse
        self.messages: list[EmailMessage] = []

    async def handle_RCPT(  # noqa: N802  a name of aiosmtpd
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        if self.refuse:
            return self.refuse
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:  # noqa: N802
        content = envelope.content if isinstance(envelope.content, bytes) else b""
        parsed = BytesParser(policy=default).parsebytes(content)
        assert isinstance(parsed, EmailMessage)
        self.messages.append(parsed)
        return "250 OK"


@dataclass
class MailServer:
    port: int
    messages: list[EmailMessage]

    @property
    def url(self) -> str:
        return f"mailto://127.0.0.1:{self.port}?from=watch@example.org&to=people@example.org&mode=insecure"

    def url_of(self, user: str, password: str) -> str:
        return self.url.replace("mailto://", f"mailto://{user}:{password}@")


@contextmanager
def mail_server(*, refuse: str = "", password: str = "") -> Iterator[MailServer]:
    """An SMTP server; ``refuse`` is what it answers to every recipient, ``password`` the only one it takes."""
    handler = _Mail(refuse)

    def check(server: SMTP, session: Session, envelope: Envelope, mechanism: str, data: object) -> AuthResult:
        return AuthResult(success=getattr(data, "password", b"") == password.encode(), handled=False)

    options: dict[str, object] = {}
    if password:
        options = {"authenticator": check, "auth_required": True, "auth_require_tls": False}
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]  # the controller wants to know its port before it begins
    controller = Controller(handler, hostname="127.0.0.1", port=port, **options)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Requiring AUTH while not requiring TLS")
            controller.start()
            yield MailServer(port, handler.messages)
    finally:
        controller.stop()
