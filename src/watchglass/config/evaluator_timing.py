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
        folder_s: The longest of these two waits for a folder, which seldom comes back: its disk is full.
        longest_retry_s: Longest pause between two tries of an unreachable store.
        settled_s: Silence after the end of a run that succeeded, before following ends.
        restarted_s: The same for a run that failed, and may be started again.
        answer_s: Pause between looks for the answer of a cluster.
        last_look_s: Time for which an evaluator continues to read after a request to end, during the run.
        harvest_s: Time that another process has to recover the last steps of a worker.
        after_launch_s: Silence, beyond two flush intervals, after which a worker whose launcher saw it end is lost.
        delivery_s: Wait for one delivery to arrive, once the run has ended; later ones become dead letters.
        leaving_s: Wait for deliveries under way, where the evaluator ends before the run.
        reported_wait_s: Wait for deliveries that is reported to the user.
        delivery_look_s: Pause between looks at deliveries.
        delivery_pauses_s: Pauses between tries of a delivery, the first and the longest; they double with each try.
        longest_requested_pause_s: Longest pause that a receiver can request.
        search_s: Pause between searches for new runs, in a folder and in an object store, where they cost requests.
        again_s: Pause before the next try of a run whose store refused.
        held_s: Pause between looks at a run that another evaluator follows, in a folder and in an object store.
        member_end_s: Wait for a store that refuses at the end of one of many runs, while the others wait.
        longest_rest_s: Longest pause between two turns of a quiet run, in a folder and in an object store.
        leased_s: Longest pause between two turns of any run, short enough to keep its lease.
        publish_s: Pause between publications of snapshots.
        quiet_ratio: A quiet run has its next turn after this share of the time for which it has been quiet.
        turns_per_s: Most turns a second of all runs together, in a folder and in an object store.
        search_ratio: Pause after a search in a folder, as a multiple of its length: for new runs, and for the first
            run.
        search_request_s: Pause after a search in an object store, in seconds per request: for new runs, and for the
            first run.
        longest_wait_s: Longest pause between checks for a run that does not exist yet.
        ticks_s: Silence before the first tick, and the longest pause between two ticks.
        outside_stacks_s: Silence after which the stacks of a worker that has recorded none are read from outside.
        standstill_s: Silence after which it is reported where a run stands.
        standstill_steps: The same in steps: also as many times as long as a step takes.
        silent_steps: Number of steps for whose length a worker may be silent.
        deliveries_ratio: Longest wait for all deliveries at the end of a run, as a multiple of the wait for one.
        call_checks_s: Longest pause between two checks of a call of a rule; pause between two attempts to end the call.
        stop_answer_s: Search for workers that a stop must reach, where none is known.
        kill_after_s: From SIGTERM to SIGKILL, for a worker that is stopped.
        death_s: Wait for the death of a delivery that was killed.
        orphaned_s: Time after its limit in which a delivery ends itself if its evaluator is gone.
        termination_s: From the request to end an evaluator to the kill.
        replacement_pauses_s: Pause before each replacement of an evaluator that died. The cause of its end may pass,
            for example a lack of memory.
        hung_s: Silence after which an evaluator counts as hung, if rules may not take longer. An evaluator gives a sign
            of life after each step and each read of the run.
        hung_rules: Number of rules that may use their time limit in one step before an evaluator counts as hung.
        longest_look_s: Largest time that counts between two looks at an evaluator: the process that looks may have been
            stopped, or the machine suspended.
        last_steps_s: Wait of a launcher for the evaluation of the last steps.
        last_steps_of_ranks_s: The same where other ranks may still train.
        last_findings_s: Wait of a script for the last findings of its evaluator.
    """

    lease_s: float = 30.0
    silence_s: float = 60.0
    unreachable_s: float = 300.0
    end_s: float = 60.0
    folder_s: float = 5.0
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
    quiet_ratio: float = 0.05
    turns_per_s: tuple[float, float] = (200.0, 20.0)
    search_ratio: tuple[float, float] = (50.0, 20.0)
    search_request_s: tuple[float, float] = (1.0, 2.0)
    longest_wait_s: float = 5.0
    ticks_s: tuple[float, float] = (1.0, 60.0)
    outside_stacks_s: float = 20.0
    standstill_s: float = 60.0
    standstill_steps: int = 20
    silent_steps: int = 10
    deliveries_ratio: int = 5
    call_checks_s: tuple[float, float] = (2.0, 0.25)
    stop_answer_s: float = 5.0
    kill_after_s: float = 10.0
    death_s: float = 2.0
    orphaned_s: float = 2.0
    termination_s: float = 5.0
    replacement_pauses_s: tuple[float, ...] = (0.0, 5.0, 60.0)
    hung_s: float = 300.0
    hung_rules: int = 10
    longest_look_s: float = 5.0
    last_steps_s: float = 600.0
    last_steps_of_ranks_s: float = 6 * 3600.0
    last_findings_s: float = 10.0
