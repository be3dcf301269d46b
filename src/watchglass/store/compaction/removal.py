"""Removes a run: the objects of its layout and no others, once no process writes or reads it."""

from __future__ import annotations

import re
import stat
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from watchglass.errors import FormatVersionError, MissingFileError, RunExistsError, StoreError
from watchglass.store import claim, layout, manifest
from watchglass.store.claim import Claim, is_alive
from watchglass.store.compaction.pins import pins
from watchglass.store.contract import Store, WrapperStore
from watchglass.store.liveness import claimed
from watchglass.store.media.local import LocalStore, folders_below

#: Everything that a run may consist of. run.json goes last: until then it is a run, and its removal can be repeated.
_OF_A_RUN = re.compile(
    r"""profiler-report\.html
    | attempts/\d{4,9}/attempt\.json
    | attempts/\d{4,9}/workers/[a-z][a-z0-9_]{0,62}\.json(?:\.\d{1,9})?
    | attempts/\d{4,9}/workers/launch-\d{1,9}
    | attempts/\d{4,9}/segments/\d{12}/[a-z][a-z0-9_]{0,62}-\d{8}
    | attempts/\d{4,9}/traces/[a-z][a-z0-9_]{0,62}-\d{8,18}\.json\.gz
    | attempts/\d{4,9}/tensors/[a-z][a-z0-9_]{0,62}-\d{8,12}\.safetensors
    | journal/(?:\d{8}|lease(?:\.\d{1,9})?|renewed|judged)
    | streams/[a-z][a-z0-9_]{0,62}/(?:\d{8}|claim(?:\.\d{1,9})?)
    | dead-letters/[^/]+\.json
    | control/[a-z_]+/\d{4,9}/[a-z0-9_./-]+
    | compacted/(?:lease(?:\.\d{1,9})?|renewed|pins/[0-9a-f]{32}\.json)
    | compacted/\d{8}/manifest\.json
    | compacted/\d{8}/\d{4,9}/[a-z][a-z0-9_]{0,62}(?:\.frames|-\d{5,9}\.parquet)
    """,
    re.ASCII | re.VERBOSE,
)
#: Names of files that are no part of a run but lie in its folders: rings, and what was being written.
_HIDDEN = re.compile(r"\.wg-|\.[a-z0-9_.-]+\.(?:rows|entries)\Z", re.ASCII)
#: Folders of a run that may contain such files, in addition to the run's own folder.
_FOLDERS = (layout.JOURNAL, layout.COMPACTED, "attempts", "control")


@dataclass(frozen=True)
class Removal:
    """The objects of a run."""

    paths: tuple[str, ...]  #: Its objects, in the order in which they are deleted.
    #: Rings and temporary files in its folders, and FIFOs and sockets in place of objects, on this machine.
    hidden: tuple[Path, ...]
    bytes: int  #: Length of all of them.
    foreign: tuple[str, ...]  #: Objects at its location that are no part of it; they stay.


class _WithoutOtherKinds(WrapperStore):
    """A store in which a FIFO or a device in place of an object is missing: no process holds it."""

    def read(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        if self.behind().size(path) is None:
            raise MissingFileError(f"{path} is no object of {self.location}; make sure that the path is right")
        return super().read(path, start, end)


def plan_removal(store: Store) -> Removal:
    """The objects that a removal of the run would delete.

    Raises:
        MissingFileError: There is nothing.
        NotARunError: There is something else.
    """
    with suppress(FormatVersionError):  # a run all the same
        manifest.read_manifest(store)
    paths, foreign, size = [], [], 0
    for entry in store.list():
        if entry.path != layout.MANIFEST and _OF_A_RUN.fullmatch(entry.path):
            paths.append(entry.path)
            size += entry.size
        elif entry.path == layout.MANIFEST:
            size += entry.size
        else:
            foreign.append(entry.path)
    hidden, others = _beside(store)
    for path in hidden:
        with suppress(OSError):
            size += path.lstat().st_size
    return Removal((*paths, layout.MANIFEST), tuple(hidden), size, (*foreign, *others))


def check_idle(store: Store, *, even_if_unseen: bool = False) -> None:
    """Make sure that no process writes, follows or compacts a run.

    Args:
        store: The store of the run.
        even_if_unseen: Ignore processes on other machines that never reported their end.

    Raises:
        RunExistsError: A process does; the message names it.
    """
    for attempt in manifest.attempts(store):
        for worker, claims, ended in claimed(store, attempt):
            if claims:
                _refuse(store, claims[-1], f"{worker} writes it", even_if_unseen or ended)
            elif not even_if_unseen:
                raise RunExistsError(
                    f"{store.location} may be in use: the claim of {worker} in attempt {attempt} cannot be read; make "
                    "sure that its process has ended, then use --force"
                )
    streams = [name for name in store.folders(layout.STREAMS) if layout.is_stream(name)]
    claims_of_streams = [(layout.stream_claim(name), f"writes stream {name} of it") for name in streams]
    for path, what in (
        (layout.LEASE, "evaluates it"), (layout.COMPACTION_LEASE, "compacts it"), *claims_of_streams,
    ):  # fmt: skip
        holder = claim.holder_of(_WithoutOtherKinds(store), path)
        if holder is not None:
            _refuse(store, holder, f"a process {what}", even_if_unseen)
    now_ns = time.time_ns()
    for pin in pins(store):
        if pin.holds(now_ns):
            _refuse(store, pin.holder, "a process reads it", even_if_unseen)


def remove(store: Store, removal: Removal) -> None:
    """Delete what :func:`plan_removal` gave, run.json last. A removal that was interrupted can be done again.

    Raises:
        StoreError: The store refused.
    """
    for hidden in removal.hidden:
        try:
            hidden.unlink(missing_ok=True)
        except OSError as error:
            raise StoreError(f"cannot delete {hidden}: {error.strerror or error}; check its folder") from error
    for path in removal.paths:
        store.delete(path)
    store.prune()


def _refuse(store: Store, holder: Claim, what: str, even_if_unseen: bool) -> None:
    alive = is_alive(holder)
    if alive:
        raise RunExistsError(
            f"{store.location} is in use: {what} (process {holder.pid}, which is running); stop it first"
        )
    if alive is None and not even_if_unseen:
        raise RunExistsError(
            f"{store.location} may be in use: {what} (process {holder.pid} on {holder.host}, which is not visible "
            "from this machine); make sure that it has ended, then use --force"
        )


def _beside(store: Store) -> tuple[list[Path], list[str]]:
    """Files that no listing of a store has: those of a run in a local folder, and those that are no part of it.

    Those of a run are hidden files, and FIFOs and sockets in place of objects. Links are neither followed nor deleted.
    """
    hidden: list[Path] = []
    foreign: list[str] = []
    if not isinstance(store, LocalStore):
        return hidden, foreign
    for at, names in folders_below(store.root):
        inside = at.relative_to(store.root).parts
        for name in names:
            with suppress(FileNotFoundError):  # a temporary file that has its final name now
                path, mode = "/".join((*inside, name)), (at / name).lstat().st_mode
                in_place = _OF_A_RUN.fullmatch(path) and (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode))
                ours = stat.S_ISREG(mode) and _HIDDEN.match(name) and (not inside or inside[0] in _FOLDERS)
                if in_place or ours:
                    hidden.append(at / name)
                elif not stat.S_ISREG(mode):
                    foreign.append(path)
    return hidden, foreign
