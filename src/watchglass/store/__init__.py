"""The run store: where a run's bytes are, what they mean, who may write them. docs/run-format.md specifies it."""

from watchglass.store import layout
from watchglass.store.claim import (
    Claim,
    claim_worker,
    is_alive,
    lease_holder,
    read_claims,
    release_worker,
    this_process,
)
from watchglass.store.codec import (
    SCALAR_DTYPE,
    UnitsBatch,
    decode_catalog,
    decode_facts,
    decode_finding,
    decode_header,
    decode_lifecycle,
    decode_observation,
    decode_raw_index,
    decode_scalars,
    decode_status,
    decode_step_ends,
    decode_units,
    encode_catalog,
    encode_facts,
    encode_finding,
    encode_header,
    encode_lifecycle,
    encode_observation,
    encode_raw_index,
    encode_scalars,
    encode_status,
    encode_step_ends,
    encode_units,
)
from watchglass.store.contract import Entry, Store, check_path
from watchglass.store.frames import Frame, FrameKind, Scan, encode_frame, scan
from watchglass.store.local import LocalStore
from watchglass.store.locations import open_store
from watchglass.store.manifest import (
    Manifest,
    attempts,
    create_attempt,
    create_run,
    read_manifest,
    redact,
)
from watchglass.store.reader import Problem, RunReader, describe
from watchglass.store.statistics import StatisticsBatch, decode_statistics, encode_statistics
from watchglass.store.tensors import RawTensor, read_tensor, write_tensors
from watchglass.store.writer import Clock, JournalWriter, SegmentWriter

__all__ = [
    "SCALAR_DTYPE", "Claim", "Clock", "Entry", "Frame", "FrameKind", "JournalWriter", "LocalStore", "Manifest",
    "Problem", "RawTensor", "RunReader", "Scan", "SegmentWriter", "StatisticsBatch", "Store", "UnitsBatch",
    "attempts", "check_path", "claim_worker", "create_attempt", "create_run", "decode_catalog", "decode_facts",
    "decode_finding", "decode_header", "decode_lifecycle", "decode_observation", "decode_raw_index",
    "decode_scalars", "decode_statistics", "decode_status", "decode_step_ends", "decode_units", "describe",
    "encode_catalog", "encode_facts", "encode_finding", "encode_frame", "encode_header", "encode_lifecycle",
    "encode_observation", "encode_raw_index", "encode_scalars", "encode_statistics", "encode_status",
    "encode_step_ends", "encode_units", "is_alive", "layout", "lease_holder", "open_store", "read_claims",
    "read_manifest", "read_tensor", "redact", "release_worker", "scan", "this_process", "write_tensors",
]  # fmt: skip
