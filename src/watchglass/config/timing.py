"""How long the program waits, and how often it repeats what it repeats. Tests pass shorter times."""

from __future__ import annotations

from dataclasses import dataclass, field

from watchglass.config.evaluator_timing import EvaluatorTiming


@dataclass(frozen=True)
class Timing:
    """Times in seconds, unless a name has another unit. The interval of polls is in the policy of each store."""

    #: Interval at which the recorder's thread copies ended steps into the flight recorder. A shorter one loses fewer
    #: steps to ``kill -9``; each wake-up takes time from the training thread.
    flight_copy_s: float = 0.05
    #: Interval at which the recorder's thread checks for stop requests, while only rows of steady steps come.
    recorder_look_s: float = 0.2
    #: Pauses after writes that the store refused: the first, the longest.
    write_pauses_s: tuple[float, float] = (0.1, 5.0)
    end_look_s: float = 0.1  #: Pause between checks of a thread or process that is about to end.
    #: Longest wait of an ending worker for its upload thread, once uploads have been abandoned.
    sender_end_s: float = 0.5
    #: Pauses between attempts to open a worker's files in an unreachable store: the first, the longest.
    open_pauses_s: tuple[float, float] = (0.25, 15.0)
    silent_end_s: float = 3.0  #: Time for which an ending run waits for its store before it logs the reason.
    #: Pauses between attempts to upload a spooled object: the first, the longest. Each is up to a half shorter, at
    #: random, so that the workers of a run do not return to a store all at once.
    upload_pauses_s: tuple[float, float] = (0.5, 30.0)
    #: Longest wait of an ending worker without progress of its uploads; then the rest stays in the spool.
    upload_patience_s: float = 60.0
    upload_limit_ratio: float = 10.0  #: Longest wait in all, as a multiple of ``upload_patience_s``.
    #: Age at which rings and spools outside of runs are removed if no process has collected them.
    abandoned_file_s: float = 7 * 86400.0
    lease_renewal_s: float = 10.0  #: Interval at which the owner of the journal renews its lease.
    #: Time without a renewal after which an owner counts as dead: three renewals, for a slow store.
    lease_expiry_s: float = 30.0
    compaction_renewal_s: float = 15.0  #: Interval at which a compaction renews its lease.
    #: Time without a renewal after which a compaction on another machine counts as dead: a block of statistics may take
    #: minutes.
    compaction_expiry_s: float = 300.0
    pin_renewal_s: float = 60.0  #: Interval at which a reader renews the pin of the generation that it reads.
    pin_expiry_s: float = 300.0  #: Time after which a pin without a renewal expires.
    clock_skew_s: float = 60.0  #: Largest expected difference between the clocks of two machines.
    #: Interval at which all segments of a run are listed, for clocks that differ by more and for late data.
    full_listing_s: float = 30.0
    #: Time for each request of such a listing, which is spread out: a run of days needs thousands.
    listing_request_s: float = 3.0
    #: Time without new segments after which a worker no longer holds a bucket open: three times the longest flush
    #: interval.
    writer_silence_s: float = 180.0
    #: Time without new segments after which a run on an object store is searched for a new attempt.
    quiet_run_s: float = 10.0
    attempt_probe_s: float = 5.0  #: Pause between these searches.
    #: Interval at which a quiet folder is listed; in between only the newest segments are examined.
    folder_listing_s: float = 0.5
    slow_listing_s: float = 0.005  #: Length of a listing beyond which a pause of four times this length follows.
    #: Longest time that workers need to answer a request, where they check for requests often.
    acknowledgement_s: float = 5.0
    #: Time that a request and its answer may take in addition to the intervals of the store.
    request_slack_s: float = 0.2
    first_rank_s: float = 60.0  #: Longest wait of the other ranks of a launch for the run that rank 0 creates.
    dying_s: float = 2.0  #: Longest time from the death of a launcher to the end of its training process.
    process_look_s: float = 1.0  #: Longest interval between two checks of a launcher's processes.
    sampler_end_s: float = 1.0  #: Longest wait of an ending run for the last samples.
    export_end_s: float = 20.0  #: Longest wait of an ending run for what is left to write for TensorBoard.
    spinner_s: float = 1.0  #: Delay of the first sign of progress on a terminal.
    #: Delay of a line about progress, and pause between these lines, where stderr is no terminal.
    progress_s: float = 15.0
    evaluator: EvaluatorTiming = field(default_factory=EvaluatorTiming)  #: The times of evaluators.


#: The times of the program as it is shipped.
TIMING = Timing()
