"""Facts of a run: as they are stored, by name, and as objects, by their declaration."""

from __future__ import annotations

from pathlib import Path

from watchglass.records import facts
from watchglass.run import open_run
from watchglass.testing import Step, build_run


def test_facts_are_found_by_name_and_by_declaration(tmp_path: Path) -> None:
    clips = [{"calls": 3}, {"calls": "three"}, {"max_norm": 1.0, "newer": True}]
    steps = [Step(facts={"clip": clip, "loss_scale": {"scale": 2.0}}) for clip in clips]
    run = open_run(build_run(tmp_path / "run", steps))
    assert [fact.data for fact in run.facts("clip")] == clips
    assert run.facts(facts.Clip) == [facts.Clip(calls=3), facts.Clip(), facts.Clip(max_norm=1.0)]
    assert run.facts(facts.LossScale, "worker_0") == [facts.LossScale(2.0)] * 3
    assert run.facts(facts.Calls) == []
