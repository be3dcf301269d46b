"""Every path name of a run, made and taken apart in one place."""

from __future__ import annotations

import re
from typing import NamedTuple

from watchglass.errors import InvalidValueError

MANIFEST = "run.json"
JOURNAL = "journal"
#: The report on time and machine, which a launcher writes; no reader of runs reads it.
PROFILER_REPORT = "profiler-report.html"
LEASE = "journal/lease"
STREAMS = "streams"
DEAD_LETTERS = "dead-letters"
COMPACTED = "compacted"
COMPACTION_LEASE = "compacted/lease"
#: Renewed by the process that compacts.
COMPACTION_RENEWED = "compacted/renewed"
PINS = "compacted/pins"
#: Renewed by the holder of the journal's lease.
LEASE_RENEWED = "journal/renewed"
#: Written by an evaluator that has judged all of an ended run.
JUDGED = "journal/judged"
#: Seconds of wall time that share a flush bucket. Buckets make "everything since" one listing.
BUCKET_SECONDS = 60

_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}\Z")
_SEGMENT = re.compile(r"attempts/(\d{4,9})/segments/(\d{12})/([a-z][a-z0-9_]{0,62})-(\d{8})\Z", re.ASCII)
_NUMBERED = re.compile(r"/(\d{8})\Z", re.ASCII)
_CLAIM = re.compile(r"attempts/(\d{4,9})/workers/([a-z][a-z0-9_]{0,62})\.json(?:\.(\d{1,9}))?\Z", re.ASCII)
_LAUNCH_END = re.compile(r"attempts/(\d{4,9})/workers/launch-(\d{1,9})\Z", re.ASCII)
_TENSORS = re.compile(r"attempts/(\d{4,9})/tensors/([a-z][a-z0-9_]{0,62})-(\d{8,12})\.safetensors\Z", re.ASCII)
_TRACE = re.compile(r"attempts/\d{4,9}/traces/([a-z][a-z0-9_]{0,62})-\d{8,18}\.json\.gz\Z", re.ASCII)
_GENERATION = re.compile(r"\d{8}\Z", re.ASCII)


class SegmentName(NamedTuple):
    """The parts of a segment's path: attempt and sequence count from 0, ``bucket`` is wall seconds // 60."""

    attempt: int
    bucket: int
    worker: str
    seq: int


def check_worker(worker: str) -> str:
    """``worker`` itself, once it can be part of a path: ``worker_0``; lower case, digits and underscores.

    Raises:
        InvalidValueError: It cannot.
    """
    if not _NAME.match(worker):
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


def parse_claim(path: str) -> tuple[int, str, int] | None:
    """(attempt, worker, which of its claims from 0 on) of any claim's path, or None."""
    match = _CLAIM.match(path)
    return (int(match[1]), match[2], int(match[3] or 0)) if match else None


def launch_end(attempt: int, rank: int) -> str:
    """Written by a launcher whose training process has ended."""
    return f"{workers(attempt)}/launch-{rank}"


def parse_launch_end(path: str) -> tuple[int, int] | None:
    """(attempt, rank) of the path that :func:`launch_end` gave, or None."""
    match = _LAUNCH_END.match(path)
    return (int(match[1]), int(match[2])) if match else None


def trace(attempt: int, worker: str, first_step: int) -> str:
    """A trace of PyTorch's profiler, of the window that begins with a TRAIN step."""
    return f"{attempt_path(attempt)}/traces/{check_worker(worker)}-{first_step:08}.json.gz"


def worker_of_trace(path: str) -> str | None:
    """The worker for which :func:`trace` gave this path; None for any other path."""
    found = _TRACE.match(path)
    return found[1] if found else None


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


def parse_tensors(path: str) -> tuple[int, str, int] | None:
    """(attempt, worker, seq) of the path of a file of raw tensors, or None."""
    match = _TENSORS.match(path)
    return (int(match[1]), match[2], int(match[3])) if match else None


def retention(attempt: int, worker: str) -> str:
    """Notes which files of raw tensors of a worker retention has removed."""
    return f"control/retention/{attempt:04}/{check_worker(worker)}"


def is_stream(name: str) -> bool:
    """Whether a folder right below :data:`STREAMS` can be a stream."""
    return _NAME.match(name) is not None


def stream(name: str) -> str:
    """Folder of a stream; its name has lower case letters, digits and underscores.

    Raises:
        InvalidValueError: It cannot be part of a path.
    """
    if not is_stream(name):
        raise InvalidValueError(f"a stream's name must look like 'system' but got {name[:80]!a}")
    return f"{STREAMS}/{name}"


def stream_claim(name: str) -> str:
    """First claim of a stream; later ones add ``.1``, ``.2`` and so on."""
    return f"{stream(name)}/claim"


def numbered(folder: str, seq: int) -> str:
    """A segment of the journal, or of a stream, in its folder."""
    return f"{folder}/{seq:08}"


def parse_numbered(folder: str, path: str) -> int | None:
    """Sequence number of the path that :func:`numbered` gave for a folder, or None where it is none."""
    match = _NUMBERED.fullmatch(path, len(folder)) if path.startswith(folder) else None
    return int(match[1]) if match else None


def generation(number: int) -> str:
    """Folder of a generation of compacted data, counted from 1."""
    return f"{COMPACTED}/{number:08}"


def parse_generation(name: str) -> int | None:
    """Number of the generation that a folder right below :data:`COMPACTED` holds, or None where it holds none."""
    return int(name) if _GENERATION.match(name) and int(name) else None


def generation_manifest(number: int) -> str:
    """The manifest of a generation; it is written last and makes the generation valid."""
    return f"{generation(number)}/manifest.json"


def compacted_frames(number: int, attempt: int, worker: str) -> str:
    """All frames of a worker but statistics, in one object."""
    return f"{generation(number)}/{attempt:04}/{check_worker(worker)}.frames"


def compacted_statistics(number: int, attempt: int, worker: str, block: int) -> str:
    """Statistics of a block of steps of a worker, as Parquet."""
    return f"{generation(number)}/{attempt:04}/{check_worker(worker)}-{block:05}.parquet"


def pin(name: str) -> str:
    """A reader whose generation and segments must not be deleted."""
    return f"{PINS}/{name}.json"


def control_request(kind: str, attempt: int, number: int = 0) -> str:
    """Written by the evaluator: the request of a change, the ``number``-th of its kind."""
    return f"control/{kind}/{attempt:04}/{number:04}/request"


def control_seen(kind: str, attempt: int, number: int, worker: str) -> str:
    """A worker's acknowledgement of a request."""
    return f"control/{kind}/{attempt:04}/{number:04}/seen/{check_worker(worker)}"


def control_commit(kind: str, attempt: int, number: int = 0) -> str:
    """Written by the evaluator: the step at which all workers act."""
    return f"control/{kind}/{attempt:04}/{number:04}/commit"


def dead_letter(action: str, event: str) -> str:
    """An event that an action could not deliver, with the reason.

    Args:
        action: Name of the action, an identifier.
        event: Identifier of the event.
    """
    return f"{DEAD_LETTERS}/{action}-{event}.json"
