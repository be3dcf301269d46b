"""The dashboard as an application of a web server: which address shows what."""

from __future__ import annotations

import math
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route
from starlette.types import ASGIApp

from watchglass.dashboard.access import LOOPBACK, Access
from watchglass.dashboard.acting import change_settings, profile_steps, replay_rule, stop_job
from watchglass.dashboard.compare_page import MOST_RUNS, compare_page
from watchglass.dashboard.endpoints import Endpoint, described
from watchglass.dashboard.events import Source, events
from watchglass.dashboard.listing import Listing
from watchglass.dashboard.page_parts import Shown
from watchglass.dashboard.run_pages import RUN_PAGES
from watchglass.dashboard.runs_page import is_column, opening_html, runs_page
from watchglass.dashboard.shell import ASSETS, Links, Tab, asset, shell
from watchglass.dashboard.watched_run import Drawn, Published, WatchedRun
from watchglass.diagnose import BEING_READ, RunSummary, rule_texts
from watchglass.errors import CompactedError, InvalidValueError, WatchglassError, in_a_line
from watchglass.records import Mode
from watchglass.view import (
    Block,
    Judged,
    Picture,
    blocks_html,
    drawings_of,
    json_blocks,
    json_document,
    nearest,
    pictures_in,
    render_report,
    values_at,
)

#: Seconds after which a page says that its run is still being opened.
_PATIENCE_S = 0.4
#: Most digits of a number in an address, and most bytes of what a form sends.
_DIGITS, _LONGEST_BODY = 9, 1024
#: Most characters of a place on an axis.
_LONGEST_NUMBER = 40
#: Most modules of an address that are unfolded, and comparisons whose pictures are kept.
_OPENED, _COMPARISONS = 100, 8


class _Comparison(NamedTuple):
    """Which runs are compared, and how."""

    rows: Sequence[RunSummary]
    query: Mapping[str, str]

    @property
    def key(self) -> str:
        """What tells it from others."""
        return f"{[row.identifier for row in self.rows]}?{sorted(self.query.items())}"


