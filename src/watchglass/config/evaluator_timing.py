"""How long an evaluator waits, and how often it looks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class EvaluatorTiming:
    """Time constants of an evaluator, in seconds. Users set none of them; tests shorten them.

    Attributes:
        lease_s: Wait for an evaluator of an earlier attempt to release the journal.
        silence_s: Silence after which a worker on another machine is lost, once the lifeline is closed.
        unreachable_s: Wait for an unreachable store, once the lifeline is closed.
        end_s: Wait for an unreachable store at the end of following.
        longest_retry_s: Longest pause between two tries of an unreachable store.
        settled_s: Silence after the end of a run that ended in order, before following ends.
        restarted_s: The same of a run that failed, and may be started again.
        answer_s: Pause between looks for the answer of a cluster.
        last_look_s: Time for which an evaluator that is asked to end reads on, while the run goes on.
        harvest_s: Time that another process has to recover the last steps of a worker.
        after_launch_s: Silence, beyond two flush intervals, after which a worker whose launcher saw it end is lost.
        delivery_s: Wait for one delivery to arrive, once the run has ended; later ones become dead letters.
        leaving_s: Wait for deliveries under way, where the evaluator ends before the run.
        reported_wait_s: Wait for deliveries that is reported to the user.
        delivery_look_s: Pause between looks at deliveries.
        delivery_pauses_s: Pauses between tries of a delivery, the first and the longest; they double with each try.
        longest_requested_pause_s: Longest pause that a receiver can request.
        search_s: Pause between searches for new runs, in a folder and in an object store, where they cost requests.
        again_s: Pause before a run is tried again whose store refused.
        held_s: Pause between looks at a run that another evaluator follows, in a folder and in an object store.
        member_end_s: Wait for a store that refuses at the end of one of many runs, while the others wait.
        longest_rest_s: Longest pause between two turns of a quiet run, in a folder and in an object store.
        leased_s: Longest pause between two turns of any run, short enough to keep its lease.
        publish_s: Pause between publications of snapshots.
    """

    lease_s: float = 30.0
    silence_s: float = 60.0
    unreachable_s: float = 300.0
    end_s: float = 60.0
    longest_retry_s: float = 30.0
    settled_s: float = 3.0
    restarted_s: float = 30.0
    answer_s: float = 0.05
    last_look_s: float = 3.0
    harvest_s: float = 30.0
    after_launch_s: float = 5.0
    delivery_s: float = 60.0
    leaving_s: float = 2.0
    reported_wait_s: float = 1.0
    delivery_look_s: float = 0.05
    delivery_pauses_s: tuple[float, float] = (1.0, 300.0)
    longest_requested_pause_s: float = 3600.0
    search_s: tuple[float, float] = (1.0, 30.0)
    again_s: float = 15.0
    held_s: tuple[float, float] = (2.0, 10.0)
    member_end_s: float = 5.0
    longest_rest_s: tuple[float, float] = (5.0, 15.0)
    leased_s: float = 15.0
    publish_s: float = 0.5
