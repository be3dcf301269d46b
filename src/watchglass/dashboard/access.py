"""Who may read the pages: checks of each request, before anything else sees it, and headers of each answer.

A page on another site can make a browser send requests to this machine, by its address or by a name that turns to it.
So each request must name a host that is ours, and have the token that only the printed link has.
"""

from __future__ import annotations

import hmac
from collections.abc import Collection
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

#: Hosts by which a browser on this machine reaches it.
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
#: The header that our script sends with each request that changes something; a form of another site cannot.
MARK = "x-watchglass"
_SAFE = ("GET", "HEAD")
#: Longest text behind the ``?`` of an address.
_LONGEST_QUERY = 4096
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Access:
    """Lets requests with the right host and token through to an application.

    Args:
        application: The application.
        token: The token of the printed link.
        cookie: Name of the cookie that holds it. Browsers share cookies between the ports of a host, so two servers
            need different ones.
        hosts: Names of this server without their ports, which tunnels change.
        root: Path of the server behind a proxy, ``"/proxy/8420"``; "" for none.
    """

    def __init__(
        self, application: ASGIApp, token: str, cookie: str, hosts: Collection[str] = LOOPBACK, root: str = ""
    ) -> None:
        self._application, self._token, self._cookie = application, token, cookie
        self._hosts, self._root = frozenset(hosts), root

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, see ASGI."""
        if scope["type"] != "http":  # neither WebSockets nor events of the server
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        if self._root and scope["path"].startswith(f"{self._root}/"):  # of a proxy that passes the path on as it is
            scope = {**scope, "path": scope["path"].removeprefix(self._root)}
        answer = self._answer(Request(scope)) or self._application
        await answer(scope, receive, with_headers)

    def _answer(self, request: Request) -> Response | None:
        """The answer to a request that is not let through; None for others."""
        host = request.headers.get("host", "")
        if _without_port(host) not in self._hosts:
            return _refused(400, "this name of the host is not served; allow it by --allow-host")
        if len(request.url.query) > _LONGEST_QUERY:
            return _refused(414, "the address is too long")
        given = request.query_params.get("token")
        if given is not None and request.method in _SAFE:
            return self._entered(request) if self._is_token(given) else _refused(403, "the token is not that of now")
        if not self._is_token(request.cookies.get(self._cookie, "")):
            return _refused(403, "open the link that watchglass dashboard printed when it started")
        if request.method not in _SAFE and not _is_ours(request, host):
            return _refused(403, "a page of another site may not change anything")
        return None

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self._token.encode())

    def _entered(self, request: Request) -> Response:
        """To the same page without the token, which then is in no history."""
        rest = urlencode([pair for pair in parse_qsl(request.url.query) if pair[0] != "token"])
        # An address that begins with two slashes is one of another host.
        path = f"{self._root}/{request.scope['path'].lstrip('/')}"
        answer = RedirectResponse(f"{path}?{rest}" if rest else path, 303)
        secure = request.url.scheme == "https"
        answer.set_cookie(
            self._cookie, self._token, path=f"{self._root}/", httponly=True, samesite="lax", secure=secure
        )
        return answer


def _without_port(host: str) -> str:
    """``"[::1]"`` of ``"[::1]:8420"``."""
    if host.startswith("["):
        return f"{host.partition(']')[0]}]"
    return host.partition(":")[0].lower()


def _is_ours(request: Request, host: str) -> bool:
    """Whether a request that changes something comes from one of our pages."""
    site = request.headers.get("sec-fetch-site")
    same = site == "same-origin" if site is not None else request.headers.get("origin", "").partition("://")[2] == host
    return same and MARK in request.headers


def _refused(status: int, sentence: str) -> Response:
    return PlainTextResponse(f"watchglass: {sentence}\n", status)
