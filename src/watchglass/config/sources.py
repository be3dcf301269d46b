"""Settings of several sources: how they merge, and which source an invalid setting comes from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from watchglass.config.collection import BUILT_IN_COLLECTIONS, DEFAULT_COLLECTIONS, PART_OF, Collection
from watchglass.config.parameters import ParameterError, build, values
from watchglass.config.profiler import ProfilerConfig
from watchglass.config.saving import ModeSteps
from watchglass.config.tensorboard import TensorBoardConfig
from watchglass.errors import InvalidValueError

_OWNER = "SessionConfig"
#: Settings that are tables, with a short form.
_SHORT: dict[str, Any] = {"profiler": ProfilerConfig, "tensorboard": TensorBoardConfig}


class SettingsLayer(NamedTuple):
    """Settings with their source."""

    settings: Mapping[str, Any]  #: Fields of a session's configuration.
    source: str = ""  #: The source, ``"watchglass.toml"``, ``"the options given"``; "" for settings that no user wrote.
    spelled: Callable[[str], str] = str  #: How the source spells the dotted name of a setting, ``"--save-interval"``.

    def error(self, error: ParameterError) -> InvalidValueError:
        """The error of a setting of this source, with the source and its spelling."""
        return InvalidValueError(f"{self.spelled(error.name)} {error.reason}") if self.source else error


def with_source(error: ParameterError, layers: Sequence[SettingsLayer]) -> InvalidValueError:
    """The error with the source of its setting; with two sources where their settings contradict each other.

    Args:
        error: The error of the merged settings, with their dotted names.
        layers: What was merged.
    """
    by_users = [(layer, set(_names(layer.settings))) for layer in layers if layer.source]
    found = []
    for name in error.related or (error.name,):
        found += [position for position, (_, names) in enumerate(by_users) if name in names][-1:]
    if not found:
        return error
    first, last = by_users[min(found)][0], by_users[max(found)][0]
    if first is last:
        return last.error(error)
    return InvalidValueError(f"{first.source}, with {last.source}: {error.name} {error.reason}")


def _names(settings: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Dotted names of settings, and of the tables that hold them."""
    for name, value in settings.items():
        yield prefix + name
        if name == "collections" and not isinstance(value, Mapping):
            value = {collection.name: collection for collection in read_collections(value, ())}
        table = _table(value)
        if table is not None:
            yield from _names(table, f"{prefix}{name}.")


def combine(*sources: SettingsLayer | Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a session's configuration from several sources; a later source overrides an earlier one.

    A table of collections adds to those of earlier sources, a list replaces them. A later table may name any collection
    that an earlier source defined. Settings of modes are merged one by one.

    Raises:
        InvalidValueError: An invalid collection; the message names its source.
    """
    layers = [source if isinstance(source, SettingsLayer) else SettingsLayer(source) for source in sources]
    result: dict[str, Any] = {}
    defined: dict[str, Collection] = {}
    for number, layer in enumerate(layers, start=1):
        before = result.get("collections", DEFAULT_COLLECTIONS)
        result = add_settings(result, layer.settings)
        if "collections" not in layer.settings:
            continue
        given = layer.settings["collections"]
        try:
            result["collections"] = read_collections(given, before, defined)
        except ParameterError as error:  # only a table depends on earlier sources
            found = with_source(error, layers[:number]) if isinstance(given, Mapping) else layer.error(error)
            raise found from None
        defined |= {c.name: c for c in result["collections"] if c.name not in BUILT_IN_COLLECTIONS}
    return result


def add_settings(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of one collection, run or mode from two sources; the later one overrides the earlier.

    Only the settings of tables (``modes``) are merged one by one.
    """
    result = dict(before)
    for name, value in after.items():
        if name in _SHORT:
            value = _SHORT[name].read(value)
        earlier, later = _table(before.get(name)), _table(value)
        result[name] = value if earlier is None or later is None else add_settings(earlier, later)
    return result


def _table(value: Any) -> Mapping[str, Any] | None:
    if isinstance(value, (Collection, ModeSteps, ProfilerConfig, TensorBoardConfig)):
        return values(value)
    return value if isinstance(value, Mapping) else None


def read_collections(
    given: Any, base: Iterable[Collection], defined: Mapping[str, Collection] | None = None
) -> tuple[Collection, ...]:
    """Collections from the value that code, a file or a command line gives.

    Args:
        given: A list of collections, names and tables, which means exactly these; or a table by name, which changes
            ``base``: True adds a collection, False removes one, a table of settings adds or changes one.
        base: The collections that a table changes.
        defined: Further collections that a table may name.

    Raises:
        ParameterError: A value of another type, an unknown setting, or a duplicate collection.
    """
    if isinstance(given, Mapping):
        return _added(given, {collection.name: collection for collection in base}, defined or {})
    entries = [given] if isinstance(given, (str, Collection)) else given
    if not isinstance(entries, Iterable):
        raise ParameterError(_OWNER, "collections", f"must be a list or a table but got {given!r}")
    found: dict[str, Collection] = {}
    for index, entry in enumerate(entries):
        collection = _read_one(entry, str(index))
        if collection.name in found:
            raise ParameterError(_OWNER, "collections", f"names {collection.name} twice; merge the two")
        found[collection.name] = collection
    return tuple(found.values())


def _added(
    table: Mapping[str, Any], kept: dict[str, Collection], defined: Mapping[str, Collection]
) -> tuple[Collection, ...]:
    for name, entry in table.items():
        before = kept.get(name) or defined.get(name)
        if entry is False:
            kept.pop(name, None)
            for part in [part for part in kept if part.startswith(f"{PART_OF}{name}.")]:
                del kept[part]  # False for the whole also removes the parts that rules need
        elif entry is True:
            kept[name] = before or _read_one({"name": name}, name)
        elif isinstance(entry, Mapping):
            if entry.get("name", name) != name:
                raise ParameterError(
                    _OWNER, f"collections.{name}.name", f"must be omitted or {name} but got {entry['name']!r}"
                )
            settings = before.to_json() if before is not None else {"name": name}
            kept[name] = _read_one(add_settings(settings, entry), name)
        else:
            raise ParameterError(
                _OWNER, f"collections.{name}", f"must be a table of settings, true or false but got {entry!r}"
            )
    return tuple(kept.values())


def _read_one(entry: Any, key: str) -> Collection:
    if isinstance(entry, Collection):
        return entry
    data = {"name": entry} if isinstance(entry, str) else entry
    if not isinstance(data, Mapping):
        raise ParameterError(_OWNER, f"collections.{key}", f"must be a collection but got {entry!r}")
    try:
        return build(Collection, data)
    except ParameterError as error:
        raise error.inside(_OWNER, f"collections.{key}") from None
    except InvalidValueError as error:
        raise ParameterError(_OWNER, f"collections.{key}", f"is invalid: {error}") from None
