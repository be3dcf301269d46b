"""Knowledge from files: the one in the package, then those of users, each entry checked before anything rests on it."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from watchglass.config import read_toml, suggest
from watchglass.errors import InvalidValueError
from watchglass.records import Cause
from watchglass.rules.knowledge.knowledge import Knowledge, Symptom
from watchglass.rules.knowledge.templates import Placeholder, Scaling, Template, parse_template

#: The knowledge that comes with watchglass.
BUILT_IN_FILE = Path(__file__).with_name("causes.toml")

_IDENTIFIER = re.compile(r"[a-z][a-z0-9_]{0,63}")
_SECTIONS = ("named_causes", "found_nothing", "causes", "symptoms", "groups", "links", "placeholders")
#: Keys of the built-in file alone, which come first.
_OWN = 2
_KINDS = ("number", "text")


class _Wrong(Exception):
    """Something that cannot be so, with its key; the file comes in front."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"{key} {reason}")


@cache
def built_in_knowledge() -> Knowledge:
    """What comes with watchglass, read once."""
    return _added(Knowledge(), BUILT_IN_FILE, own=True)


def load_knowledge(files: Sequence[str | os.PathLike[str]] = ()) -> Knowledge:
    """The built-in knowledge with what files add to it.

    Args:
        files: TOML files in the form of the built-in one. A file may refer to what is built in and to files before it;
            it adds, and replaces nothing.

    Raises:
        MissingFileError: A file does not exist.
        InvalidValueError: Something in a file cannot be so; one line names file and key.
    """
    knowledge = built_in_knowledge()
    for file in files:
        knowledge = _added(knowledge, Path(file))
    return knowledge


def _added(before: Knowledge, path: Path, *, own: bool = False) -> Knowledge:
    data = read_toml(path, "file of causes")
    try:
        _check_keys("", data, _SECTIONS if own else _SECTIONS[_OWN:])
        sections = {name: _table(name, data.get(name, {})) for name in _SECTIONS[_OWN:]}
        placeholders = {**before.placeholders, **_placeholders(sections["placeholders"], before.placeholders)}
        symptoms = {**before.symptoms, **_symptoms(sections["symptoms"], before.symptoms)}
        groups = _groups(sections["groups"], symptoms)
        found = _causes(sections["causes"], before.causes)
        causes = {**before.causes, **found}
        return Knowledge(
            causes=causes,
            symptoms=symptoms,
            links=_links(sections["links"], before.links, symptoms, causes),
            consequences={
                **before.consequences,
                **{name: _leads_to(name, row, symptoms, groups) for name, row in sections["causes"].items()},
            },
            advice={
                **before.advice,
                **{name: _advice(name, row, placeholders) for name, row in sections["causes"].items()},
            },
            placeholders=placeholders,
            ruled_out_by={**before.ruled_out_by, **_rules(sections["causes"], "ruled_out_by")},
            seen_by={**before.seen_by, **_rules(sections["causes"], "seen_by")},
            found_nothing=_weight("found_nothing", data.get("found_nothing")) if own else before.found_nothing,
            named_causes=_named(data.get("named_causes")) if own else before.named_causes,
        )
    except _Wrong as error:
        raise InvalidValueError(f"{path}: {error}") from None


def _causes(table: Mapping[str, Any], known: Mapping[str, Cause]) -> dict[str, Cause]:
    found: dict[str, Cause] = {}
    for name, row in table.items():
        key = _new("causes", name, known)
        row = _table(key, row)
        _check_keys(
            key, row,
            ("title", "explanation", "what_to_try", "advice", "leads_to", "ruled_out_by", "seen_by", "source"),
        )  # fmt: skip
        tries = _texts(f"{key}.what_to_try", row.get("what_to_try"))
        if not tries:
            raise _Wrong(f"{key}.what_to_try", "must have at least one sentence")
        found[name] = Cause(
            name,
            _text(f"{key}.title", row.get("title")),
            _text(f"{key}.explanation", row.get("explanation")),
            tries,
            _text(f"{key}.source", row["source"]) if "source" in row else "",
        )
    return found


def _symptoms(table: Mapping[str, Any], known: Mapping[str, Symptom]) -> dict[str, Symptom]:
    found: dict[str, Symptom] = {}
    for name, row in table.items():
        key = _new("symptoms", name, known)
        row = _table(key, row)
        _check_keys(key, row, ("means", "breaks"))
        breaks = row.get("breaks", False)
        if not isinstance(breaks, bool):
            raise _Wrong(f"{key}.breaks", f"must be true or false but got {breaks!r}")
        found[name] = Symptom(name, _text(f"{key}.means", row.get("means")), breaks)
    return found


