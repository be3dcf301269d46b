"""What rules read from learning rates, of one group of parameters and of several."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from moments import views_shown
from watchglass.evaluate import Follower
from watchglass.rules import learning_rates, signals
from watchglass.store import LocalStore
from watchglass.tables import StepView
from watchglass.testing import RunBuilder, Step

FACTS = {
    "model": {"module_kinds": {"layer": "attention"}, "module_types": {"layer": "MultiheadAttention"}},
    "optimizer": {"type": "AdamW", "groups": [{"lr": 1e-3, "eps": 1e-8}]},
}


def last_view(run: Path, rate: Callable[[int], float], names: tuple[str, ...]) -> StepView:
    """The view of step 40 of a transformer whose groups have these rates."""
    with RunBuilder(run, alive=False) as builder:
        for number in range(41):
            rates = {name: rate(number) for name in names}
            first = number == 0
            builder.step(Step(scalars={"loss": 2.0, **rates}, facts=FACTS if first else {}))
    follower = Follower(LocalStore(run))
    return [view for views in views_shown(follower.poll()) for view in views][-1]


@pytest.mark.parametrize("names", [("learning_rate",), ("learning_rate/0", "learning_rate/1")], ids=["one", "two"])
def test_a_warm_up_is_seen_with_one_group_and_with_two(tmp_path: Path, names: tuple[str, ...]) -> None:
    warmed = last_view(tmp_path / "warmed", lambda step: 1e-3 * min(1.0, (step + 1) / 30), names)
    at_once = last_view(tmp_path / "at_once", lambda step: 1e-3, names)
    assert not learning_rates.without_warmup(warmed)
    assert learning_rates.without_warmup(at_once)
    assert signals.learning_rates(warmed, 2).tolist() == [1e-3, 1e-3]


@pytest.mark.parametrize("names", [("learning_rate",), ("learning_rate/0", "learning_rate/1")], ids=["one", "two"])
def test_the_highest_rate_so_far_is_compared_with_usual_ones(tmp_path: Path, names: tuple[str, ...]) -> None:
    """A schedule has lowered it since."""
    view = last_view(tmp_path / "run", lambda step: 0.5 if step < 20 else 1e-3, names)
    assert learning_rates.beyond_usual(view) == "above"
