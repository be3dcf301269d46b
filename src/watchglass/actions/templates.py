"""Templates with placeholders for the fields of an event: ``{rule}``, ``{step}``, ``{message}``."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from datetime import datetime, timezone

from watchglass.config import suggest
from watchglass.errors import InvalidValueError
from watchglass.records import Event

#: Placeholders of a template, described in docs/actions.md.
FIELDS = (
    "run", "run_id", "attempt", "kind", "event_id", "time", "rule", "message", "severity", "finding_id", "step",
    "mode", "worker", "tensor", "value", "limit", "try", "status", "previous", "reason",
)  # fmt: skip

_PLACE = re.compile(r"\{\{(\w+)\}\}|\{(env\.)?([A-Za-z_]\w*)\}")


def fields_of(event: Event) -> dict[str, str]:
    """The value of each of :data:`FIELDS` for an event; "" for a field that it does not have."""
    time = datetime.fromtimestamp(event.time_ns // 1_000_000_000, timezone.utc)
    found = dict.fromkeys(FIELDS, "")
    found.update(
        run=event.run, run_id=event.run_id, attempt=str(event.attempt), kind=event.kind, event_id=event.id,
        time=time.strftime("%Y-%m-%dT%H:%M:%SZ"), rule=event.rule, message=event.message,
    )  # fmt: skip
    finding, status = event.finding, event.status
    if finding is not None:
        found.update(
            severity=finding.severity.value, finding_id=finding.id, step=str(finding.step), mode=finding.mode.name,
            worker=finding.worker, tensor=finding.tensors[0] if finding.tensors else "", value=_number(finding.value),
            limit=_number(finding.limit),
        )  # fmt: skip
        found["try"] = "\n".join(finding.what_to_try)
    if status is not None:
        found.update(status=status.status.value, reason=status.reason)
        found["previous"] = event.previous.value if event.previous is not None else ""
    return found


def check_template(owner: str, text: str, environ: Collection[str] | None = None) -> None:
    """Refuse unknown placeholders.

    Args:
        owner: How errors call the template, ``"Command: command"``.
        text: The template.
        environ: Variables that ``{env.NAME}`` may name; None if templates of the owner cannot name variables.

    Raises:
        InvalidValueError: A placeholder is unknown (the message suggests a similar one), or a variable is not set.
    """
    for literal, variable, name in _PLACE.findall(text):
        if literal:
            continue
        if variable:
            if environ is None:
                raise InvalidValueError(f"{owner} has no placeholder {{env.{name}}}; known are {', '.join(FIELDS)}")
            if name not in environ:
                raise InvalidValueError(f"{owner} names {{env.{name}}}, but the environment variable {name} is not set")
        elif name not in FIELDS:
            near = suggest(name, FIELDS) or f"; known are {', '.join(FIELDS)}"
            raise InvalidValueError(
                f"{owner} has no placeholder {{{name}}}{near}; for this text itself write {{{{{name}}}}}"
            )


def variables_in(text: str) -> list[str]:
    """Names of the environment variables that a template names."""
    return [name for literal, variable, name in _PLACE.findall(text) if variable and not literal]


def filled(text: str, fields: Mapping[str, str], environ: Mapping[str, str] | None = None) -> str:
    """A template with its placeholders filled. Placeholders within a value are not filled."""

    def filling(place: re.Match[str]) -> str:
        literal, variable, name = place.groups()
        if literal:
            return f"{{{literal}}}"
        return (environ or {})[name] if variable else fields[name]

    return _PLACE.sub(filling, text)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"
