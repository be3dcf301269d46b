"""Settings from several sources: what a later one adds to an earlier, and what it replaces."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from watchglass.config.collection import DEFAULT_COLLECTIONS, Collection
from watchglass.config.parameters import ParameterError, build
from watchglass.errors import InvalidValueError

_OWNER = "SessionConfig"


def combine(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a session's configuration from several sources, of which a later one comes before an earlier.

    A table of collections adds to those of the sources before it, a list replaces them.

    Raises:
        ParameterError: A collection that cannot be.
    """
    result: dict[str, Any] = {}
    for layer in layers:
        before = result.get("collections", DEFAULT_COLLECTIONS)
        result.update(layer)
        if "collections" in layer:
            result["collections"] = read_collections(layer["collections"], before)
    return result


def read_collections(given: Any, base: Iterable[Collection]) -> tuple[Collection, ...]:
    """Collections as code, a file or a command line gives them.

    Args:
        given: A list of collections, names and tables, which means exactly these; or a table by name, which adds to
            ``base``: True for a collection as it is, False to leave one out, a table of settings to add or change one.
        base: What a table adds to.

    Raises:
        ParameterError: Something else, an unknown setting, or one collection twice.
    """
    if isinstance(given, Mapping):
        return _added(given, {collection.name: collection for collection in base})
    entries = [given] if isinstance(given, (str, Collection)) else given
    if not isinstance(entries, Iterable):
        raise ParameterError(_OWNER, "collections", f"must be a list or a table but got {given!r}")
    found: dict[str, Collection] = {}
    for index, entry in enumerate(entries):
        collection = _read_one(entry, str(index))
        if collection.name in found:
            raise ParameterError(_OWNER, "collections", f"names {collection.name} twice; join the two")
        found[collection.name] = collection
    return tuple(found.values())


def _added(table: Mapping[str, Any], known: dict[str, Collection]) -> tuple[Collection, ...]:
    for name, entry in table.items():
        if entry is False:
            known.pop(name, None)
        elif entry is True:
            known[name] = known.get(name) or _read_one({"name": name}, name)
        elif isinstance(entry, Mapping):
            before = known[name].to_json() if name in known else {"name": name}
            known[name] = _read_one({**before, **entry}, name)
        else:
            raise ParameterError(
                _OWNER, f"collections.{name}", f"must be a table of settings, true or false but got {entry!r}"
            )
    return tuple(known.values())


def _read_one(entry: Any, key: str) -> Collection:
    if isinstance(entry, Collection):
        return entry
    data = {"name": entry} if isinstance(entry, str) else entry
    if not isinstance(data, Mapping):
        raise ParameterError(_OWNER, f"collections.{key}", f"must be a collection but got {entry!r}")
    try:
        return build(Collection, data)
    except ParameterError as error:
        raise ParameterError(_OWNER, f"collections.{key}.{error.name}", error.reason) from None
    except InvalidValueError as error:
        raise ParameterError(_OWNER, f"collections.{key}", f"cannot be: {error}") from None
