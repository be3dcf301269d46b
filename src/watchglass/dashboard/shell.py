"""The frame of every page: its addresses, the bar above, style and script."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlencode

from watchglass.view import escaped, page_style

#: Files that pages load.
ASSETS = ("dashboard.css", "dashboard.js", "pictures.js")
_ASSETS = Path(__file__).with_name("assets")


@dataclass(frozen=True)
class Links:
    """Addresses on the server, behind the path of a proxy.

    Attributes:
        root: That path, ``"/proxy/8420"``; "" for none.
    """

    root: str = ""

    def runs(self, **query: object) -> str:
        """The table of runs."""
        return self._with(f"{self.root}/", query)

    def run(self, identifier: str, page: str = "", **query: object) -> str:
        """A page of a run."""
        return self._with(f"{self.root}/r/{identifier}{f'/{page}' if page else ''}", query)

    def at(self, identifier: str, page: str) -> str:
        """What the pictures of a page of a run show at one place."""
        return f"{self.root}/at/{identifier}{f'/{page}' if page else ''}"

    def compare(self, runs: Sequence[str], **query: object) -> str:
        """Several runs side by side."""
        return self._with(f"{self.root}/compare", {"run": list(runs), **query})

    def at_compared(self) -> str:
        """What the pictures of several runs side by side show at one place."""
        return f"{self.root}/compare/at"

    def events(self, **query: object) -> str:
        """What changes on a page."""
        return self._with(f"{self.root}/events", query)

    def asset(self, name: str) -> str:
        """An asset, by a name that changes with its content: browsers keep it for ever."""
        stem, _, ending = name.rpartition(".")
        return f"{self.root}/static/{stem}.{asset(name).digest}.{ending}"

    def _with(self, path: str, query: dict[str, object]) -> str:
        rest = urlencode({name: value for name, value in query.items() if value not in ("", None)}, doseq=True)
        return f"{path}?{rest}" if rest else path


class Asset(NamedTuple):
    """A file that pages load."""

    text: str
    kind: str
    digest: str


@cache
def asset(name: str) -> Asset:
    """The asset of a name.

    Raises:
        KeyError: There is none.
    """
    kind = {"css": "text/css", "js": "text/javascript"}[name.rpartition(".")[2]]
    if name not in ASSETS:
        raise KeyError(name)
    text = _ASSETS.joinpath(name).read_text(encoding="utf-8")
    if name == "dashboard.css":
        text = page_style() + text
    return Asset(text, kind, hashlib.sha256(text.encode()).hexdigest()[:12])


class Tab(NamedTuple):
    """A link of the bar."""

    title: str
    address: str
    here: bool


def shell(
    links: Links,
    title: str,
    main: str,
    *,
    name: str = "",
    tabs: Sequence[Tab] = (),
    pulse: str = "",
    events: str = "",
    parts: str = "",
    at: str = "",
) -> str:
    """A whole page.

    Args:
        links: Addresses.
        title: Its title, plain text.
        main: Its content, HTML, which is fetched again when something changes.
        name: What the links of the bar are about, plain text.
        tabs: Further links of the bar.
        pulse: How new the content is, plain text.
        events: Address of the events after this content; "" for a page that never changes.
        parts: What it shows of all that may change, in words with spaces between; "" for everything.
        at: Address of what its pictures show at one place; "" for none.
    """
    named = "".join(
        f'<a href="{escaped(tab.address)}"{" aria-current=page" if tab.here else ""}>{escaped(tab.title)}</a>'
        for tab in tabs
    )
    heading = "" if "<h1>" in main else f'<h1 class="unseen">{escaped(title)}</h1>'
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="color-scheme" content="light dark"><title>{escaped(title)}</title>'
        f'<link rel="icon" href="data:,"><link rel="stylesheet" href="{links.asset("dashboard.css")}">'
        f'<script type="module" src="{links.asset("dashboard.js")}"></script>'
        f'<script type="module" src="{links.asset("pictures.js")}"></script></head>'
        f'<body data-events="{escaped(events)}" data-parts="{escaped(parts)}" data-at="{escaped(at)}">'
        f'<nav class="bar"><a class="home" href="{links.runs()}">watchglass</a>'
        + (f'<span class="name">{escaped(name)}</span>' if name else "")
        + f"{named}</nav>"
        f'<p class="pulse" role="status">{escaped(pulse)}</p><main>{heading}{main}</main></body></html>'
    )