class Dashboard:
    """Answers requests. Each action on a job has its own route.

    Args:
        listing: The runs.
        root: Path of the server behind a proxy.
        read_only: Whether nothing may be asked of jobs.
    """

    def __init__(self, listing: Listing, root: str = "", *, read_only: bool = False) -> None:
        self._acts = not read_only
        self._listing, self._links = listing, Links(root)
        self._watched = listing.runs
        self._epoch = secrets.token_hex(4)
        self._comparing = threading.Lock()
        self._compared: OrderedDict[str, list[Picture]] = OrderedDict()

    def endpoints(self) -> list[Endpoint]:
        """All addresses; without those that ask something of jobs, where that is not allowed."""
        table = {"q": "words", "sort": "a column, with - the other way round", "page": "number of the page"}
        compared = {"run": "identifiers", "metric": "a number that was recorded", "by": "step or time", "steps": "a:b"}
        shown = {choice: "what the page shows" for page in RUN_PAGES.values() for choice in page.choices}
        cursor = {"x": "a place", "picture": "number of the picture", "move": "how many places further"}
        stream = {"run": "identifier", "after": "the state that is known", "limit": "most events"}
        asking = [
            Endpoint("/r/{identifier}/profile", self.profile, "profile the next steps of a job", body=("steps",)),
            Endpoint("/r/{identifier}/stop", self.stop, "stop a job", body=("confirmed",)),
            Endpoint(
                "/r/{identifier}/settings",
                self.settings,
                "change a job",
                body=("sample_interval_s", "enabled", "module_times"),
            ),
            Endpoint("/r/{identifier}/replay", self.replay, "evaluate a rule again", body=("rule", "parameters")),
        ]
        return [
            *(asking if self._acts else ()),
            Endpoint("/", self.runs, "all runs", table),
            Endpoint("/latest", self.latest, "the newest run"),
            Endpoint("/compare", self.compare, "runs side by side", compared),
            Endpoint("/compare/at", self.compare_at, "numbers under a cursor", {**compared, **cursor}),
            Endpoint("/r/{identifier}", self.run, "a run", shown),
            Endpoint("/r/{identifier}/report.html", self.report, "the report of a run"),
            Endpoint("/r/{identifier}/verdict.json", self.verdict, "the verdict on a run"),
            Endpoint("/r/{identifier}/{page}", self.run, "a page of a run", shown),
            Endpoint("/data/{identifier}", self.data, "what the first page of a run shows", shown),
            Endpoint("/data/{identifier}/{page}", self.data, "what a page of a run shows", shown),
            Endpoint("/at/{identifier}", self.at, "numbers under a cursor", {**cursor, **shown}),
            Endpoint("/at/{identifier}/{page}", self.at, "numbers under a cursor", {**cursor, **shown}),
            Endpoint("/events", self.events, "what changes", stream),
            Endpoint("/static/{name}", self.static, "styles and scripts"),
            Endpoint("/openapi.json", self.description, "this description"),
        ]

    def routes(self) -> list[Route]:
        """The routes of all addresses."""
        return [Route(each.path, each.answer, methods=[each.method]) for each in self.endpoints()]

    def description(self, request: Request) -> Response:
        """All addresses as a description that programs read, see https://spec.openapis.org/oas/v3.1.0."""
        return JSONResponse(described(self.endpoints()))

    def runs(self, request: Request) -> Response:
        """The table of runs."""
        query, sort = request.query_params.get("q", ""), request.query_params.get("sort", "")
        if not is_column(sort):
            return _missing("there is no such column to sort by")
        number = self._listing.number
        page = _number(request.query_params.get("page", "")) or 1
        main = runs_page(self._listing.rows, self._links, query=query, sort=sort, page=page)
        address = self._links.events(after=f"{self._epoch}-{number}")
        pulse = self._listing.location
        return HTMLResponse(shell(self._links, "watchglass: runs", main, pulse=pulse, events=address))

    def latest(self, request: Request) -> Response:
        """To the newest run."""
        return RedirectResponse(self._links.run(self._listing.rows[0].identifier), 303)

    def compare(self, request: Request) -> Response:
        """Several runs side by side."""

        def answer(asked: _Comparison) -> Response:
            blocks = self._side_by_side(asked)
            return HTMLResponse(
                shell(
                    self._links, "watchglass: compare", blocks_html(blocks), name="compare",
                    pulse=self._listing.location, at=self._links.at_compared(),
                )
            )  # fmt: skip

        return self._of_compared(request, answer)

    def compare_at(self, request: Request) -> Response:
        """What the pictures of several runs side by side show at one place: for a cursor."""

        def answer(asked: _Comparison) -> Response:
            pictures = self._compared.get(asked.key)
            if pictures is None:  # the server has begun since, or others have compared much
                pictures = _drawings(self._side_by_side(asked))
            return _under_cursor(request, pictures)

        return self._of_compared(request, answer)

    def _of_compared(self, request: Request, answer: Callable[[_Comparison], Response]) -> Response:
        rows = [self._row_of(each) for each in request.query_params.getlist("run")[:MOST_RUNS]]
        if None in rows:
            return _missing("there is no such run")
        query = {name: request.query_params.get(name, "") for name in ("metric", "by", "steps")}
        try:
            return answer(_Comparison([row for row in rows if row is not None], query))
        except WatchglassError as error:
            return _refused(error)

    def _side_by_side(self, asked: _Comparison) -> Sequence[Block]:
        """The page; its pictures are kept, for the numbers under a cursor are those of the page that is seen."""
        published = {row.identifier: self._watched.watch(row.listed.location).newest for row in asked.rows}
        with self._comparing:
            blocks = compare_page(asked.rows, published, self._links, asked.query)
            self._compared[asked.key] = _drawings(blocks)
            self._compared.move_to_end(asked.key)
            while len(self._compared) > _COMPARISONS:
                self._compared.popitem(last=False)
        return blocks

    def run(self, request: Request) -> Response:
        """A page of a run."""
        name = request.path_params.get("page", "")
        if name not in RUN_PAGES or (row := self._row(request)) is None:
            return _missing("there is no such page")

        def answer(watched: WatchedRun) -> Response:
            drawn = self._drawn(request, row, watched, name)
            after = f"{self._epoch}-{drawn.number}"
            return self._page(row, name, drawn.html, drawn.status, watched.pulse(), after=after)

        def opening(known: RunSummary) -> Response:
            """What the table says of a run, until it is read."""
            return self._page(known, name, opening_html(known), "opening", "opening")

        return self._of_run(row, answer, opening)

    def _page(
        self, row: RunSummary, name: str, main: str, status: str, pulse: str, **events: str
    ) -> HTMLResponse:  # fmt: skip
        tabs = [
            Tab(other.title, self._links.run(row.identifier, path), path == name) for path, other in RUN_PAGES.items()
        ]
        tabs.append(Tab("Report", self._links.run(row.identifier, "report.html"), here=False))
        return HTMLResponse(
            shell(
                self._links, f"{row.listed.name}: {status}", main, name=row.listed.name, tabs=tabs, pulse=pulse,
                events=self._links.events(run=row.identifier, **events), parts=RUN_PAGES[name].parts,
                at=self._links.at(row.identifier, name),
            )
        )  # fmt: skip

    def data(self, request: Request) -> Response:
        """What a page of a run shows, as JSON."""
        return self._part(request, lambda drawn: JSONResponse(json_blocks(drawn.blocks)))

    def at(self, request: Request) -> Response:
        """What the pictures of a page show at one place: for a cursor."""
        return self._part(request, lambda drawn: _under_cursor(request, _drawings(drawn.blocks)))

    def _part(self, request: Request, answer: Callable[[Drawn], Response]) -> Response:
        name = request.path_params.get("page", "")
        if name not in RUN_PAGES or (row := self._row(request)) is None:
            return _missing("there is no such page")
        return self._of_run(row, lambda watched: answer(self._drawn(request, row, watched, name)))

    def _drawn(self, request: Request, row: RunSummary, watched: WatchedRun, name: str) -> Drawn:
        page = RUN_PAGES[name]
        query = {each: request.query_params[each] for each in page.choices if each in request.query_params}
        opened = tuple(dict.fromkeys(request.query_params.getlist("open")[:_OPENED])) if "open" in page.choices else ()

        def draw(published: Published) -> Drawn:
            shown = Shown(published, self._links, row.identifier, query, watched.goes_on, opened, self._acts)
            blocks = page.draw(shown)
            return Drawn(blocks, blocks_html(blocks), published.number, published.verdict.status)

        return watched.drawn(f"{name}?{sorted(query.items())}{opened}", draw)

    def report(self, request: Request) -> Response:
        """The report of a run, as a file."""
        row = self._row(request)
        if row is None:
            return _missing("there is no such run")

        def draw(watched: WatchedRun) -> Response:
            published = watched.newest
            verdict = published.verdict
            # As a file, for the policy of our pages forbids its style.
            named = {"Content-Disposition": f'attachment; filename="report-{row.identifier}.html"'}
            return HTMLResponse(render_report(published.run, verdict, partial(rule_texts, verdict)), headers=named)

        return self._of_run(row, draw)

    def verdict(self, request: Request) -> Response:
        """The verdict of a run as JSON, as ``watchglass check --format json`` prints it."""
        row = self._row(request)
        if row is None:
            return _missing("there is no such run")

        def answer(watched: WatchedRun) -> Response:
            return Response(json_document(Judged([watched.newest.verdict])), media_type="application/json")

        return self._of_run(row, answer)

    async def profile(self, request: Request) -> Response:
        """Asks a job to profile the operators of its next steps; the answer says which."""
        return await self._asked(request, profile_steps)

    async def stop(self, request: Request) -> Response:
        """Asks a job to end."""
        return await self._asked(request, stop_job)

    async def settings(self, request: Request) -> Response:
        """Changes settings of a job's profiler."""
        return await self._asked(request, change_settings)

    async def replay(self, request: Request) -> Response:
        """Evaluates a rule again with other parameters."""
        return await self._asked(request, replay_rule)

    async def _asked(self, request: Request, act: Callable[[str, Mapping[str, str]], str]) -> Response:
        """What an action on a run answers."""
        row = self._row(request)
        if row is None:
            return _missing("there is no such run")
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > _LONGEST_BODY:
                return PlainTextResponse("watchglass: the request is too long\n", 413)
        given = dict(parse_qsl(body.decode("utf-8", "replace")))
        location = row.listed.location

        def answer() -> Response:
            try:
                return PlainTextResponse(f"{act(location, given)}\n")
            except WatchglassError as error:
                return PlainTextResponse(f"watchglass: {error}\n", 409)

        return await run_in_threadpool(answer)

    def events(self, request: Request) -> Response:
        """What changes, see :mod:`watchglass.dashboard.events`."""
        identifier = request.query_params.get("run")
        after = request.headers.get("last-event-id") or request.query_params.get("after", "")
        limit = _number(request.query_params.get("limit", ""))
        if identifier is None:
            return self._stream(self._of_listing(), after, limit)
        row = self._row_of(identifier)
        if row is None:
            return _missing("there is no such run")
        return self._of_run(row, lambda watched: self._stream(_of_watched(row, watched), after, limit))

    def static(self, request: Request) -> Response:
        """Style and script."""
        name = request.path_params["name"]
        for known in ASSETS:
            if self._links.asset(known).endswith(f"/{name}"):
                found = asset(known)
                kept = {"Cache-Control": "private, max-age=31536000, immutable"}
                return Response(found.text, media_type=found.kind, headers=kept)
        return _missing("there is no such file")

    def _row(self, request: Request) -> RunSummary | None:
        return self._row_of(request.path_params["identifier"])

    def _row_of(self, identifier: str) -> RunSummary | None:
        try:
            return self._listing[identifier]
        except KeyError:
            return None

    def _of_run(
        self,
        row: RunSummary,
        answer: Callable[[WatchedRun], Response],
        opening: Callable[[RunSummary], Response] | None = None,
    ) -> Response:
        """The answer from a run, or why it cannot be read.

        Args:
            row: The run.
            answer: Answers.
            opening: Answers by what the table knows while a run is opened that takes long; without it the answer waits.
        """
        try:
            location = row.listed.location
            if opening is None or self._watched.is_open(location):
                watched = self._watched.watch(location)
            else:
                row = self._listing.preview(row.identifier)
                patience_s = 0.0 if row.state == BEING_READ else _PATIENCE_S
                if (found := self._watched.watch_within(location, patience_s)) is None:
                    return opening(row)
                watched = found
            try:
                return answer(watched)
            except CompactedError:  # since the last look
                watched.look()
                return answer(watched)
        except WatchglassError as error:
            return _refused(error)

    def _of_listing(self) -> Source:
        listing = self._listing

        def number() -> int:
            listing.asked()
            return listing.number

        return Source(number, lambda _: {}, lambda: listing.location)

    def _stream(self, source: Source, after: str, limit: int | None) -> Response:
        return StreamingResponse(
            events(source, self._epoch, after, self._listing.stopping, limit),
            media_type="text/event-stream",
            headers={"X-Accel-Buffering": "no"},
        )


