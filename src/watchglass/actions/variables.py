"""Values from the environment: ``$NAME`` in a parameter is read at each delivery and stored nowhere."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, quote_plus, unquote

from watchglass.errors import InvalidValueError, UnknownNameError

_WHOLE = re.compile(r"\$([A-Za-z_]\w*)")
_INSIDE = re.compile(r"\$\{([A-Za-z_]\w*)\}")
#: Replaces a part of a literal address in messages.
_HIDDEN = "[redacted]"
#: Several addresses in one text.
_BETWEEN_ADDRESSES = re.compile(r"[\s,;]+(?=[A-Za-z][\w+.-]*://)")
_HOST = re.compile(r"localhost|\[[0-9A-Fa-f:.]+\]|[\w-]+(?:\.[\w-]+)+")
_MAIL_ADDRESS = re.compile(r"[^@\s]+@[\w-]+(?:\.[\w-]+)+")
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
    items = value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else ()
    return [name for item in items for name in variables_of(item)]


def check_variables(owner: str, value: Any, environ: Mapping[str, str]) -> None:
    """Refuse variables that are not set, or hold nothing: an empty key would be no signature.

    Raises:
        UnknownNameError: One that ``environ`` does not have.
        InvalidValueError: One that is empty.
    """
    for name in variables_of(value):
        if name not in environ:
            raise UnknownNameError(f"{owner}: the environment variable {name} is not set; set it, or remove ${name}")
        if not environ[name]:
            raise InvalidValueError(
                f"{owner}: the environment variable {name} is empty; give it a value, or remove ${name}"
            )


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
    """A text, for instance an error, with values of variables replaced by their names.

    Parts of addresses are replaced, too: libraries may report only ``/services/T000/B000/XXXX``.
    """
    for name in sorted(set(variables_of(value)), key=lambda name: -len(environ.get(name, ""))):
        secret = environ.get(name, "")
        if len(secret) >= _SHORTEST_SECRET:
            text = _without(text, [secret, *_secrets_of(secret)], f"${name}")
    return text


def without_address(text: str, address: str) -> str:
    """A text in which nothing of an address is left but its host, and where in it mail goes to."""
    return _without(text, _secrets_of(address), _HIDDEN)


def _secrets_of(addresses: str) -> list[str]:
    """Parts of addresses that may be secrets: user, password, each part of the path, each value after ``?``."""
    if "://" not in addresses:
        return []
    found: list[str] = []
    for address in _BETWEEN_ADDRESSES.split(addresses):
        place, *further = re.split(r"[/?#&]+", address.partition("://")[2])
        user, _, host = place.rpartition("@")
        host_name = host.partition(":")[0]
        found += [user, *user.split(":"), *(part.rpartition("=")[2] for part in further)]
        if not _HOST.fullmatch(host_name):  # the first of the tokens, with most services
            found += [host, *host.split(":")]
    return [part for part in found if len(part) >= _SHORTEST_SECRET and not _MAIL_ADDRESS.fullmatch(unquote(part))]


def _without(text: str, secrets: list[str], instead: str) -> str:
    spellings = {
        spelling
        for secret in secrets
        for plain in (secret, unquote(secret))
        for spelling in (plain, quote(plain, safe=""), quote_plus(plain), quote(plain), repr(plain)[1:-1])
    }
    longest_first = sorted(spellings, key=lambda spelling: (-len(spelling), spelling))
    return re.sub("|".join(map(re.escape, longest_first)), lambda _: instead, text) if longest_first else text
