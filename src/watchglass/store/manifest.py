"""The manifest ``run.json`` that makes a folder a run, and the attempts within it."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from watchglass.errors import DamagedDataError, FormatVersionError, MissingFileError, NotARunError, RunExistsError
from watchglass.records import FORMAT_VERSION, count
from watchglass.store import layout
from watchglass.store.claim import Claim
from watchglass.store.contract import Store
from watchglass.store.json_documents import read_document
from watchglass.store.redaction import redact
from watchglass.version import __version__

_PRODUCT = "watchglass"
_MAX_BYTES = 1 << 20
#: Characters of a command line and of one word of it that are kept. JSON may take twelve bytes for each, and a reader
#: reads at most this number of bytes of run.json.
_COMMAND_CHARACTERS, _WORD_CHARACTERS = 1 << 16, 1 << 12


@dataclass(frozen=True)
class Manifest:
    """The manifest of a run."""

    run_id: str  #: 32 hexadecimal digits, unique.
    format: tuple[int, int]  #: (major, minor) of the run format.
    created_ns: int  #: Wall time of creation, nanoseconds since 1970.
    version: str  #: Release of watchglass that created it.
    #: The command line of the run, with secrets replaced by ``[redacted]`` and shortened; may be empty.
    command: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The content of ``run.json``."""
        return {"product": _PRODUCT, **asdict(self)}


def create_run(store: Store, *, command: list[str]) -> Manifest:
    """Make the store a run, or fail without touching anything.

    Args:
        store: Where; must be empty but for hidden files.
        command: The command line of the run; it is written with secrets replaced, and shortened.

    Raises:
        RunExistsError: It is a run already.
        NotARunError: It holds something else.
    """
    if not store.is_empty():
        if store.size(layout.MANIFEST) is not None:
            raise RunExistsError(f"{store.location} is a run already; choose another folder, or resume it on purpose")
        raise NotARunError(f"{store.location} is not empty and not a run; choose an empty or new folder")
    shown = tuple(_shortened(redact(command)))
    manifest = Manifest(uuid.uuid4().hex, FORMAT_VERSION, time.time_ns(), __version__, shown)
    store.write(layout.MANIFEST, json.dumps(manifest.to_json(), indent=1).encode())
    return manifest


def stay_with_run(store: Store) -> None:
    """Create no folders once the run is removed: a remnant would keep the next run from beginning."""
    if store.policy.cheap_lookups and store.size(layout.MANIFEST) is not None:
        store.stay_with(layout.MANIFEST)


def read_manifest(store: Store) -> Manifest:
    """The manifest of a run.

    Raises:
        MissingFileError: There is nothing at that location.
        NotARunError: There is something else, or a manifest that watchglass did not write.
        FormatVersionError: Another major version of the format; newer minor versions are read.
    """
    try:
        data = store.read(layout.MANIFEST, 0, _MAX_BYTES)
    except MissingFileError:
        if store.is_empty():
            raise MissingFileError(
                f"{store.location} does not exist or is empty; give the path of a run, "
                "which `watchglass run` prints when it starts"
            ) from None
        try:
            data = store.read(layout.MANIFEST, 0, _MAX_BYTES)  # it may just have become a run
        except MissingFileError:
            raise _foreign(store, "it holds no run.json") from None
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        raise _foreign(store, "its run.json is not JSON") from None
    return _parse(store, value)


