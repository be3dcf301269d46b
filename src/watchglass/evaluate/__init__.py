"""Evaluating runs: live in a process of its own, or replayed from what was stored, with the same result."""

from typing import TYPE_CHECKING

from watchglass.lazy_imports import lazily

if TYPE_CHECKING:
    from watchglass.evaluate.backtest.backtest import (
        Firing,
        Outcome,
        Score,
        TestedRun,
        combinations,
        front,
        judge,
        score,
        tested,
        unanswered,
    )
    from watchglass.evaluate.backtest.labels import Label, labels_of_runs, read_labels
    from watchglass.evaluate.diagnosis import diagnose
    from watchglass.evaluate.engine.observing import journal_of, tick_of
    from watchglass.evaluate.engine.partial import merge
    from watchglass.evaluate.engine.standing import PartialEvaluation
    from watchglass.evaluate.engine.windowing import Cutting
    from watchglass.evaluate.evaluation import Evaluation
    from watchglass.evaluate.explanation import explain, find_findings
    from watchglass.evaluate.follower import Follower
    from watchglass.evaluate.judgement import is_judged, verdict
    from watchglass.evaluate.live.anew import starting_anew
    from watchglass.evaluate.live.judging import Judging
    from watchglass.evaluate.live.resending import Resent, resend
    from watchglass.evaluate.live.ticking import tick_times
    from watchglass.evaluate.many.following import OUT_OF_TIME, follow, follow_runs, what_is_at
    from watchglass.evaluate.many.member import Followed
    from watchglass.evaluate.many.metrics import MetricsServer
    from watchglass.evaluate.many.snapshot import Snapshots
    from watchglass.evaluate.replaying import replay, replay_part
    from watchglass.evaluate.scaling.cluster import cluster
    from watchglass.evaluate.scaling.judging_elsewhere import judging_on
    from watchglass.evaluate.scaling.spreading import replay_on_ray

_HOMES = {
    "backtest.backtest": (
        "Firing", "Outcome", "Score", "TestedRun", "combinations", "front", "judge", "score", "tested", "unanswered",
    ),
    "backtest.labels": ("Label", "labels_of_runs", "read_labels"),
    "diagnosis": ("diagnose",),
    "engine.observing": ("journal_of", "tick_of"),
    "engine.partial": ("merge",),
    "engine.standing": ("PartialEvaluation",),
    "engine.windowing": ("Cutting",),
    "evaluation": ("Evaluation",),
    "explanation": ("explain", "find_findings"),
    "follower": ("Follower",),
    "live.anew": ("starting_anew",),
    "live.judging": ("Judging",),
    "live.resending": ("Resent", "resend"),
    "live.ticking": ("tick_times",),
    "many.following": ("OUT_OF_TIME", "follow", "follow_runs", "what_is_at"),
    "many.member": ("Followed",),
    "many.metrics": ("MetricsServer",),
    "many.snapshot": ("Snapshots",),
    "replaying": ("replay", "replay_part"),
    "scaling.cluster": ("cluster",),
    "scaling.judging_elsewhere": ("judging_on",),
    "scaling.spreading": ("replay_on_ray",),
    "judgement": ("is_judged", "verdict"),
}  # fmt: skip

__all__ = [
    "OUT_OF_TIME",
    "Cutting",
    "Evaluation",
    "Firing",
    "Followed",
    "Follower",
    "Judging",
    "Label",
    "MetricsServer",
    "Outcome",
    "PartialEvaluation",
    "Resent",
    "Score",
    "Snapshots",
    "TestedRun",
    "cluster",
    "combinations",
    "diagnose",
    "explain",
    "find_findings",
    "follow",
    "follow_runs",
    "front",
    "is_judged",
    "journal_of",
    "judge",
    "judging_on",
    "labels_of_runs",
    "merge",
    "read_labels",
    "replay",
    "replay_on_ray",
    "replay_part",
    "resend",
    "score",
    "starting_anew",
    "tested",
    "tick_of",
    "tick_times",
    "unanswered",
    "verdict",
    "what_is_at",
]  # fmt: skip

if not TYPE_CHECKING:
    __getattr__ = lazily(__name__, _HOMES)
