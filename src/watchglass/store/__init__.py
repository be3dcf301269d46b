"""The run store: where a run's bytes are, what they mean, who may write them. docs/run-format.md specifies it."""

from typing import TYPE_CHECKING

from watchglass.lazy_imports import lazily
from watchglass.store import layout

if TYPE_CHECKING:
    from watchglass.store.claim import (
        Claim,
        claim_worker,
        claims_of_worker,
        claims_of_workers,
        is_alive,
        is_untouched,
        lease_holder,
        read_claims,
        release_worker,
        this_process,
    )
    from watchglass.store.compaction.compaction import Compaction, compact
    from watchglass.store.compaction.condensing import CompactedFile, compacted_file
    from watchglass.store.compaction.generations import Covered, Generation, newest_generation
    from watchglass.store.compaction.pins import Pin, pin
    from watchglass.store.compaction.removal import Removal, check_idle, plan_removal, remove
    from watchglass.store.compaction.retention import RawRetention, remove_raw, was_removed
    from watchglass.store.contract import Buffer, Content, Entry, Store, check_path
    from watchglass.store.encoding.codec import (
        decode_catalog,
        decode_facts,
        decode_finding,
        decode_header,
        decode_lifecycle,
        decode_observation,
        decode_raw_index,
        decode_status,
        decode_step_ends,
        decode_step_rows,
        decode_watermark,
        encode_catalog,
        encode_facts,
        encode_finding,
        encode_header,
        encode_lifecycle,
        encode_observation,
        encode_raw_index,
        encode_status,
        encode_step_ends,
        encode_watermark,
        step_ends,
        step_rows,
    )
    from watchglass.store.encoding.frames import Frame, FrameKind, Scan, encode_frame, scan
    from watchglass.store.encoding.rows import decode_rows, dtype_of, encode_rows, rows_bytes, table_of
    from watchglass.store.encoding.statistics import (
        StatisticsBatch,
        decode_columns,
        decode_histograms,
        decode_statistics,
        encode_statistics,
        has_histograms,
        statistics_matrix,
    )
    from watchglass.store.encoding.tensors import (
        RawTensor,
        StoredTensor,
        as_numbers,
        is_storable,
        load_tensor,
        read_tensor,
        write_tensors,
    )
    from watchglass.store.liveness import (
        LEASE_EXPIRY_S,
        Attendance,
        LaunchEnd,
        Renewal,
        RenewalWatch,
        read_launch_ends,
        still_running,
        write_launch_end,
    )
    from watchglass.store.manifest import (
        Manifest,
        attempts,
        begun_ns,
        create_attempt,
        create_run,
        has_attempt,
        launcher_of,
        read_manifest,
    )
    from watchglass.store.media.local import LocalStore
    from watchglass.store.media.locations import open_store
    from watchglass.store.memory import Charges, MemoryBudget
    from watchglass.store.pace import Pace, pace_of
    from watchglass.store.parquet.statistics import ParquetStatistics
    from watchglass.store.reader import Problem, RunReader, describe
    from watchglass.store.redaction import redact, redacted
    from watchglass.store.rings.places import owners_of_rings, rings_exist, rings_held
    from watchglass.store.rings.ring import (
        ABSENT,
        ABSENT_BITS,
        LeftBehind,
        Rings,
        RowWriter,
        left_on_this_machine,
        read_rings,
    )
    from watchglass.store.signalling import signal_owner
    from watchglass.store.spool.folder import spool_exists
    from watchglass.store.spool.left import send_left
    from watchglass.store.spool.sending import PATIENCE_S
    from watchglass.store.spool.spool import Spool
    from watchglass.store.writer import Clock, JournalWriter, SegmentWriter, StreamWriter