def application(
    listing: Listing,
    *,
    token: str,
    cookie: str,
    hosts: Collection[str] = (),
    root: str = "",
    read_only: bool = False,
) -> ASGIApp:
    """The whole application.

    Args:
        listing: The runs.
        token: See :class:`~watchglass.dashboard.access.Access`, as for the others.
        cookie: Name of the cookie.
        hosts: Names of the server, in addition to those of this machine for itself.
        root: Path of the server behind a proxy.
        read_only: Whether nothing may be asked of jobs.
    """
    handlers: dict[Any, Any] = {
        404: lambda request, error: _missing("there is no such page"),
        500: lambda request, error: PlainTextResponse(f"watchglass: {in_a_line(error)}\n", 500),
    }
    routed = Starlette(routes=Dashboard(listing, root, read_only=read_only).routes(), exception_handlers=handlers)
    routed.router.redirect_slashes = False  # to addresses that a proxy may not know
    return Access(routed, token, cookie, (*LOOPBACK, *hosts), root)


def _drawings(blocks: Sequence[Block]) -> list[Picture]:
    """What is drawn of the pictures of a page, in order."""
    return [each for found in pictures_in(blocks) for each in drawings_of(found)]


def _under_cursor(request: Request, pictures: Sequence[Picture]) -> Response:
    """The values of all pictures with the axis of one of them, at the place of that one's nearest numbers."""
    query = request.query_params
    at, picture = _float(query.get("x", "")), _number(query.get("picture", "0"))
    move = _number(query.get("move", "0").removeprefix("-"))
    if at is None or picture is None or move is None:
        return _refused(InvalidValueError("x must be a number, and picture and move whole numbers"))
    if picture >= len(pictures):
        return _missing("there is no such picture")
    at = nearest(pictures[picture], at, -move if query.get("move", "").startswith("-") else move)
    return JSONResponse({"x": at, "text": f"{at:,.10g}", "values": [values_at(each, at) for each in pictures]})


def _of_watched(row: RunSummary, watched: WatchedRun) -> Source:
    def change(number: int) -> dict[str, object]:
        run = watched.newest.run
        steps = run.worker().numbers(Mode.TRAIN)
        return {
            "run": row.identifier,
            "changed": watched.changed_since(number),
            "step": steps.last if len(steps) else None,
        }

    return Source(lambda: watched.newest.number, change, watched.pulse)


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _DIGITS else None


def _float(text: str) -> float | None:
    try:
        found = float(text) if len(text) <= _LONGEST_NUMBER else math.nan
    except ValueError:
        return None
    return found if math.isfinite(found) else None


def _refused(error: WatchglassError) -> Response:
    """Why something cannot be shown: there is no such thing, the address makes no sense, or the run cannot be read."""
    status = 404 if isinstance(error, LookupError) else 400 if isinstance(error, InvalidValueError) else 503
    return PlainTextResponse(f"watchglass: {error}\n", status)


def _missing(sentence: str) -> Response:
    return PlainTextResponse(f"watchglass: {sentence}\n", 404)
