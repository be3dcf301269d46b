"""Every path name of a run, made and taken apart in one place."""

from __future__ import annotations

import re
from typing import NamedTuple

from watchglass.errors import InvalidValueError

MANIFEST = "run.json"
JOURNAL = "journal"
LEASE = "journal/lease"
#: Seconds of wall time that share a flush bucket. Buckets make "everything since" one listing.
BUCKET_SECONDS = 60

_WORKER = re.compile(r"[a-z][a-z0-9_]{0,62}\Z")
_SEGMENT = re.compile(r"attempts/(\d{4,9})/segments/(\d{12})/([a-z][a-z0-9_]{0,62})-(\d{8})\Z", re.ASCII)
_JOURNAL = re.compile(r"journal/(\d{8})\Z", re.ASCII)
_CLAIM = re.compile(r"attempts/(\d{4,9})/workers/([a-z][a-z0-9_]{0,62})\.json(?:\.\d+)?\Z", re.ASCII)


class SegmentName(NamedTuple):
    """What the path of a segment says: attempt and sequence count from 0, ``bucket`` is wall seconds // 60."""

    attempt: int
    bucket: int
    worker: str
    seq: int


def check_worker(worker: str) -> str:
    """``worker`` itself, once it can be part of a path: ``worker_0``; lower case, digits and underscores.

    Raises:
        InvalidValueError: It cannot.
    """
    if not _WORKER.match(worker):
        raise InvalidValueError(f"a worker's name must look like 'worker_0' but got {worker[:80]!a}")
    return worker


def worker_name(rank: int) -> str:
    """Name of the worker with a rank: ``worker_3``."""
    return f"worker_{rank}"


def worker_order(worker: str) -> tuple[int, str]:
    """Sort key of workers: by rank, so that ``worker_10`` comes behind ``worker_9``."""
    tail = worker.rpartition("_")[2]
    return (int(tail) if tail.isascii() and tail.isdigit() else -1, worker)


def attempt_path(attempt: int) -> str:
    """Folder of an attempt."""
    return f"attempts/{attempt:04}"


def attempt_record(attempt: int) -> str:
    """The object whose exclusive creation makes the attempt."""
    return f"{attempt_path(attempt)}/attempt.json"


def workers(attempt: int) -> str:
    """Folder of the claims of an attempt."""
    return f"{attempt_path(attempt)}/workers"


def worker_claim(attempt: int, worker: str) -> str:
    """First claim of a worker; later ones (of a restarted process) add ``.1``, ``.2`` and so on."""
    return f"{workers(attempt)}/{check_worker(worker)}.json"


def parse_claim(path: str) -> tuple[int, str] | None:
    """(attempt, worker) of any claim's path, or None."""
    match = _CLAIM.match(path)
    return (int(match[1]), match[2]) if match else None


def segments(attempt: int, bucket: int | None = None) -> str:
    """Folder of the segments of an attempt, or of one flush bucket of it."""
    folder = f"{attempt_path(attempt)}/segments"
    return folder if bucket is None else f"{folder}/{max(bucket, 0):012}"


def segment(attempt: int, bucket: int, worker: str, seq: int) -> str:
    """A segment of a worker."""
    return f"{segments(attempt, bucket)}/{check_worker(worker)}-{seq:08}"


def parse_segment(path: str) -> SegmentName | None:
    """The parts of a segment's path, or None where it is none."""
    match = _SEGMENT.match(path)
    return SegmentName(int(match[1]), int(match[2]), match[3], int(match[4])) if match else None


def tensors(attempt: int, worker: str, seq: int) -> str:
    """A file of raw tensors of a worker, in safetensors format."""
    return f"{attempt_path(attempt)}/tensors/{check_worker(worker)}-{seq:08}.safetensors"


def journal(seq: int) -> str:
    """A segment of the evaluator's journal."""
    return f"{JOURNAL}/{seq:08}"


def parse_journal(path: str) -> int | None:
    """Sequence number of a journal segment's path, or None where it is none."""
    match = _JOURNAL.match(path)
    return int(match[1]) if match else None


def stop_request(attempt: int) -> str:
    """Written by the evaluator: please say which step you are at, a stop is coming."""
    return f"control/stop/{attempt:04}/request"


def stop_seen(attempt: int, worker: str) -> str:
    """A worker's answer to a stop request."""
    return f"control/stop/{attempt:04}/seen/{check_worker(worker)}"


def stop_commit(attempt: int) -> str:
    """Written by the evaluator: the step at which all stop."""
    return f"control/stop/{attempt:04}/commit"
