"""What SARIF 2.1.0 demands of the objects that we write, and GitHub beyond it, as a JSON Schema of our own words.

Source: OASIS Standard "SARIF Version 2.1.0 Plus Errata 01", sections 3.13 to 3.58, of which each object here names
its own. Properties that the standard has and we do not write are left out, so that a misspelt one is refused.
"""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import urlsplit

import jsonschema

_TEXT = {"type": "string", "minLength": 1}


def _object(required: tuple[str, ...], **properties: Any) -> dict[str, Any]:
    return {
        "type": "object", "required": list(required), "properties": properties, "additionalProperties": False,
    }  # fmt: skip


_LEVEL = {"enum": ["none", "note", "warning", "error"]}
_BAG = {"type": "object", "properties": {"tags": {"type": "array", "items": _TEXT, "uniqueItems": True}}}
_MESSAGE = _object(("text",), text=_TEXT, markdown=_TEXT)  # 3.11
_REFERENCE = _object(("id",), id=_TEXT, index={"type": "integer", "minimum": 0})  # 3.52
_NOTIFICATION = _object(("message",), message=_MESSAGE, level=_LEVEL, associatedRule=_REFERENCE)  # 3.58
_INVOCATION = _object(  # 3.20
    ("executionSuccessful",),
    executionSuccessful={"type": "boolean"},
    toolExecutionNotifications={"type": "array", "items": _NOTIFICATION},
)
_RULE = _object(  # 3.49
    ("id", "shortDescription", "help"),  # GitHub asks for the last two
    id={"type": "string", "minLength": 1, "maxLength": 255},
    name={"type": "string", "maxLength": 255},
    shortDescription=_object(("text",), text={"type": "string", "maxLength": 1024}),
    fullDescription=_object(("text",), text={"type": "string", "maxLength": 1024}),
    help=_object(("text",), text=_TEXT, markdown=_TEXT),
    defaultConfiguration=_object((), level=_LEVEL),
    properties=_BAG,
)
_LOCATION = _object(  # 3.28
    ("physicalLocation",),
    physicalLocation=_object(
        ("artifactLocation", "region"),
        artifactLocation=_object(("uri",), uri=_TEXT, uriBaseId=_TEXT),
        region=_object(("startLine",), startLine={"type": "integer", "minimum": 1}),
    ),
    logicalLocations={
        "type": "array",
        "items": _object(("name",), name=_TEXT, fullyQualifiedName=_TEXT, kind=_TEXT),
    },
)
_RESULT = _object(  # 3.27
    ("message", "ruleId", "locations", "partialFingerprints"),  # the last two for GitHub
    ruleId=_TEXT,
    ruleIndex={"type": "integer", "minimum": 0},
    level=_LEVEL,
    message=_MESSAGE,
    locations={"type": "array", "items": _LOCATION, "minItems": 1},
    fingerprints={"type": "object", "additionalProperties": _TEXT},
    partialFingerprints={"type": "object", "additionalProperties": _TEXT, "minProperties": 1},
    occurrenceCount={"type": "integer", "minimum": 1},
    properties=_BAG,
)
_RUN = _object(  # 3.14
    ("tool", "results", "automationDetails"),
    tool=_object(
        ("driver",),
        driver=_object(("name",), name=_TEXT, version=_TEXT, rules={"type": "array", "items": _RULE}),  # 3.19
    ),
    automationDetails=_object(("id",), id=_TEXT),  # 3.17
    invocations={"type": "array", "items": _INVOCATION, "minItems": 1},
    columnKind={"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
    results={"type": "array", "items": _RESULT},
    properties=_BAG,
)
_LOG = _object(  # 3.13
    ("version", "runs"),
    version={"const": "2.1.0"},
    runs={"type": "array", "items": _RUN},
    **{"$schema": {"type": "string", "format": "uri"}},
)


def sarif_of(text: str) -> dict[str, Any]:
    """The log that ``text`` is, known to be as the standard demands.

    Raises:
        jsonschema.ValidationError, AssertionError: It is not.
    """
    log: dict[str, Any] = json.loads(text, parse_constant=_refuse)
    jsonschema.Draft202012Validator(_LOG).validate(log)
    identities = [run["automationDetails"]["id"] for run in log["runs"]]
    assert len(set(identities)) == len(identities), "two runs of one tool have one category"
    for run in log["runs"]:
        _check_run(run)
    return log


def _check_run(run: dict[str, Any]) -> None:
    rules = run["tool"]["driver"]["rules"]
    names = [rule["id"] for rule in rules]
    assert len(set(names)) == len(names)
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        for location in result["locations"]:
            _check_uri(location["physicalLocation"]["artifactLocation"])
        _check_message(result["message"]["text"])
    for notification in run["invocations"][0]["toolExecutionNotifications"]:
        _check_message(notification["message"]["text"])


def _check_uri(artifact: dict[str, str]) -> None:
    """3.4: a valid URI reference; GitHub: relative, or of the scheme file."""
    parts = urlsplit(artifact["uri"])
    assert parts.scheme in ("", "file"), artifact
    assert re.fullmatch(r"[A-Za-z0-9._~:/?#@!$&'()*+,;=%-]+", artifact["uri"]), artifact
    assert ("uriBaseId" in artifact) == (not parts.scheme), "3.4.4: only a relative reference has a base"
    assert parts.scheme or not artifact["uri"].startswith("/"), artifact


def _check_message(text: str) -> None:
    """3.11.5 and 3.11.6: no brace is single, no bracket opens a link."""
    for brace in "{}":
        assert text.count(brace) == 2 * text.count(2 * brace), text
    assert not re.search(r"(?<!\\)\[", text), text


def _refuse(word: str) -> None:
    raise AssertionError(f"{word} is no JSON")