_HOMES = {
    "claim": (
        "Claim", "claim_worker", "claims_of_worker", "claims_of_workers", "is_alive", "is_untouched", "lease_holder",
        "read_claims", "release_worker", "this_process",
    ),
    "compaction.compaction": ("Compaction", "compact"),
    "compaction.condensing": ("CompactedFile", "compacted_file"),
    "compaction.generations": ("Covered", "Generation", "newest_generation"),
    "compaction.pins": ("Pin", "pin"),
    "compaction.removal": ("Removal", "check_idle", "plan_removal", "remove"),
    "compaction.retention": ("RawRetention", "remove_raw", "was_removed"),
    "contract": ("Buffer", "Content", "Entry", "Store", "check_path"),
    "encoding.codec": (
        "decode_catalog", "decode_facts",
        "decode_finding", "decode_header", "decode_lifecycle", "decode_observation", "decode_raw_index",
        "decode_status", "decode_step_ends", "decode_step_rows", "decode_watermark", "encode_catalog",
        "encode_facts", "encode_finding", "encode_header", "encode_lifecycle", "encode_observation",
        "encode_raw_index", "encode_status", "encode_step_ends", "encode_watermark", "step_ends", "step_rows",
    ),
    "encoding.frames": ("Frame", "FrameKind", "Scan", "encode_frame", "scan"),
    "encoding.rows": ("decode_rows", "dtype_of", "encode_rows", "rows_bytes", "table_of"),
    "encoding.statistics": (
        "StatisticsBatch", "decode_columns", "decode_histograms", "decode_statistics", "encode_statistics",
        "has_histograms", "statistics_matrix",
    ),
    "encoding.tensors": (
        "RawTensor", "StoredTensor", "as_numbers", "is_storable", "load_tensor", "read_tensor", "write_tensors",
    ),
    "liveness": (
        "LEASE_EXPIRY_S", "Attendance", "LaunchEnd", "Renewal", "RenewalWatch", "read_launch_ends",
        "still_running", "write_launch_end",
    ),
    "manifest": (
        "Manifest", "attempts", "begun_ns", "create_attempt", "create_run", "has_attempt", "launcher_of",
        "read_manifest",
    ),
    "media.local": ("LocalStore",),
    "media.locations": ("open_store",),
    "memory": ("Charges", "MemoryBudget"),
    "pace": ("Pace", "pace_of"),
    "parquet.statistics": ("ParquetStatistics",),
    "reader": ("Problem", "RunReader", "describe"),
    "redaction": ("redact", "redacted"),
    "rings.places": ("owners_of_rings", "rings_exist", "rings_held"),
    "rings.ring": (
        "ABSENT", "ABSENT_BITS", "LeftBehind", "Rings", "RowWriter", "left_on_this_machine", "read_rings",
    ),
    "signalling": ("signal_owner",),
    "spool.folder": ("spool_exists",),
    "spool.left": ("send_left",),
    "spool.sending": ("PATIENCE_S",),
    "spool.spool": ("Spool",),
    "writer": ("Clock", "JournalWriter", "SegmentWriter", "StreamWriter"),
}  # fmt: skip

__all__ = [
    "ABSENT",
    "ABSENT_BITS",
    "LEASE_EXPIRY_S",
    "PATIENCE_S",
    "Attendance",
    "Buffer",
    "Charges",
    "Claim",
    "Clock",
    "CompactedFile",
    "Compaction",
    "Content",
    "Covered",
    "Entry",
    "Frame",
    "FrameKind",
    "Generation",
    "JournalWriter",
    "LaunchEnd",
    "LeftBehind",
    "LocalStore",
    "Manifest",
    "MemoryBudget",
    "Pace",
    "ParquetStatistics",
    "Pin",
    "Problem",
    "RawRetention",
    "RawTensor",
    "Removal",
    "Renewal",
    "RenewalWatch",
    "Rings",
    "RowWriter",
    "RunReader",
    "Scan",
    "SegmentWriter",
    "Spool",
    "StatisticsBatch",
    "Store",
    "StoredTensor",
    "StreamWriter",
    "as_numbers",
    "attempts",
    "begun_ns",
    "check_idle",
    "check_path",
    "claim_worker",
    "claims_of_worker",
    "claims_of_workers",
    "compact",
    "compacted_file",
    "create_attempt",
    "create_run",
    "decode_catalog",
    "decode_columns",
    "decode_facts",
    "decode_finding",
    "decode_header",
    "decode_histograms",
    "decode_lifecycle",
    "decode_observation",
    "decode_raw_index",
    "decode_rows",
    "decode_statistics",
    "decode_status",
    "decode_step_ends",
    "decode_step_rows",
    "decode_watermark",
    "describe",
    "dtype_of",
    "encode_catalog",
    "encode_facts",
    "encode_finding",
    "encode_frame",
    "encode_header",
    "encode_lifecycle",
    "encode_observation",
    "encode_raw_index",
    "encode_rows",
    "encode_statistics",
    "encode_status",
    "encode_step_ends",
    "encode_watermark",
    "has_attempt",
    "has_histograms",
    "is_alive",
    "is_storable",
    "is_untouched",
    "launcher_of",
    "layout",
    "lease_holder",
    "left_on_this_machine",
    "load_tensor",
    "newest_generation",
    "open_store",
    "owners_of_rings",
    "pace_of",
    "pin",
    "plan_removal",
    "read_claims",
    "read_launch_ends",
    "read_manifest",
    "read_rings",
    "read_tensor",
    "redact",
    "redacted",
    "release_worker",
    "remove",
    "remove_raw",
    "rings_exist",
    "rings_held",
    "rows_bytes",
    "scan",
    "send_left",
    "signal_owner",
    "spool_exists",
    "statistics_matrix",
    "step_ends",
    "step_rows",
    "still_running",
    "table_of",
    "this_process",
    "was_removed",
    "write_launch_end",
    "write_tensors",
]  # fmt: skip

if not TYPE_CHECKING:
    __getattr__ = lazily(__name__, _HOMES)
