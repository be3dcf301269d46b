"""Evaluating runs: live in a process of its own, or replayed from what was stored, with the same result."""

from watchglass.evaluate.diagnosis import diagnose
from watchglass.evaluate.engine import Engine
from watchglass.evaluate.evaluator import Evaluator
from watchglass.evaluate.follower import FollowedWorker, Follower
from watchglass.evaluate.following import Followed, follow
from watchglass.evaluate.replay import Evaluation, replay
from watchglass.evaluate.verdict import verdict

__all__ = [
    "Engine", "Evaluation", "Evaluator", "Followed", "FollowedWorker", "Follower", "diagnose", "follow", "replay",
    "verdict",
]  # fmt: skip
