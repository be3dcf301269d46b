"""Rule files of users, sent to other machines as text, so that all machines run the same text.

Only the text that the driver read is run. A file at the same path with other content is not used.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from watchglass.config import RuleSpec, file_and_class, names_file, read_regular, seen_from
from watchglass.errors import MissingFileError

#: A file of rules is shorter than this.
_MOST_BYTES = 16 << 20


def read_rule_files(rules: Sequence[RuleSpec]) -> dict[str, str]:
    """The source of every file in the names of rules, by its absolute path.

    Raises:
        MissingFileError: There is no such file, or it is not text.
    """
    found: dict[str, str] = {}
    for path in {file_and_class(rule.name)[0] for rule in rules if names_file(rule.name)}:
        try:
            found[seen_from(path, "")] = read_regular(path, _MOST_BYTES).decode()
        except (OSError, UnicodeDecodeError) as error:
            raise MissingFileError(f"the rule file {path} cannot be read: {error}") from None
    return dict(sorted(found.items()))


def absolute_rules(rules: Sequence[RuleSpec]) -> tuple[RuleSpec, ...]:
    """The same rules for a process in another working directory."""
    return tuple(replace(rule, name=seen_from(rule.name, "")) for rule in rules)


def place_rule_files(
    rules: Sequence[RuleSpec], files: Mapping[str, str]
) -> tuple[tuple[RuleSpec, ...], dict[str, str]]:
    """The rules as this machine names them, and the original path of each file that has another path here.

    A file that exists with the same content is used in its place. Any other is written into a folder of this process,
    which only its user can read and which is removed when the process ends.
    """
    places = {path: _place(path, source.encode()) for path, source in files.items()}
    moved = {here: path for path, here in places.items() if here != path}
    return tuple(_at(rule, lambda path: places.get(path, path)) for rule in rules), moved


def _place(path: str, source: bytes) -> str:
    with suppress(OSError):
        if read_regular(path, _MOST_BYTES) == source:
            return path
    folder = _folder() / hashlib.sha256(path.encode() + b"\0" + source).hexdigest()[:16]
    here = folder / Path(path).name
    if not here.is_file():
        folder.mkdir(exist_ok=True)
        here.write_bytes(source)
    return str(here)


@functools.cache
def _folder() -> Path:
    """The folder of this process."""
    folder = Path(tempfile.mkdtemp(prefix="watchglass-rules-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _at(rule: RuleSpec, place: Callable[[str], str]) -> RuleSpec:
    """A rule with the new path of its file."""
    if not names_file(rule.name):
        return rule
    path, _ = file_and_class(rule.name)
    return replace(rule, name=place(path) + rule.name[len(path) :])