def create_attempt(
    store: Store,
    launch_key: str,
    joins: Callable[[int], bool] = lambda attempt: True,
    *,
    follows: Callable[[int], None] = lambda attempt: None,
    launcher: Claim | None = None,
) -> int:
    """The number of the attempt that this launch belongs to: joined where it exists, else created.

    All processes of one launch pass the same key and so meet in one attempt, in any order.

    Args:
        store: A run.
        launch_key: Names the launch; "" never joins.
        joins: Whether an attempt with this key is of this launch; an earlier launch may have had the same key.
        follows: Called with the newest attempt before one is created after it; may raise. Of several processes that
            create an attempt at once, one succeeds, and it is called again for the others.
        launcher: The process that launches the attempt, for :func:`launcher_of`.
    """
    while True:
        known = attempts(store)
        if known:
            record = layout.attempt_record(known[-1])
            if launch_key and read_document(store, record).get("launch_key") == launch_key and joins(known[-1]):
                return known[-1]
            follows(known[-1])
        number = known[-1] + 1 if known else 0
        begun: dict[str, Any] = {"attempt": number, "launch_key": launch_key, "created_ns": time.time_ns()}
        if launcher is not None:
            begun["launcher"] = launcher.to_json()
        try:
            store.write(layout.attempt_record(number), json.dumps(begun).encode())
        except RunExistsError:
            continue  # another process of this or another launch was first; look again
        return number


def launcher_of(store: Store, attempt: int) -> Claim | None:
    """The process that launched an attempt, None where that is not known."""
    try:
        return Claim.from_json(read_document(store, layout.attempt_record(attempt))["launcher"])
    except (KeyError, DamagedDataError):
        return None


def begun_ns(store: Store, attempt: int) -> int:
    """When an attempt was made, in nanoseconds since 1970; 0 where that is not known."""
    created = read_document(store, layout.attempt_record(attempt)).get("created_ns")
    return created if type(created) is int else 0


def attempts(store: Store) -> list[int]:
    """Numbers of the attempts, oldest first, counted from 0 without gaps."""
    number = 0
    while has_attempt(store, number):
        number += 1
    return list(range(number))


def has_attempt(store: Store, number: int) -> bool:
    """Whether an attempt exists; one small request, where listing would walk every segment."""
    return store.size(layout.attempt_record(number)) is not None


def _shortened(command: list[str]) -> list[str]:
    """``command`` as far as a manifest has room for it, with a last word that counts the omitted ones."""
    shown: list[str] = []
    room = _COMMAND_CHARACTERS
    for word in command:
        if len(word) > _WORD_CHARACTERS:
            word = f"{word[:_WORD_CHARACTERS]}[{len(word) - _WORD_CHARACTERS} more characters]"
        room -= len(word) + 1
        if room < 0:
            return [*shown, f"[{count(len(command) - len(shown), 'more word')}]"]
        shown.append(word)
    return shown


def _parse(store: Store, value: Any) -> Manifest:
    if not isinstance(value, dict) or value.get("product") != _PRODUCT:
        raise _foreign(store, "its run.json was not written by watchglass")
    version = value.get("format")
    if not (isinstance(version, list) and len(version) >= 2 and all(type(n) is int and n >= 0 for n in version)):
        raise _foreign(store, "its run.json has no format version")
    if version[0] != FORMAT_VERSION[0]:
        cure = "upgrade watchglass" if version[0] > FORMAT_VERSION[0] else "read it with the watchglass that wrote it"
        raise FormatVersionError(
            f"{store.location} has format {version[0]}.{version[1]} but this watchglass reads format "
            f"{FORMAT_VERSION[0]}; {cure} (the run was written by {ascii(value.get('version'))[:40]})"
        )
    run_id, created, command = value.get("run_id"), value.get("created_ns"), value.get("command", [])
    if not isinstance(run_id, str) or type(created) is not int or not isinstance(command, list):
        raise _foreign(store, "its run.json lacks run_id or created_ns")
    if not 0 <= created < 1 << 63:  # later than 2262, which no calendar of Python's has
        raise _foreign(store, f"its run.json states that it was created at {ascii(created)[:40]} nanoseconds")
    return Manifest(
        run_id, (version[0], version[1]), created, str(value.get("version", "")), tuple(str(word) for word in command)
    )


def _foreign(store: Store, why: str) -> NotARunError:
    return NotARunError(f"{store.location} is not a run: {why}; give the folder that holds a watchglass run.json")
