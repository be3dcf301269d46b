"""How long the program waits, and how often it repeats what it repeats. Tests pass shorter times."""

from __future__ import annotations

from dataclasses import dataclass, field

from watchglass.config.evaluator_timing import EvaluatorTiming


@dataclass(frozen=True)
class Timing:
    """Seconds, unless a name says otherwise. How often a store is polled is in its policy, by kind of store.

    Attributes:
        flight_copy_s: The recorder's thread copies ended steps into the flight recorder. Shorter pauses lose fewer
            steps to ``kill -9``; each wake-up takes time from the training thread.
        recorder_look_s: The recorder's thread looks for stop requests, and sleeps while only rows of steady steps come.
        write_pauses_s: Pauses after writes that the store refused: the first, the longest.
        end_look_s: Pause between looks at a thread or process that is about to end.
        sender_end_s: The end of a worker waits so long for the thread that uploads, once it has given up.
        open_pauses_s: Pauses between attempts to open a worker's files in an unreachable store: the first, the longest.
        silent_end_s: The end of a run waits so long for its store before it logs why.
        upload_pauses_s: Pauses between attempts to upload a spooled object: the first, the longest. Each is up to a
            half shorter, at random, so that the workers of a run do not return to a store all at once.
        upload_patience_s: The end of a worker waits so long without progress of its uploads, then leaves the rest in
            the spool.
        upload_limit_ratio: It waits at most so many times as long in all.
        abandoned_file_s: Age at which rings and spools outside of runs are removed; nothing collected them.
        lease_renewal_s: The owner of the journal renews its lease.
        lease_expiry_s: An owner without a renewal for so long counts as gone: three renewals, for a slow store.
        compaction_renewal_s: A compaction renews its lease.
        compaction_expiry_s: One on another machine without a renewal for so long counts as gone: a block of statistics
            may take minutes.
        pin_renewal_s: A reader renews the pin of the generation that it reads.
        pin_expiry_s: A pin holds so long unless it is renewed.
        clock_skew_s: Clocks of two machines may differ by so much.
        full_listing_s: All segments of a run are listed, for clocks that differ by more and for late data.
        listing_request_s: Each request of such a listing is spread over so long: a run of days needs thousands.
        writer_silence_s: A worker without new segments for so long no longer holds a bucket open: three times the
            longest flush interval.
        quiet_run_s: A run without new segments for so long is searched for a new attempt, on an object store.
        attempt_probe_s: Pause between these searches.
        folder_listing_s: A quiet folder is listed; in between only the newest segments are examined.
        slow_listing_s: A listing that takes longer is followed by a pause of four times its length.
        acknowledgement_s: Workers may take so long to answer a request, where they look often.
        request_slack_s: A request and its answer may take so much longer than the intervals of the store.
        first_rank_s: The other ranks of a launch wait so long for the run that rank 0 creates.
        dying_s: Longest time from the death of a launcher to the end of its training process.
        process_look_s: A launcher looks at its processes at least so often.
        sampler_end_s: The end of a run waits so long for the last samples.
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
