"""The run store: where a run's bytes are, what they mean, who may write them. docs/run-format.md specifies it."""

from typing import TYPE_CHECKING

from watchglass.lazy_imports import lazily
from watchglass.store import layout as layout

if TYPE_CHECKING:
    from watchglass.store.claim import (
        Claim as Claim,
        claim_worker as claim_worker,
        claimed_workers as claimed_workers,
        claims_of_worker as claims_of_worker,
        claims_of_workers as claims_of_workers,
        holder_of as holder_of,
        is_alive as is_alive,
        is_untouched as is_untouched,
        lease_holder as lease_holder,
        process_age_ns as process_age_ns,
        read_claims as read_claims,
        release_worker as release_worker,
        this_process as this_process,
    )
    from watchglass.store.compaction.compaction import Compaction as Compaction, compact as compact
    from watchglass.store.compaction.pins import Pin as Pin, pin as pin
    from watchglass.store.compaction.removal import (
        Removal as Removal,
        check_idle as check_idle,
        plan_removal as plan_removal,
        remove as remove,
    )
    from watchglass.store.compaction.retention import (
        RawRetention as RawRetention,
        remove_raw as remove_raw,
        was_removed as was_removed,
    )
    from watchglass.store.compaction.segment_compactor import compacted_file as compacted_file
    from watchglass.store.contract import (
        Content as Content,
        Store as Store,
        StoredObject as StoredObject,
        WrapperStore as WrapperStore,
        check_path as check_path,
    )
    from watchglass.store.encoding.codec import (
        JournalRecord as JournalRecord,
        decode_catalog as decode_catalog,
        decode_finding as decode_finding,
        decode_header as decode_header,
        decode_lifecycle as decode_lifecycle,
        decode_observation as decode_observation,
        decode_record as decode_record,
        decode_status as decode_status,
        decode_step_ends as decode_step_ends,
        decode_step_rows as decode_step_rows,
        decode_watermark as decode_watermark,
        encode_catalog as encode_catalog,
        encode_facts as encode_facts,
        encode_header as encode_header,
        encode_lifecycle as encode_lifecycle,
        encode_record as encode_record,
        encode_step_ends as encode_step_ends,
        facts_of as facts_of,
        step_ends as step_ends,
        step_rows as step_rows,
    )
    from watchglass.store.encoding.frames import (
        Frame as Frame,
        FrameKind as FrameKind,
        encode_frame as encode_frame,
        scan as scan,
    )
    from watchglass.store.encoding.rows import (
        decode_rows as decode_rows,
        dtype_of as dtype_of,
        encode_rows as encode_rows,
        holds as holds,
        rows_bytes as rows_bytes,
        table_of as table_of,
    )
    from watchglass.store.encoding.statistics_batch import (
        StatisticsBatch as StatisticsBatch,
        decode_columns as decode_columns,
        decode_histograms as decode_histograms,
        decode_statistics as decode_statistics,
        encode_statistics as encode_statistics,
        has_histograms as has_histograms,
        matrix_of as matrix_of,
    )
    from watchglass.store.encoding.tensors import (
        RawTensor as RawTensor,
        StoredTensor as StoredTensor,
        as_numbers as as_numbers,
        is_storable as is_storable,
        load_tensor as load_tensor,
        write_tensors as write_tensors,
    )
    from watchglass.store.generations import Covered as Covered, newest_generation as newest_generation
    from watchglass.store.json_documents import read_small as read_small
    from watchglass.store.liveness import (
        Attendance as Attendance,
        LaunchEnd as LaunchEnd,
        LeaseWatch as LeaseWatch,
        Renewal as Renewal,
        read_launch_ends as read_launch_ends,
        still_running as still_running,
        write_launch_end as write_launch_end,
    )
    from watchglass.store.locked_files import abandoned_labels as abandoned_labels
    from watchglass.store.manifest import (
        Manifest as Manifest,
        attempts as attempts,
        begun_ns as begun_ns,
        create_attempt as create_attempt,
        create_run as create_run,
        has_attempt as has_attempt,
        launcher_of as launcher_of,
        read_manifest as read_manifest,
    )
    from watchglass.store.media.local import LocalStore as LocalStore
    from watchglass.store.media.locations import open_store as open_store
    from watchglass.store.memory_budget import Charges as Charges, MemoryBudget as MemoryBudget
    from watchglass.store.object_frames import frames_of as frames_of
    from watchglass.store.parquet.reading import ParquetStatistics as ParquetStatistics
    from watchglass.store.policy import PollingIntervals as PollingIntervals, StorePolicy as StorePolicy
    from watchglass.store.reader import Problem as Problem, RunReader as RunReader, describe as describe
    from watchglass.store.redaction import redact as redact, redacted as redacted
    from watchglass.store.rings.ring import (
        ABSENT as ABSENT,
        ABSENT_BITS as ABSENT_BITS,
        LeftBehind as LeftBehind,
        Rings as Rings,
        RowWriter as RowWriter,
        is_absent as is_absent,
        read_rings as read_rings,
    )
    from watchglass.store.rings.ring_paths import (
        owners_of_rings as owners_of_rings,
        rings_exist as rings_exist,
        rings_held as rings_held,
    )
    from watchglass.store.signalling import proof_of_worker as proof_of_worker, signal_owner as signal_owner
    from watchglass.store.spool.abandoned import send_abandoned as send_abandoned
    from watchglass.store.spool.folder import spool_exists as spool_exists
    from watchglass.store.spool.spool import Spool as Spool
    from watchglass.store.writer import (
        JournalWriter as JournalWriter,
        SegmentWriter as SegmentWriter,
        StreamWriter as StreamWriter,
    )

if not TYPE_CHECKING:
    __getattr__ = lazily(__name__)
