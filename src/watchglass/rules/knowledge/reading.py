"""Knowledge from files: the one in the package, then those of users. Every entry is validated."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from watchglass.config import read_toml, suggest
from watchglass.errors import InvalidValueError
from watchglass.records import Cause
from watchglass.rules.knowledge.knowledge import ALREADY, Knowledge, Symptom
from watchglass.rules.knowledge.templates import Placeholder, Scaling, Template, parse_template

#: The built-in knowledge.
BUILT_IN_FILE = Path(__file__).with_name("causes.toml")

_IDENTIFIER = re.compile(r"[a-z][a-z0-9_]{0,63}")
_SECTIONS = ("named_causes", "found_nothing", "causes", "symptoms", "groups", "links", "placeholders")
#: Number of leading sections that only the built-in file may have.
_OWN = 2
_FLAGS = ("breaks", "ruins", "exact", "begins", "values", "measured", "machine", "joins")
_KINDS = ("number", "text")
_MODELS = ("networks", "trees", "any")
_Readers = Mapping[str, Callable[[str, Any], Any]]


class _Wrong(Exception):
    """An invalid entry, with its key; the caller adds the file."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"{key} {reason}")


@cache
def built_in_knowledge(*, trees: bool = False) -> Knowledge:
    """The built-in knowledge for networks, or for boosted ``trees``; read once."""
    return _of_the_package().of_models(trees=trees)


@cache
def _of_the_package() -> Knowledge:
    return _added(Knowledge(), BUILT_IN_FILE, own=True)


def load_knowledge(files: Sequence[str | os.PathLike[str]] = ()) -> Knowledge:
    """The built-in knowledge with the entries of files.

    Args:
        files: TOML files in the form of the built-in one. A file may refer to the built-in entries and to files before
            it. It adds entries and replaces none.

    Raises:
        MissingFileError: A file does not exist.
        InvalidValueError: An entry of a file is invalid; one line names file and key.
    """
    knowledge = _of_the_package()
    for file in files:
        knowledge = _added(knowledge, Path(file))
    return knowledge


def _added(before: Knowledge, path: Path, *, own: bool = False) -> Knowledge:
    data = read_toml(path, "file of causes")
    try:
        _check_keys("", data, _SECTIONS if own else _SECTIONS[_OWN:])
        sections = {name: _table(name, data.get(name, {})) for name in _SECTIONS[_OWN:]}
        placeholders = {**before.placeholders, **_placeholders(sections["placeholders"], before.placeholders)}
        rows = _entries("symptoms", sections["symptoms"], before.symptoms)
        symptoms = {**before.symptoms, **{name: Symptom(name, **row) for name, row in rows.items()}}
        groups = _groups(sections["groups"], symptoms)
        found = _entries("causes", sections["causes"], before.causes)
        new = {
            name: Cause(name, row["title"], row["explanation"], tuple(row["what_to_try"]), row.get("source", ""))
            for name, row in found.items()
        }
        unless = {name: {each: by for each, by in row["what_to_try"].items() if by} for name, row in found.items()}
        causes = {**before.causes, **new}
        leads_to = {name: _leads_to(name, row.get("leads_to", ()), symptoms, groups) for name, row in found.items()}
        advice = {name: _advice(name, row.get("advice", ()), placeholders) for name, row in found.items()}
        return Knowledge(
            causes=causes,
            symptoms=symptoms,
            links=_links(sections["links"], before.links, symptoms, causes),
            consequences={**before.consequences, **leads_to},
            advice={**before.advice, **advice},
            unless={**before.unless, **unless},
            placeholders=placeholders,
            ruled_out_by={**before.ruled_out_by, **_named_rules(found, "ruled_out_by")},
            ruled_out_if={**before.ruled_out_if, **_ruled_out_if(found)},
            seen_by={**before.seen_by, **_named_rules(found, "seen_by")},
            of_trees=before.of_trees | _of(found, "trees", own=own),
            also_of_trees=before.also_of_trees | _of(found, "any", own=own),
            found_nothing=_weight("found_nothing", data.get("found_nothing")) if own else before.found_nothing,
            named_causes=_named(data.get("named_causes")) if own else before.named_causes,
        )
    except _Wrong as error:
        raise InvalidValueError(f"{path}: {error}") from None


def _entries(section: str, table: Mapping[str, Any], known: Iterable[str]) -> dict[str, dict[str, Any]]:
    """The new entries of a section, with the values of their required and optional keys."""
    found: dict[str, dict[str, Any]] = {}
    needed, further = _KEYS[section]
    for name, row in table.items():
        key = _new(section, name, known)
        row = _table(key, row)
        _check_keys(key, row, (*needed, *further))
        readers = {**needed, **{each: read for each, read in further.items() if each in row}}
        found[name] = {each: read(f"{key}.{each}", row.get(each)) for each, read in readers.items()}
    return found


