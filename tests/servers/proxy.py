"""Stands between a client and an S3 server, counts what is asked, and can be cut, slowed down or made to refuse."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

_CHUNK = 16 * 1024


@dataclass(frozen=True)
class Request:
    """What a client asked for.

    Attributes:
        method: GET, PUT, HEAD, POST or DELETE.
        target: Path and query, as sent.
        length: Bytes of its body.
        headers: By their names in lower case.
    """

    method: str
    target: str
    length: int
    headers: dict[str, str] = field(repr=False)


@dataclass
class Faults:
    """What goes wrong with requests, and what they were; used by the proxy's thread and by the test.

    Attributes:
        requests: All requests so far.
        delay_s: Every answer comes this much later.
        bytes_per_s: Most bytes a second of a connection; 0 for no limit.
        silent: No request is answered.
        lost: Methods of the next requests whose answers are lost.
        refusing: Status and code for all requests, or None.
        refusals: Method, status and code of single refusals; method "" for any.
    """

    requests: list[Request] = field(default_factory=list)
    delay_s: float = 0.0
    bytes_per_s: float = 0.0
    silent: bool = False
    lost: list[str] = field(default_factory=list)
    refusing: tuple[int, str] | None = None
    refusals: list[tuple[str, int, str]] = field(default_factory=list)

    def judge(self, request: Request) -> tuple[int, str] | None:
        """Note a request; status and code to refuse it with, None to pass it on."""
        self.requests.append(request)
        for refusal in self.refusals:
            if refusal[0] in ("", request.method):
                self.refusals.remove(refusal)
                return refusal[1:]
        return self.refusing

    def loses(self, request: Request) -> bool:
        """Whether the answer to a request is lost."""
        if request.method in self.lost:
            self.lost.remove(request.method)
            return True
        return False


class Proxy:
    """One listening port on loopback, served by one thread until :meth:`close`.

    All methods may be called from any thread and hold for requests that come later, :meth:`cut` also for open
    connections.

    Args:
        upstream: Address of the server, ``http://host:port``.
    """

    def __init__(self, upstream: str) -> None:
        parts = urlsplit(upstream)
        self._upstream = (parts.hostname or "", parts.port or 80)
        self._faults = Faults()
        self._connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="s3-proxy", daemon=True)
        self._thread.start()
        self.port = 0
        self.restore()

    @property
    def url(self) -> str:
        """What clients use as their endpoint."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def requests(self) -> list[Request]:
        """All requests so far, those that were refused or lost included."""
        return list(self._faults.requests)

    def forget(self) -> None:
        """Count requests from zero."""
        self._faults.requests.clear()

    def cut(self) -> None:
        """The server is unreachable: connections break, new ones are refused."""
        self._call(self._close_server)

    def silence(self) -> None:
        """The server accepts connections and requests, and never answers."""
        self._faults.silent = True

    def restore(self) -> None:
        """Everything works again, without delay or limit."""
        self._faults.delay_s = self._faults.bytes_per_s = 0.0
        self._faults.refusing, self._faults.silent = None, False
        self._faults.lost.clear()
        self._faults.refusals.clear()
        self._call(self._open_server)

    def delay(self, seconds: float) -> None:
        """Every answer comes this much later."""
        self._faults.delay_s = seconds

    def limit(self, bytes_per_s: float) -> None:
        """Every connection carries so many bytes a second at most, in each direction; 0 lifts it."""
        self._faults.bytes_per_s = bytes_per_s

    def lose_answers(self, count: int = 1, method: str = "PUT") -> None:
        """The server does what the next ``count`` requests ask, and the connection breaks before it can say so."""
        self._faults.lost.extend([method] * count)

    def refuse(self, status: int, code: str, *, count: int | None = None, method: str = "") -> None:
        """Answer requests with an S3 error, without asking the server.

        Args:
            status: Of HTTP: 403, 503 ...
            code: Of S3: "AccessDenied", "SlowDown" ...
            count: How many; None for all until :meth:`restore`.
            method: Only of this method; "" for any. Needs ``count``.
        """
        if count is None:
            self._faults.refusing = (status, code)
        else:
            self._faults.refusals.extend([(method, status, code)] * count)

    def close(self) -> None:
        """End the thread and everything open; the proxy cannot be used afterwards."""
        self._call(self._close_server)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _call(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        asyncio.run_coroutine_threadsafe(work(), self._loop).result(30)

    async def _open_server(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port, limit=1 << 20)
            self.port = self._server.sockets[0].getsockname()[1]

    async def _close_server(self) -> None:
        if self._server is not None:
            # What was just accepted becomes a task within a few rounds of the loop. Were the server closed before that,
            # asyncio would forget the connection and leave its socket open.
            for listening in self._server.sockets:
                self._loop.remove_reader(listening.fileno())
            for _ in range(10):
                await asyncio.sleep(0)
            self._server.close()
            self._server = None
        connections = list(self._connections)
        for connection in connections:
            connection.cancel()
        await asyncio.gather(*connections, return_exceptions=True)
        for _ in range(2):  # a task that is over aborts its transport, which closes in the next round
            await asyncio.sleep(0)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._connections.add(task)

        def over(_: asyncio.Task[None]) -> None:  # also of a task that is cancelled before it begins
            self._connections.discard(task)
            writer.transport.abort()

        task.add_done_callback(over)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            await _Connection(self._upstream, self._faults, reader, writer).serve()


class _Connection:
    """One client's connection: its requests one after another, answers as they come."""

    def __init__(
        self, upstream: tuple[str, int], faults: Faults, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._upstream, self._faults, self._reader, self._writer = upstream, faults, reader, writer
        self._losing = self._fresh = False

    async def serve(self) -> None:
        upstream_reader, upstream_writer = await asyncio.open_connection(*self._upstream)
        answers = asyncio.ensure_future(self._answers(upstream_reader))
        requests = asyncio.ensure_future(self._requests(upstream_writer))
        try:
            await asyncio.wait((answers, requests), return_when=asyncio.FIRST_COMPLETED)
        finally:
            # Before the wait, which another cancellation may end.
            upstream_writer.transport.abort()
            for task in (answers, requests):
                task.cancel()
            await asyncio.gather(answers, requests, return_exceptions=True)

    async def _requests(self, upstream: asyncio.StreamWriter) -> None:
        while True:
            head = await self._reader.readuntil(b"\r\n\r\n")
            request = _parsed(head)
            refusal = self._faults.judge(request)
            self._losing, self._fresh = self._faults.loses(request), True
            passed_on = upstream if refusal is None and not self._faults.silent else None
            if passed_on:
                passed_on.write(head)
            await self._body(request.length, passed_on)
            if refusal is not None:
                await self._refuse(request, *refusal)
                return
            if passed_on is None:
                while self._faults.silent:
                    await asyncio.sleep(0.02)
                return

    async def _refuse(self, request: Request, status: int, code: str) -> None:
        body = b"" if request.method == "HEAD" else f"<Error><Code>{code}</Code></Error>".encode()
        head = f"HTTP/1.1 {status} {code}\r\nContent-Type: application/xml\r\nConnection: close\r\n"
        self._writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        with suppress(OSError):
            await self._writer.drain()
            self._writer.close()
            await self._writer.wait_closed()

    async def _body(self, left: int, upstream: asyncio.StreamWriter | None) -> None:
        while left:
            data = await self._reader.read(min(left, _CHUNK))
            if not data:
                raise asyncio.IncompleteReadError(b"", left)
            left -= len(data)
            await self._at_the_limit(len(data))
            if upstream is not None:
                upstream.write(data)
                await upstream.drain()

    async def _answers(self, upstream: asyncio.StreamReader) -> None:
        while data := await upstream.read(_CHUNK):
            if self._losing:
                return
            if self._fresh and self._faults.delay_s:
                await asyncio.sleep(self._faults.delay_s)
            self._fresh = False
            await self._at_the_limit(len(data))
            self._writer.write(data)
            await self._writer.drain()

    async def _at_the_limit(self, count: int) -> None:
        if self._faults.bytes_per_s:
            await asyncio.sleep(count / self._faults.bytes_per_s)


def _parsed(head: bytes) -> Request:
    first, *lines = head.decode("latin-1").rstrip().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    method, target, _ = first.split(" ", 2)
    return Request(method, target, int(headers.get("content-length", 0)), headers)
