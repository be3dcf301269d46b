"""How long the program waits, and how often it repeats what it repeats. Tests pass shorter times."""

from __future__ import annotations

from dataclasses import dataclass, field

from watchglass.config.evaluator_timing import EvaluatorTiming


@dataclass(frozen=True)
class Timing:
    """Times in seconds, unless a name has another unit. The interval of polls is in the policy of each kind of store.

    Attributes:
        flight_copy_s: Interval at which the recorder's thread copies ended steps into the flight recorder. A shorter
            one loses fewer steps to ``kill -9``; each wake-up takes time from the training thread.
        recorder_look_s: Interval at which the recorder's thread checks for stop requests, while only rows of steady
            steps come.
        write_pauses_s: Pauses after writes that the store refused: the first, the longest.
        end_look_s: Pause between checks of a thread or process that is about to end.
        sender_end_s: Longest wait of an ending worker for its upload thread, once uploads have been abandoned.
        open_pauses_s: Pauses between attempts to open a worker's files in an unreachable store: the first, the longest.
        silent_end_s: Time for which an ending run waits for its store before it logs the reason.
        upload_pauses_s: Pauses between attempts to upload a spooled object: the first, the longest. Each is up to a
            half shorter, at random, so that the workers of a run do not return to a store all at once.
        upload_patience_s: Longest wait of an ending worker without progress of its uploads; then the rest stays in the
            spool.
        upload_limit_ratio: Longest wait in all, as a multiple of ``upload_patience_s``.
        abandoned_file_s: Age at which rings and spools outside of runs are removed if no process has collected them.
        lease_renewal_s: Interval at which the owner of the journal renews its lease.
        lease_expiry_s: Time without a renewal after which an owner counts as dead: three renewals, for a slow store.
        compaction_renewal_s: Interval at which a compaction renews its lease.
        compaction_expiry_s: Time without a renewal after which a compaction on another machine counts as dead: a block
            of statistics may take minutes.
        pin_renewal_s: Interval at which a reader renews the pin of the generation that it reads.
        pin_expiry_s: Time after which a pin without a renewal expires.
        clock_skew_s: Largest expected difference between the clocks of two machines.
        full_listing_s: Interval at which all segments of a run are listed, for clocks that differ by more and for late
            data.
        listing_request_s: Time for each request of such a listing, which is spread out: a run of days needs thousands.
        writer_silence_s: Time without new segments after which a worker no longer holds a bucket open: three times the
            longest flush interval.
        quiet_run_s: Time without new segments after which a run on an object store is searched for a new attempt.
        attempt_probe_s: Pause between these searches.
        folder_listing_s: Interval at which a quiet folder is listed; in between only the newest segments are examined.
        slow_listing_s: Length of a listing beyond which a pause of four times this length follows.
        acknowledgement_s: Longest time that workers need to answer a request, where they check for requests often.
        request_slack_s: Time that a request and its answer may take in addition to the intervals of the store.
        first_rank_s: Longest wait of the other ranks of a launch for the run that rank 0 creates.
        dying_s: Longest time from the death of a launcher to the end of its training process.
        process_look_s: Longest interval between two checks of a launcher's processes.
        sampler_end_s: Longest wait of an ending run for the last samples.
        spinner_s: Delay of the first sign of progress on a terminal.
        progress_s: Delay of a line about progress, and pause between these lines, where stderr is no terminal.
        evaluator: The times of evaluators.
    """

    flight_copy_s: float = 0.05
    recorder_look_s: float = 0.2
    write_pauses_s: tuple[float, float] = (0.1, 5.0)
    end_look_s: float = 0.1
    sender_end_s: float = 0.5
    open_pauses_s: tuple[float, float] = (0.25, 15.0)
    silent_end_s: float = 3.0
    upload_pauses_s: tuple[float, float] = (0.5, 30.0)
    upload_patience_s: float = 60.0
    upload_limit_ratio: float = 10.0
    abandoned_file_s: float = 7 * 86400.0
    lease_renewal_s: float = 10.0
    lease_expiry_s: float = 30.0
    compaction_renewal_s: float = 15.0
    compaction_expiry_s: float = 300.0
    pin_renewal_s: float = 60.0
    pin_expiry_s: float = 300.0
    clock_skew_s: float = 60.0
    full_listing_s: float = 30.0
    listing_request_s: float = 3.0
    writer_silence_s: float = 180.0
    quiet_run_s: float = 10.0
    attempt_probe_s: float = 5.0
    folder_listing_s: float = 0.5
    slow_listing_s: float = 0.005
    acknowledgement_s: float = 5.0
    request_slack_s: float = 0.2
    first_rank_s: float = 60.0
    dying_s: float = 2.0
    process_look_s: float = 1.0
    sampler_end_s: float = 1.0
    spinner_s: float = 1.0
    progress_s: float = 15.0
    evaluator: EvaluatorTiming = field(default_factory=EvaluatorTiming)


#: The times of the program as it is shipped.
TIMING = Timing()
