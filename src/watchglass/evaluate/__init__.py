"""Evaluation of runs: live in a separate process, or replayed from a stored run, with the same result."""

from typing import TYPE_CHECKING

from watchglass.lazy_imports import lazily

if TYPE_CHECKING:
    from watchglass.evaluate.backtest.backtest import (
        BacktestOutcome as BacktestOutcome,
        Firing as Firing,
        Score as Score,
        TestedRun as TestedRun,
        combinations as combinations,
        front as front,
        judge as judge,
        score as score,
        tested as tested,
        unanswered as unanswered,
    )
    from watchglass.evaluate.backtest.labels import (
        Label as Label,
        labels_of_runs as labels_of_runs,
        read_labels as read_labels,
    )
    from watchglass.evaluate.engine.observing import journal_of as journal_of, tick_of as tick_of
    from watchglass.evaluate.engine.partial import merge as merge
    from watchglass.evaluate.engine.rule_status import Met as Met, PartialEvaluation as PartialEvaluation
    from watchglass.evaluate.engine.windowing import Cutting as Cutting
    from watchglass.evaluate.follower import Follower as Follower
    from watchglass.evaluate.judged_runs import judge_run as judge_run
    from watchglass.evaluate.live.following import (
        OUT_OF_TIME as OUT_OF_TIME,
        Followed as Followed,
        follow as follow,
    )
    from watchglass.evaluate.live.judging import Judging as Judging
    from watchglass.evaluate.live.resending import Resent as Resent, resend as resend
    from watchglass.evaluate.live.restart_without_rule import may_restart as may_restart
    from watchglass.evaluate.live.snapshot import Snapshots as Snapshots
    from watchglass.evaluate.live.ticking import tick_times as tick_times
    from watchglass.evaluate.many.metrics import MetricsServer as MetricsServer
    from watchglass.evaluate.many.prefix import follow_runs as follow_runs, what_is_at as what_is_at
    from watchglass.evaluate.replaying import replay as replay, replay_part as replay_part
    from watchglass.evaluate.scaling.cluster import cluster as cluster
    from watchglass.evaluate.scaling.judging_elsewhere import judging_on as judging_on
    from watchglass.evaluate.scaling.spreading import replay_on_ray as replay_on_ray

if not TYPE_CHECKING:
    __getattr__ = lazily(__name__)
