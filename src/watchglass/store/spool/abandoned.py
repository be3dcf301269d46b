"""Sends the spool that a dead worker left, or that a living one released."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from watchglass.errors import RunExistsError, StoreError
from watchglass.store.contract import Store
from watchglass.store.spool.folder import AbandonedSpool, SpooledObject, open_abandoned, read_object


def send_abandoned(
    store: Store, name: str, label: Mapping[str, Any], sent: Callable[[str], None] = lambda path: None
) -> int:
    """Send the objects in the folder that a claim names; a second call is harmless.

    Args:
        store: Where the objects belong.
        name: The folder.
        label: The label that it must have.
        sent: Called with the path of each object that is in the store now.

    Returns:
        The number of objects that were sent.

    Raises:
        StoreError: The store or the disk refused. Unsent objects stay, and the call may be repeated.
        RunExistsError: Its writer lives, or the run holds other objects under these names.
    """
    left = open_abandoned(name, label)
    if left is None:
        return 0
    number, done = 0, False
    try:
        for found, content in _contents(left):
            write_once(store, found.path, content, str(label["worker"]))
            found.forget()
            number += 1
            sent(found.path)
        done = True
    finally:
        left.close(discard=done)
    return number


def _contents(left: AbandonedSpool) -> Iterator[tuple[SpooledObject, bytes]]:
    """The objects of a spool in their order, each with its content."""
    try:
        for found in left.objects():
            yield found, read_object(found)
    except OSError as error:
        raise StoreError(f"{left.path} cannot be read: {error}; check the disk") from error


def write_once(store: Store, path: str, content: bytes, worker: str) -> None:
    """Write an object that may be there already, after a lost answer or an earlier sender.

    Raises:
        RunExistsError: There is another one.
        StoreError: The store refused.
    """
    try:
        store.write(path, content)
    except RunExistsError as error:
        if store.size(path) != len(content) or store.read(path, 0, len(content)) != content:
            raise RunExistsError(
                f"{worker} of {store.location} is also written by another process, which wrote {path}; "
                "give each process its own rank"
            ) from error
