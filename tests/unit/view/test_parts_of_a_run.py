"""Story, distributions, modules, workers and comparisons hold the numbers of their runs."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from watchglass.diagnose import verdict
from watchglass.errors import UnknownNameError
from watchglass.records import PHASES, CauseCourse, Verdict, facts
from watchglass.run import Run, open_run
from watchglass.testing import RunBuilder, Step, build_run
from watchglass.view.curves import colour_of, compared_curves, first_divergence
from watchglass.view.distributions import distribution_figure, histogram_figure, raw_values
from watchglass.view.layer_grids import layer_grid
from watchglass.view.module_tables import first_bad, modules_table
from watchglass.view.pictures import Lines, Strips, picture_html
from watchglass.view.pictures.numbers import numbers_of
from watchglass.view.pictures.tables import plain
from watchglass.view.pictures.values import drawings_of, nearest, values_at
from watchglass.view.story import story_figure
from watchglass.view.worker_grids import compared_workers

COURSES = (
    CauseCourse("the data holds NaN", (30, 45), (0.0, 0.12)),
    CauseCourse("the learning rate is too high", (30, 45), (0.6, 0.83)),
)


def test_a_story_has_lanes_of_one_axis(sick_run: Run, sick_verdict: Verdict) -> None:
    story = story_figure(sick_run, sick_verdict, COURSES)
    assert story is not None
    lanes = {lane.title: lane for lane in story.lanes}
    happened = "Evaluations, checkpoints and attempts"
    assert list(lanes) == ["Loss", "Likely causes", "Findings", "Learning rate", happened]
    assert all(lane.x == story.x for lane in story.lanes)
    causes = lanes["Likely causes"]
    assert isinstance(causes, Lines)
    assert [(line.name, list(zip(line.x.tolist(), line.y.tolist(), strict=True))) for line in causes.lines] == [
        ("the learning rate is too high", [(30, 0.6), (44, 0.6), (45, 0.83), (59, 0.83)]),
        ("the data holds NaN", [(30, 0.0), (44, 0.0), (45, 0.12), (59, 0.12)]),
    ]  # fmt: skip
    findings = lanes["Findings"]
    assert isinstance(findings, Strips)
    assert [(row.name, row.pieces[0].begin, row.pieces[0].tone) for row in findings.rows] == [
        ("ExplodingTensor", 45, "error"), ("ExplodingGradient", 30, "warning"), ("Overfit", 39, "info"),
    ]  # fmt: skip
    evaluations = lanes[happened]
    assert isinstance(evaluations, Strips)
    assert [piece.begin for piece in evaluations.rows[0].pieces] == [19, 39, 59]
    page = picture_html(story)
    assert page.count('<div class="lane') == len(lanes)
    assert "Lanes" not in page
    assert ("Findings", "Overfit") in {(plain(row[0]), plain(row[1])) for row in numbers_of(story).rows}


def test_the_lane_of_a_single_cause_names_it(sick_run: Run, sick_verdict: Verdict) -> None:
    story = story_figure(sick_run, sick_verdict, COURSES[1:])
    assert story is not None
    assert story.lanes[1].title == "Likely cause: the learning rate is too high"


def test_a_lane_of_times_names_their_unit(tmp_path: Path) -> None:
    phases = {PHASES: [(0.1, 0.0, 0.0, 0.3, 0.0, 0.0, 0.0, 0.0)]}
    run = open_run(build_run(tmp_path / "run", [Step({"loss": 1.0}, rows=phases)] * 8))
    story = story_figure(run, verdict(run))
    assert story is not None
    (title,) = (lane.title for lane in story.lanes if lane.title.startswith("Time of training steps"))
    assert title.endswith(" (ms)")


def test_a_run_that_begins_with_a_checkpoint_says_so_in_its_story(tmp_path: Path) -> None:
    with RunBuilder(tmp_path / "run", resumed={"start_step": 500, "source": "optimizer"}) as builder:
        for _ in range(4):
            builder.step(Step({"loss": 1.0}))
    run = open_run(tmp_path / "run")
    story = story_figure(run, verdict(run))
    assert story is not None
    lane = story.lanes[-1]
    assert isinstance(lane, Strips)
    (row,) = lane.rows
    assert (row.name, [(piece.begin, piece.text) for piece in row.pieces]) == (
        "attempts", [(500, "continues a checkpoint of step 500")]
    )  # fmt: skip


def test_a_story_has_the_checkpoints_that_were_saved(tmp_path: Path) -> None:
    saved = [
        facts.SavedCheckpoint(2, "run/model.pt", 0.25, weights=True),
        facts.SavedCheckpoint(2, "run/optimizer.pt", 0.5, optimizer=True),
        facts.SavedCheckpoint(3, seconds=0.002, weights=True),
    ]
    stored = [each.to_fact("torch.save") for each in saved]
    run = open_run(build_run(tmp_path / "run", [Step({"loss": 1.0})] * 4, facts=stored, workers=2))
    story = story_figure(run, verdict(run))
    assert story is not None
    lane = story.lanes[-1]
    assert isinstance(lane, Strips)
    (row,) = lane.rows
    assert (row.name, [(piece.begin, piece.text) for piece in row.pieces]) == ("checkpoints", [
        (2, "weights and optimizer state saved after step 2, run/model.pt, run/optimizer.pt; "
            "the longest write took 0.5 s"),
        (3, "weights saved after step 3; the longest write took 2 ms"),
    ])  # fmt: skip


def test_a_story_of_some_steps_has_only_these(sick_run: Run, sick_verdict: Verdict) -> None:
    story = story_figure(sick_run, sick_verdict, COURSES, (0, 35))
    assert story is not None
    lanes = {lane.title: lane for lane in story.lanes}
    loss, findings = lanes["Loss"], lanes["Findings"]
    assert isinstance(loss, Lines)
    assert loss.lines[0].x.max() == 34
    assert isinstance(findings, Strips)
    assert [row.name for row in findings.rows] == ["ExplodingGradient"]
    causes = lanes["Likely causes"]
    assert isinstance(causes, Lines)
    assert [(line.x.tolist(), line.y.tolist()) for line in causes.lines] == [([30, 34], [0.6, 0.6]), ([30, 34], [0, 0])]


def test_a_cursor_has_the_numbers_of_a_picture(sick_run: Run, sick_verdict: Verdict) -> None:
    story = story_figure(sick_run, sick_verdict, COURSES)
    assert story is not None
    loss, causes = drawings_of(story)[:2]
    assert nearest(loss, 20.4) == 20
    assert nearest(loss, 20.4, 3) == 23
    assert nearest(loss, 59.0, 5) == 59
    value = float(sick_run.scalars("loss")[1][20])
    assert dict(values_at(loss, 20.0))["training"] == f"{value:.4g}"
    assert dict(values_at(loss, 50.0))["training"] == "not finite"
    assert dict(values_at(causes, 38.0)) == {"the learning rate is too high": "60 %", "the data holds NaN": "0 %"}
    grid = layer_grid(sick_run)
    assert grid is not None
    norm = sick_run.tensor("gradient/head.weight").reductions("l2")[1][7]
    assert dict(values_at(grid, 7.2))["head.weight"] == f"{math.log10(norm):.4g}"


def test_findings_are_outlined_and_rows_can_be_against_their_median(sick_run: Run, sick_verdict: Verdict) -> None:
    grid = layer_grid(sick_run, relative=True, findings=sick_verdict.findings)
    assert grid is not None
    assert {(box.row, box.begin, box.end, box.tone) for box in grid.boxes} == {
        (2, 29.5, 59.5, "warning"), (2, 44.5, 59.5, "error"),
    }  # fmt: skip
    assert np.nanmedian(grid.cells[3]) == pytest.approx(0, abs=1e-6)
    assert grid.low == -grid.high


@pytest.fixture
def spread(tmp_path: Path) -> Run:
    generator = np.random.default_rng(3)
    narrow = (0.97 + 1e-3 * generator.normal(size=(64,))).astype(np.float32)
    wide = generator.normal(size=(32, 32)).astype(np.float32)
    wide[0, :4] = 0.0
    values = {"norm.weight": narrow, "fc.weight": wide}
    steps = [Step({"loss": 1.0}, statistics=values, raw={"fc.weight": wide} if n == 2 else {}) for n in range(3)]
    return open_run(build_run(tmp_path / "run", steps))


def test_a_distribution_has_the_extremes_of_its_tensor(spread: Run) -> None:
    found = distribution_figure(spread, "fc.weight")
    assert found is not None
    lines = {line.name: line for line in found.picture.lines}
    for name, which in (("least", "min"), ("greatest", "max"), ("mean ± deviation", "mean")):
        np.testing.assert_allclose(lines[name].y, spread.tensor("fc.weight").reductions(which)[1])
    assert "median, 5 to 95 %" in lines


def test_bins_that_are_too_coarse_are_said_to_be(spread: Run) -> None:
    found = distribution_figure(spread, "norm.weight")
    assert found is not None
    assert "median, 5 to 95 %" not in {line.name for line in found.picture.lines}
    assert "differ by less than the bins of a histogram are wide" in found.caption


def test_a_histogram_counts_every_element(spread: Run) -> None:
    found = histogram_figure(spread, "fc.weight", 1)
    assert found is not None
    assert sum(int(band.values.sum()) for band in found.bands) == 32 * 32 - 4
    assert "4 zero" in found.title
    with pytest.raises(UnknownNameError):
        histogram_figure(spread, "loss", 1)


def test_values_are_shown_where_they_were_saved(spread: Run) -> None:
    image, table, about = raw_values(spread, "fc.weight", 2)
    assert image is not None
    assert table is not None
    assert table.rows[0][1] == "0"
    assert about.startswith("[32, 32] of float32")
    assert raw_values(spread, "fc.weight", 1)[:2] == (None, None)


def test_the_first_bad_module_stands_out(tmp_path: Path) -> None:
    bad = np.array([[np.nan, 1.0]], np.float32)
    outputs = {"a.output": bad * 0 + 1, "b.output": bad, "c.output": bad}
    outputs["a.output"] = np.ones((1, 2), np.float32)
    place = facts.FirstBadPlace(level="rerun", where="forward", module="b", sentence="b turned finite inputs into NaN")
    steps = [Step({"loss": 1.0}), Step({"loss": 1.0}, statistics=outputs, facts={"first_bad_module": place.to_data()})]
    run = open_run(build_run(tmp_path / "run", steps, modules={"a": "Linear", "b": "Linear", "c": "Linear"}))
    found = first_bad(run, verdict(run))
    assert found is not None
    assert (found.step, found.module, found.sentences[0]) == (1, "b", "b turned finite inputs into NaN.")
    table = modules_table(run, 1, found.module)
    assert table is not None
    assert [plain(row[0]) for row in table.rows] == ["a", "b (first)", "c"]
    assert [plain(row[-1]) for row in table.rows] == ["0", "1", "1"]
    assert modules_table(run, 0) is None


def test_the_worker_that_differs_most_comes_first(tmp_path: Path) -> None:
    steps = [
        Step({"loss": 1.0 + n + (100.0 if rank == 2 else 0.01 * rank)}, workers=[rank])
        for n in range(20)
        for rank in range(4)
    ]
    run = open_run(build_run(tmp_path / "run", steps, workers=4))
    found = compared_workers(run, "loss")
    assert found is not None
    assert found.worst.rows[0] == "worker_2"
    assert plain(found.table.rows[0][0]) == "worker_2"
    assert found.worst.cells.shape == (4, 20)
    np.testing.assert_allclose(found.worst.cells[0], 101.0 + np.arange(20))
    (line,) = found.everyone.lines
    assert line.high is not None
    assert line.high[0] == 101.0


def test_runs_are_compared_by_what_differs(tmp_path: Path) -> None:
    def build(name: str, change: int) -> Run:
        weights = [np.full((2, 2), 1.0 + n + (n >= change), np.float32) for n in range(8)]
        steps = [Step({"loss": 2.0 / (n + 1)}, statistics={"fc.weight": each}) for n, each in enumerate(weights)]
        return open_run(build_run(tmp_path / name, steps))

    first, second = build("first", 99), build("second", 5)
    found = first_divergence(first, second)
    assert found is not None
    assert (found.step, found.tensor, found.steps_compared) == (5, "fc.weight", 8)
    assert found.values == (12.0, 14.0)
    assert first_divergence(first, build("third", 99)) is None
    runs = {"first": first, "second": second}
    curves = compared_curves(runs)
    assert curves is not None
    assert [line.name for line in curves.lines] == ["first", "second"]
    assert len({line.colour for line in curves.lines}) == 2
    assert curves.lines[0].colour == colour_of(first.manifest.run_id)
    # No two lines look the same: where all colours are used, lines are dashed.
    many = compared_curves({str(n): first for n in range(12)})
    assert many is not None
    assert len({(line.colour, line.dashed) for line in many.lines}) == 12
    assert [line.dashed for line in many.lines] == [False] * 8 + [True] * 4
    by_time = compared_curves(runs, by="time")
    assert by_time is not None
    assert by_time.lines[0].x[-1] == pytest.approx(0.8)