def _groups(table: Mapping[str, Any], symptoms: Mapping[str, Symptom]) -> dict[str, tuple[str, ...]]:
    """Names for several symptoms, which hold in their file only."""
    found: dict[str, tuple[str, ...]] = {}
    for name, row in table.items():
        key = _new("groups", name, symptoms)
        found[name] = _texts(key, row)
        for symptom in found[name]:
            _check_known(key, symptom, symptoms, "symptom")
    return found


def _leads_to(
    name: str, row: Mapping[str, Any], symptoms: Mapping[str, Symptom], groups: Mapping[str, tuple[str, ...]]
) -> frozenset[str]:
    key = f"causes.{name}.leads_to"
    found: set[str] = set()
    for entry in _texts(key, row.get("leads_to", [])):
        if entry not in groups:
            _check_known(key, entry, symptoms, "symptom", also=groups)
        found.update(groups.get(entry, (entry,)))
    return frozenset(found)


def _advice(name: str, row: Mapping[str, Any], placeholders: Mapping[str, Placeholder]) -> tuple[Template, ...]:
    found: list[Template] = []
    for position, text in enumerate(_texts(f"causes.{name}.advice", row.get("advice", []))):
        try:
            found.append(parse_template(text, placeholders))
        except ValueError as error:
            raise _Wrong(f"causes.{name}.advice[{position}]", str(error)) from None
    return tuple(found)


def _rules(table: Mapping[str, Any], key: str) -> dict[str, frozenset[str]]:
    """By cause, the rules that a key of it names. One may be a user's, so any name will do."""
    return {name: frozenset(_texts(f"causes.{name}.{key}", row.get(key, []))) for name, row in table.items()}


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
                raise _Wrong(f"{key}.{cause}", f"is there already, with weight {own[cause]:g}; links are only added")
            own[cause] = _weight(f"{key}.{cause}", weight)
    return links


def _placeholders(table: Mapping[str, Any], known: Mapping[str, Placeholder]) -> dict[str, Placeholder]:
    found: dict[str, Placeholder] = {}
    for name, row in table.items():
        key = _new("placeholders", name, known)
        row = _table(key, row)
        _check_keys(key, row, ("kind", "means", "otherwise", "log10_of", "scale", "by", "healthy", "decades", "most"))
        if row.get("kind") not in _KINDS:
            raise _Wrong(f"{key}.kind", f"must be number or text but got {row.get('kind')!r}")
        is_number = row["kind"] == "number"
        if "otherwise" in row and is_number:
            raise _Wrong(f"{key}.otherwise", "is only for texts: a number that is not known leaves its template out")
        found[name] = Placeholder(
            name,
            is_number,
            _text(f"{key}.means", row.get("means")),
            _text(f"{key}.otherwise", row["otherwise"]) if "otherwise" in row else None,
            _scaling(key, row),
            _text(f"{key}.log10_of", row["log10_of"]) if "log10_of" in row else "",
        )
    for name, placeholder in found.items():
        _check_sources(f"placeholders.{name}", placeholder, {**known, **found})
    return found


def _scaling(key: str, row: Mapping[str, Any]) -> Scaling | None:
    given = [name for name in ("scale", "by", "healthy", "decades") if name in row]
    if not given and "most" not in row:
        return None
    if len(given) < 4 or "log10_of" in row:
        raise _Wrong(key, "must have all of scale, by, healthy and decades and no log10_of, or only one of the two")
    healthy, decades, most = row["healthy"], row["decades"], row.get("most", math.inf)
    if not _is_number(healthy) or not 0 < healthy < math.inf:
        raise _Wrong(f"{key}.healthy", f"must be a number above 0 but got {healthy!r}")
    if not _is_number(most) or not most > 0:
        raise _Wrong(f"{key}.most", f"must be a number above 0 but got {most!r}")
    whole = isinstance(decades, list) and len(decades) == 2 and all(type(value) is int for value in decades)
    if not whole or not -30 <= decades[0] <= decades[1] <= 30:
        raise _Wrong(f"{key}.decades", f"must be two powers of ten in order, within -30 to 30, but got {decades!r}")
    return Scaling(
        _text(f"{key}.scale", row["scale"]), _text(f"{key}.by", row["by"]), float(healthy), (decades[0], decades[1]),
        float(most),
    )  # fmt: skip


def _check_sources(key: str, placeholder: Placeholder, known: Mapping[str, Placeholder]) -> None:
    for source in placeholder.sources:
        if source not in known:
            raise _Wrong(key, f'follows from "{source}", which is no placeholder{suggest(source, known)}')
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
        raise _Wrong(key, "is known already; choose another name, since what is known is added to and not replaced")
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
        raise _Wrong(key, f'names "{name}", which is no {what} that is known{near}{cure}')
