"""Values that stand in the environment and nowhere else: ``$NAME`` is read when something is delivered."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, quote_plus

from watchglass.errors import UnknownNameError

_WHOLE = re.compile(r"\$([A-Za-z_]\w*)")
_INSIDE = re.compile(r"\$\{([A-Za-z_]\w*)\}")
#: Values shorter than this are not looked for in messages: they would be found everywhere.
_SHORTEST_SECRET = 4


def has_variable(text: str) -> bool:
    """Whether a text is, or holds, the name of a variable."""
    return bool(_WHOLE.fullmatch(text) or _INSIDE.search(text))


def variables_of(value: Any) -> list[str]:
    """Names of all variables that a parameter, or a mapping of parameters, names."""
    if isinstance(value, str):
        whole = _WHOLE.fullmatch(value)
        return [whole[1]] if whole else _INSIDE.findall(value)
    if isinstance(value, Mapping):
        return [name for item in value.values() for name in variables_of(item)]
    if isinstance(value, (list, tuple)):
        return [name for item in value for name in variables_of(item)]
    return []


def check_variables(owner: str, value: Any, environ: Mapping[str, str]) -> None:
    """Refuse variables that are not set.

    Raises:
        UnknownNameError: One that ``environ`` does not have.
    """
    for name in variables_of(value):
        if name not in environ:
            raise UnknownNameError(f"{owner}: the environment variable {name} is not set, and ${name} stands for it")


def resolved(value: Any, environ: Mapping[str, str]) -> Any:
    """A parameter, or all of them, with variables replaced by what they hold."""
    if isinstance(value, str):
        whole = _WHOLE.fullmatch(value)
        return environ[whole[1]] if whole else _INSIDE.sub(lambda found: environ[found[1]], value)
    if isinstance(value, Mapping):
        return {key: resolved(item, environ) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return tuple(resolved(item, environ) for item in value)
    return value


def concealed(text: str, value: Any, environ: Mapping[str, str]) -> str:
    """A text, for instance an error, in which what variables hold is replaced by their names again."""
    for name in sorted(set(variables_of(value)), key=lambda name: -len(environ.get(name, ""))):
        secret = environ.get(name, "")
        if len(secret) >= _SHORTEST_SECRET:
            for spelling in {secret, quote(secret, safe=""), quote_plus(secret), repr(secret)[1:-1]}:
                text = text.replace(spelling, f"${name}")
    return text
