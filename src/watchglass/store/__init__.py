"""The run store: where a run's bytes are, what they mean, who may write them. docs/run-format.md specifies it."""

from watchglass.store import layout
from watchglass.store.claim import (
    Claim,
    claim_worker,
    claims_of_workers,
    is_alive,
    lease_holder,
    read_claims,
    release_worker,
    this_process,
)
from watchglass.store.codec import (
    REDUCTION_DTYPE,
    SCALAR_DTYPE,
    STEP_END_DTYPE,
    UnitsBatch,
    decode_catalog,
    decode_facts,
    decode_finding,
    decode_header,
    decode_lifecycle,
    decode_observation,
    decode_raw_index,
    decode_reductions,
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
    encode_reductions,
    encode_scalars,
    encode_status,
    encode_step_ends,
    encode_units,
)
from watchglass.store.contract import Content, Entry, Store, check_path
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
from watchglass.store.ring import ABSENT, ABSENT_BITS, LeftBehind, Rings, RowWriter, read_rings, rings_exist
from watchglass.store.statistics import (
    StatisticsBatch,
    decode_histograms,
    decode_statistics,
    encode_statistics,
    has_histograms,
)
from watchglass.store.tensors import RawTensor, is_storable, read_tensor, write_tensors
from watchglass.store.writer import Clock, JournalWriter, SegmentWriter

__all__ = [
    "ABSENT", "ABSENT_BITS", "REDUCTION_DTYPE", "SCALAR_DTYPE", "STEP_END_DTYPE", "Claim", "Clock", "Content",
    "Entry", "Frame", "FrameKind", "JournalWriter", "LeftBehind", "LocalStore", "Manifest", "Problem", "RawTensor",
    "Rings", "RowWriter", "RunReader", "Scan", "SegmentWriter", "StatisticsBatch", "Store", "UnitsBatch", "attempts",
    "check_path", "claim_worker", "claims_of_workers", "create_attempt", "create_run", "decode_catalog",
    "decode_facts", "decode_finding", "decode_header", "decode_histograms", "decode_lifecycle", "decode_observation",
    "decode_raw_index", "decode_reductions", "decode_scalars", "decode_statistics", "decode_status",
    "decode_step_ends", "decode_units", "describe", "encode_catalog", "encode_facts", "encode_finding",
    "encode_frame", "encode_header", "encode_lifecycle", "encode_observation", "encode_raw_index",
    "encode_reductions", "encode_scalars", "encode_statistics", "encode_status", "encode_step_ends", "encode_units",
    "has_histograms", "is_alive", "is_storable", "layout", "lease_holder", "open_store", "read_claims",
    "read_manifest", "read_rings", "read_tensor", "redact", "release_worker", "rings_exist", "scan", "this_process",
    "write_tensors",
]  # fmt: skip
