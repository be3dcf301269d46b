"""Notify: messages to people through apprise: email, SMS gateways, Slack, Teams, Discord, ntfy and others."""

from __future__ import annotations

import logging
import re
import warnings
from typing import Any

from watchglass.actions.action import Action
from watchglass.actions.templates import check_template, fields_of, filled
from watchglass.actions.variables import has_variable, without_address
from watchglass.config import parameter
from watchglass.errors import InvalidValueError, UndeliverableError, importing
from watchglass.records import Event, Severity

_TITLES = {
    "finding": "[watchglass] {severity}: {rule} at step {step}",
    "status": "[watchglass] {rule} is {status}",
    "summary": "[watchglass] more events",
}
_BODIES = {
    "finding": "{message}\n\nrule    {rule}\nstep    {step} ({mode}, {worker})\nrun     {run}\n",
    "status": "{message}\n{reason}\n\nrun     {run}\n",
    "summary": "{message}\n\nrun     {run}\n",
}
#: Permanent refusals, 5xx of SMTP, as Python's library words them: another try would get the same answer.
_REFUSED = re.compile(r"\(5\d\d,|\b5\d\d \d\.\d\.\d\b|'?: \(5\d\d")


class Notify(Action):
    """Sends a message to people: email, SMS, Slack, Teams, Discord, ntfy and about a hundred other services.

    Each service has an address for apprise, ``mailto://user:password@example.org`` or ``slack://...``. Put secrets into
    environment variables: ``$NAME`` is read when a message is sent. Title and body are templates with ``{rule}``,
    ``{message}``, ``{step}`` and others. What to try is added below the body. Needs the extra ``actions``.

    Example: Notify:urls=$MAIL_URL,severity=error
    """

    takes_summaries = True

    urls: tuple[str, ...] = parameter((), help="addresses for apprise, or $NAME", split=False)
    title: str = parameter("", help="template of the title; if not given, a title for the event")
    body: str = parameter("", help="template of the body; if not given, the message of the event")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.urls:
            raise InvalidValueError(
                'Notify needs urls, as in urls=mailto://user:${PASSWORD}@example.org or urls="$URL"'
            )
        for name in ("title", "body"):
            check_template(f"Notify: {name}", getattr(self, name))

    def check(self) -> None:
        """Refuse addresses that apprise does not know, as far as they are written out."""
        apprise = _apprise()
        for number, url in enumerate(self.urls, 1):
            if has_variable(url):
                continue
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # from imports of its plug-ins
                known = apprise.Apprise.instantiate(url, suppress_exceptions=True) is not None
            if not known:
                scheme = url.partition("://")[0] if "://" in url else ""
                of = f", of {scheme}://," if scheme.isalnum() else ""
                raise InvalidValueError(f"Notify: address {number} of urls{of} is unknown to apprise or unreadable")

    def act(self, event: Event) -> None:
        """Send the message to every address."""
        apprise = _apprise()
        fields = fields_of(event)
        title = filled(self.title or _TITLES[event.kind], fields)
        body = filled(self.body or _BODIES[event.kind], fields)
        if fields["try"]:
            body += "\nWhat to try:\n" + "".join(f"- {line}\n" for line in fields["try"].splitlines())
        kinds = {Severity.ERROR: "failure", Severity.WARNING: "warning"}
        kind = kinds.get(event.severity, "info") if event.severity is not None else "info"
        failed: dict[str, bool] = {}
        place = 0
        for number, url in enumerate(self.urls, 1):
            known = apprise.Apprise()
            with _AppriseLog():
                readable = known.add(url)
            if not readable:
                failed[f"address {number} of urls is unknown to apprise or unreadable"] = True
            for service in known:  # a variable may hold several addresses
                place += 1
                if place in self.arrived:
                    continue
                sender = apprise.Apprise()
                sender.add(service)
                # As text: a message is never taken for HTML or Markdown.
                with _AppriseLog() as log:
                    sent = sender.notify(title=title, body=body, notify_type=kind, body_format="text")
                if sent:
                    self.arrived.add(place)
                else:
                    reason = f"address {number} of urls: {without_address(log.reason(), url)}"
                    failed[reason] = bool(_REFUSED.search(reason))
        if failed:
            raise (UndeliverableError if all(failed.values()) else ConnectionError)("; ".join(failed))


class _AppriseLog(logging.Handler):
    """Collects the log of apprise while it is entered: apprise returns only whether a message was sent."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self._lines: list[tuple[int, str]] = []
        self._logger = logging.getLogger("apprise")

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append((record.levelno, " ".join(record.getMessage().split())))

    def reason(self) -> str:
        """Why a message was not sent, in one line."""
        exceptions = [text for _, text in self._lines if "xception:" in text]
        warnings = [text for level, text in self._lines if level >= logging.WARNING]
        chosen = [*warnings[-1:], *exceptions[-1:]]
        return ": ".join(chosen)[:500] or "not sent, and apprise reports no reason"

    def __enter__(self) -> _AppriseLog:
        self._level, self._propagates = self._logger.level, self._logger.propagate
        self._logger.setLevel(logging.DEBUG)
        self._logger.propagate = False
        self._logger.addHandler(self)
        return self

    def __exit__(self, *exc: object) -> None:
        self._logger.removeHandler(self)
        self._logger.setLevel(self._level)
        self._logger.propagate = self._propagates


def _apprise() -> Any:
    with importing("Notify needs apprise", "actions"):
        import apprise
    return apprise
