"""The addresses of the dashboard as data, from which routes and their description are made."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from watchglass.version import __version__

_PARAMETER = re.compile(r"{(\w+)}")


@dataclass(frozen=True)
class Endpoint:
    """An address.

    Attributes:
        path: The path, with parameters in braces.
        answer: Answers a request.
        about: What is there, in a few words.
        query: What may stand behind the ``?``, with what it means.
        body: Fields of a form that asks for something; () for an address that only shows.
    """

    path: str
    answer: Callable[..., Any]
    about: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: tuple[str, ...] = ()

    @property
    def method(self) -> str:
        """GET, or POST for an address that asks for something."""
        return "POST" if self.body else "GET"


def described(endpoints: Iterable[Endpoint]) -> dict[str, Any]:
    """All of them as a description by OpenAPI 3.1."""
    paths: dict[str, Any] = {}
    for each in endpoints:
        named = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
            for name in _PARAMETER.findall(each.path)
        ]
        asked = [
            {"name": name, "in": "query", "description": about, "schema": {"type": "string"}}
            for name, about in each.query.items()
        ]
        operation: dict[str, Any] = {
            "summary": each.about,
            "parameters": [*named, *asked],
            "responses": {"default": {"description": "what is there, or in one line why not"}},
        }
        if each.body:
            properties = {name: {"type": "string"} for name in each.body}
            form = {"schema": {"type": "object", "properties": properties}}
            operation["requestBody"] = {"content": {"application/x-www-form-urlencoded": form}}
        paths.setdefault(each.path, {})[each.method.lower()] = operation
    return {"openapi": "3.1.0", "info": {"title": "watchglass dashboard", "version": __version__}, "paths": paths}