def _groups(table: Mapping[str, Any], symptoms: Mapping[str, Symptom]) -> dict[str, tuple[str, ...]]:
    """Names for several symptoms, known only in their file."""
    found: dict[str, tuple[str, ...]] = {}
    for name, row in table.items():
        key = _new("groups", name, symptoms)
        found[name] = _texts(key, row)
        for symptom in found[name]:
            _check_known(key, symptom, symptoms, "symptom")
    return found


def _leads_to(
    name: str, entries: Sequence[str], symptoms: Mapping[str, Symptom], groups: Mapping[str, tuple[str, ...]]
) -> frozenset[str]:
    found: set[str] = set()
    for entry in entries:
        if entry not in groups:
            _check_known(f"causes.{name}.leads_to", entry, symptoms, "symptom", also=groups)
        found.update(groups.get(entry, (entry,)))
    return frozenset(found)


def _advice(name: str, texts: Sequence[str], placeholders: Mapping[str, Placeholder]) -> tuple[Template, ...]:
    found: list[Template] = []
    for position, text in enumerate(texts):
        try:
            found.append(parse_template(text, placeholders))
        except ValueError as error:
            raise _Wrong(f"causes.{name}.advice[{position}]", str(error)) from None
    return tuple(found)


def _of(causes: Mapping[str, Mapping[str, Any]], models: str, *, own: bool) -> frozenset[str]:
    """The causes of such models. Those of users are of any model, unless they say otherwise."""
    default = "networks" if own else "any"
    return frozenset(name for name, row in causes.items() if row.get("models", default) == models)


def _named_rules(causes: Mapping[str, Mapping[str, Any]], key: str) -> dict[str, frozenset[str]]:
    """By cause, the rules that a key names. A rule may be custom, so any name is valid."""
    return {name: frozenset(row.get(key, ())) for name, row in causes.items()}


