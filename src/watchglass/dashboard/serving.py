"""The web server: where it listens, the link that it prints, its end by a signal."""

from __future__ import annotations

import ctypes
import secrets
import socket
import sys
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType

import uvicorn

from watchglass.dashboard.application import application
from watchglass.dashboard.listing import Listing
from watchglass.errors import InvalidValueError
from watchglass.tables import limit_decoded

#: M_ARENA_MAX of GNU's mallopt, see mallopt(3).
_ARENAS = -8
#: Most bytes of decoded statistics that are kept: pages keep what they show themselves.
_DECODED_BYTES = 32_000_000


@dataclass(frozen=True)
class Address:
    """Where a dashboard is served.

    Attributes:
        host: The address that it listens on.
        port: The port; 0 for a free one.
        hosts: Names by which browsers may call it, in addition to this machine's names for itself.
        root: Its path behind a proxy, ``"/proxy/8420"``; "" for none.
    """

    host: str = "127.0.0.1"
    port: int = 0
    hosts: Collection[str] = ()
    root: str = ""


class _Server(uvicorn.Server):
    """A server that tells its application when it ends: streams of events would go on."""

    def __init__(self, config: uvicorn.Config, stopping: threading.Event) -> None:
        super().__init__(config)
        self._stopping = stopping

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._stopping.set()
        super().handle_exit(sig, frame)


def serve(location: str, address: Address, ready: Callable[[str], None], *, read_only: bool = False) -> None:
    """Serve the runs of a location until a signal ends it, which then has its usual effect.

    Args:
        location: A run, or a folder or prefix of runs.
        address: Where to serve.
        ready: Is called with the link, which has the token, when the server accepts connections.
        read_only: Whether nothing may be asked of jobs.

    Raises:
        MissingFileError: There is no run.
        InvalidValueError: The port is in use, or the host is none of this machine.
    """
    listing = Listing(location)
    # A thread that draws would keep the others, which answer, waiting ten times as long.
    sys.setswitchinterval(0.0005)
    limit_decoded(_DECODED_BYTES)
    _share_memory()
    with _listening(address) as listener:
        port = listener.getsockname()[1]
        token = secrets.token_urlsafe(24)
        named = f"[{address.host}]" if ":" in address.host else address.host
        hosts = (*address.hosts, named.lower())
        served = application(
            listing,
            token=token,
            cookie=f"watchglass-{port}",
            hosts=hosts,
            root=address.root,
            read_only=read_only,
        )
        threading.Thread(target=listing.follow, daemon=True).start()
        shown = next(iter(address.hosts), named)
        page = "latest" if len(listing.rows) == 1 else ""
        ready(f"http://{shown}:{port}{address.root}/{page}?token={token}")
        config = uvicorn.Config(
            served, access_log=False, log_level="warning", lifespan="off", server_header=False,
            timeout_graceful_shutdown=1, h11_max_incomplete_event_size=1 << 16,
        )  # fmt: skip
        _Server(config, listing.stopping).run(sockets=[listener])


def _share_memory() -> None:
    """Let threads share what they have freed: else each keeps some of it, and many threads answer requests."""
    with suppress(OSError, AttributeError):  # another C library than GNU's
        ctypes.CDLL(None).mallopt(_ARENAS, 2)


def _listening(address: Address) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        socket.getaddrinfo(address.host, None)  # else an unknown name reads like a port in use
        return socket.create_server((address.host, address.port), family=family)
    except socket.gaierror as error:
        raise InvalidValueError(
            f"--host must be a name or an address of this machine but got {address.host!r:.100}: {error.strerror}"
        ) from None
    except OSError as error:
        raise InvalidValueError(
            f"cannot listen on port {address.port} of {address.host}: {error.strerror or error}; choose another one by "
            "--port, or --port 0 for a free one"
        ) from None