def _ruled_out_if(causes: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    return {name: row["ruled_out_if"] for name, row in causes.items() if "ruled_out_if" in row}


def _links(
    table: Mapping[str, Any],
    before: Mapping[str, Mapping[str, float]],
    symptoms: Mapping[str, Symptom],
    causes: Mapping[str, Cause],
) -> dict[str, dict[str, float]]:
    links = {symptom: dict(row) for symptom, row in before.items()}
    for symptom, row in table.items():
        _check_known("links", symptom, symptoms, "symptom", cure="; declare it under [symptoms], with what it means")
        own = links.setdefault(symptom, {})
        for cause, weight in _table(f"links.{symptom}", row).items():
            key = f"links.{symptom}"
            _check_known(key, cause, causes, "cause", cure="; declare it under [causes]")
            if cause in own:
                raise _Wrong(f"{key}.{cause}", f"exists already, with weight {own[cause]:g}; links are only added")
            own[cause] = _weight(f"{key}.{cause}", weight)
    return links


def _placeholders(table: Mapping[str, Any], known: Mapping[str, Placeholder]) -> dict[str, Placeholder]:
    found: dict[str, Placeholder] = {}
    for name, row in _entries("placeholders", table, known).items():
        key, is_number = f"placeholders.{name}", row["kind"] == "number"
        if "otherwise" in row and is_number:
            raise _Wrong(f"{key}.otherwise", "is only for texts: without the number its template is omitted")
        found[name] = Placeholder(
            name, is_number, row["means"], row.get("otherwise"), _scaling(key, row), row.get("log10_of", "")
        )
    for name, placeholder in found.items():
        _check_sources(f"placeholders.{name}", placeholder, {**known, **found})
    return found


def _scaling(key: str, row: Mapping[str, Any]) -> Scaling | None:
    given = [name for name in ("scale", "by", "healthy", "decades") if name in row]
    if not given and not {"most", "least"} & row.keys():
        return None
    if len(given) < 4 or "log10_of" in row:
        raise _Wrong(key, "must have all of scale, by, healthy and decades and no log10_of, or only one of the two")
    return Scaling(
        row["scale"], row["by"], row["healthy"], row["decades"], row.get("most", math.inf), row.get("least", 0.0)
    )


def _check_sources(key: str, placeholder: Placeholder, known: Mapping[str, Placeholder]) -> None:
    for source in placeholder.sources:
        if source not in known:
            raise _Wrong(key, f'follows from "{source}", which is not a placeholder{suggest(source, known)}')
        if not known[source].is_number or known[source].sources or not placeholder.is_number:
            raise _Wrong(key, f'must be a number that follows from plain numbers but follows from "{source}"')


def _named(weights: Any) -> tuple[float, ...]:
    if not isinstance(weights, list):
        raise _Wrong("named_causes", f"must be a list of weights but got {weights!r}")
    return tuple(_weight(f"named_causes[{position}]", weight) for position, weight in enumerate(weights))


def _weight(key: str, weight: Any) -> float:
    if not _is_number(weight) or not -1 < weight < 1 or weight == 0:
        raise _Wrong(key, f"must be a weight between -1 and 1, and not 0, but got {weight!r}")
    return float(weight)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _text(key: str, value: Any) -> str:
    if value is None:
        raise _Wrong(key, "is missing")
    if not isinstance(value, str) or not value.strip():
        raise _Wrong(key, f"must be a text but got {value!r}")
    return " ".join(value.split())


def _texts(key: str, value: Any) -> tuple[str, ...]:
    if value is None:
        raise _Wrong(key, "is missing")
    if not isinstance(value, list):
        raise _Wrong(key, f"must be a list of texts but got {value!r}")
    return tuple(_text(f"{key}[{position}]", entry) for position, entry in enumerate(value))


def _tries(key: str, value: Any) -> dict[str, str]:
    """Sentences in their order, each with what makes it superfluous, "" for nothing."""
    if not isinstance(value, list):
        _texts(key, value)
    found: dict[str, str] = {}
    for position, entry in enumerate(value):
        at = f"{key}[{position}]"
        row = entry if isinstance(entry, dict) else {"try": entry}
        _check_keys(at, row, ("try", "unless"))
        name = _already(f"{at}.unless", row["unless"]) if "unless" in row else ""
        found[_text(f"{at}.try" if row is entry else at, row.get("try"))] = name
    return found or _refused(key, "must have at least one sentence")


def _already(key: str, value: Any) -> str:
    name = _text(key, value)
    _check_known(key, name, ALREADY, "thing that a script does")
    return name


def _flag(key: str, value: Any) -> bool:
    return value if isinstance(value, bool) else _refused(key, f"must be true or false but got {value!r}")


def _kind(key: str, value: Any) -> str:
    return str(value) if value in _KINDS else _refused(key, f"must be number or text but got {value!r}")


def _models(key: str, value: Any) -> str:
    return str(value) if value in _MODELS else _refused(key, f"must be networks, trees or any but got {value!r}")


def _above_0(key: str, value: Any) -> float:
    good = _is_number(value) and 0 < value < math.inf
    return float(value) if good else _refused(key, f"must be a number above 0 but got {value!r}")


def _decades(key: str, value: Any) -> tuple[int, int]:
    whole = isinstance(value, list) and len(value) == 2 and all(type(each) is int for each in value)
    if not whole or not -30 <= value[0] <= value[1] <= 30:
        raise _Wrong(key, f"must be two powers of ten in order, within -30 to 30, but got {value!r}")
    return value[0], value[1]


def _refused(key: str, reason: str) -> NoReturn:
    raise _Wrong(key, reason)


def _table(key: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _Wrong(key, f"must be a table but got {value!r}")
    return value


def _new(section: str, name: str, known: Iterable[str]) -> str:
    """The key of a new entry, which must be an identifier that is not taken."""
    key = f"{section}.{name}"
    if not _IDENTIFIER.fullmatch(name):
        raise _Wrong(key, "must be named by small letters, digits and underscores, a letter first")
    if name in known:
        raise _Wrong(key, "exists already; choose another name, because files only add entries and replace none")
    return key


def _check_keys(key: str, row: Mapping[str, Any], known: Sequence[str]) -> None:
    for name in row:
        if name not in known:
            path = f"{key}.{name}" if key else name
            raise _Wrong(path, f"is unknown{suggest(name, known) or '; known are ' + ', '.join(known)}")


def _check_known(
    key: str, name: str, known: Iterable[str], what: str, *, also: Iterable[str] = (), cure: str = ""
) -> None:
    if name not in known:
        near = suggest(name, [*known, *also])
        raise _Wrong(key, f'names "{name}", which is not a known {what}{near}{cure}')


#: Readers of the values of an entry, by section: for required keys, then for optional keys.
_KEYS: dict[str, tuple[_Readers, _Readers]] = {
    "causes": (
        {"what_to_try": _tries, "title": _text, "explanation": _text},
        {
            "advice": _texts, "leads_to": _texts, "models": _models, "ruled_out_by": _texts, "ruled_out_if": _already,
            "seen_by": _texts,
            "source": _text,
        },
    ),
    "symptoms": ({"means": _text}, dict.fromkeys(_FLAGS, _flag)),
    "placeholders": (
        {"kind": _kind, "means": _text},
        {
            "otherwise": _text, "log10_of": _text, "scale": _text, "by": _text, "healthy": _above_0,
            "decades": _decades, "most": _above_0, "least": _above_0,
        },
    ),
}  # fmt: skip
