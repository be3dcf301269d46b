"""Figures hold what was recorded, stay small, and show what is not finite."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from watchglass.errors import InvalidValueError, UnknownNameError
from watchglass.records import Finding, Mode, Role, Severity, Verdict
from watchglass.run import Run, open_run
from watchglass.testing import RunBuilder, Step, build_run
from watchglass.view.figures import (
    accuracy_figure,
    gradient_norm_figure,
    learning_rate_figure,
    loss_figure,
    run_figures,
    scalar_figures,
    update_ratio_figure,
)
from watchglass.view.layer_grids import LAYER_FIELDS, joined_sentence, layer_depths, layer_grid
from watchglass.view.pictures import Axis, Line, Lines, Mark, picture_html
from watchglass.view.pictures.svg import svg
from watchglass.view.series import line_of


def lines_of(figure: Lines | None) -> dict[str, Line]:
    assert figure is not None
    return {line.name: line for line in figure.lines}


def test_losses_by_mode_with_findings_marked(sick_run: Run, sick_verdict: Verdict) -> None:
    figure = loss_figure(sick_run, sick_verdict.findings)
    assert figure is not None
    lines = lines_of(figure)
    assert list(lines["training"].x) == list(range(60))
    np.testing.assert_allclose(lines["training"].y[:45], [2.0 + 0.5 * 10 ** (n / 15) for n in range(45)], rtol=1e-6)
    assert np.isnan(lines["training"].y[45:]).all()
    assert lines["training"].missing is not None
    assert list(lines["training"].missing) == list(range(45, 60))
    assert list(lines["validation"].x) == [19, 39, 59]
    np.testing.assert_allclose(lines["validation"].y, [22, 42, 62])
    assert [(mark.at, mark.text, mark.tone) for mark in figure.marks] == [
        (30, "ExplodingGradient", "warning"),
        (39, "Overfit", "info"),
        (45, "ExplodingTensor", "error"),
    ]


def test_the_texts_of_marks_do_not_cover_each_other(sick_run: Run) -> None:
    x = np.arange(100.0)
    near = tuple(Mark(n, f"Rule{n}OfALongName", "warning") for n in range(7))
    line = Line("training", x, x, "#000000")
    drawn = svg(Lines("Loss", Axis("step"), Axis("loss"), (line,), (*near, Mark(60, "Other", "error"))))
    rows = [int(row) for row in re.findall(r'<text class="mark [^>]* y="(\d+)"', drawn)]
    assert len(set(rows[:7])) == 7
    assert rows[7] == rows[0]


def test_accuracy_by_mode(sick_run: Run) -> None:
    (line,) = lines_of(accuracy_figure(sick_run)).values()
    np.testing.assert_allclose(line.y, [0.405, 0.305, 0.205], rtol=1e-6)


def test_heatmap_has_layers_in_order_and_marks_what_is_not_finite(sick_run: Run) -> None:
    grid = layer_grid(sick_run)
    assert grid is not None
    assert grid.rows == ("conv1.weight", "conv2.weight", "<img src=x onerror=alert(1)>.weight", "head.weight")
    assert grid.cells.shape == (4, 60)
    assert np.isfinite(grid.cells[2:]).all()
    assert np.isnan(grid.cells[:2, 45:]).all()
    assert grid.broken[:2, 45:].all()
    assert grid.broken.sum() == 2 * 15


def test_update_ratios_are_of_root_mean_squares(sick_run: Run) -> None:
    first, *others = lines_of(update_ratio_figure(sick_run)).values()
    assert len(others) == 3
    np.testing.assert_allclose(first.y, [1e-3 * 10 ** (n / 15) for n in range(60)], rtol=1e-5)


def test_a_run_without_data_has_no_figures(tmp_path: Path) -> None:
    assert run_figures(open_run(build_run(tmp_path / "run"))) == []


def test_a_run_of_one_step_and_a_gradient_of_zero(tmp_path: Path) -> None:
    step = Step(scalars={"loss": 0.0}, statistics={"gradient/fc.weight": np.zeros((2, 2), np.float32)})
    run = open_run(build_run(tmp_path / "run", [step]))
    assert [figure.title for _, figure in run_figures(run)] == ["Loss", "Gradient norm by layer"]
    grid = layer_grid(run)
    assert grid is not None
    assert np.isfinite(grid.cells).all()


@pytest.mark.parametrize("spike", [0, 31_337, 99_999])
def test_thinning_keeps_every_spike(spike: int) -> None:
    values = np.sin(np.arange(100_000) / 500)
    values[spike] = 9.0
    values[77_777] = np.nan
    line = line_of("loss", (np.arange(100_000), values), "#000000")
    assert line.low is not None
    assert line.high is not None
    assert line.missing is not None
    assert len(line.x) <= 1200
    assert line.high.max() == 9.0
    assert np.searchsorted(line.x, spike) == line.high.argmax()
    assert list(line.missing) == [line.x[np.searchsorted(line.x, 77_777)]]


def test_each_of_several_models_has_its_curves(tmp_path: Path) -> None:
    steps = [
        step
        for n in range(6)
        for step in (
            Step({"loss": 1.0 + n}), Step({"model_2/loss": 10.0 + n}, model=1),
            Step({"loss": 2.0}, mode=Mode.EVAL), Step({"model_2/loss": 20.0}, mode=Mode.EVAL, model=1),
        )
    ]  # fmt: skip
    traces = lines_of(loss_figure(open_run(build_run(tmp_path / "run", steps))))
    assert list(traces) == ["model, training", "model, validation", "model_2, training", "model_2, validation"]
    assert list(traces["model_2, training"].x) == [1, 3, 5, 7, 9, 11]
    assert list(traces["model_2, training"].y) == [10, 11, 12, 13, 14, 15]
    assert list(traces["model_2, validation"].y) == [20] * 6
    colours = [trace.colour for trace in traces.values()]
    assert colours[0] == colours[1] != colours[2] == colours[3]


def test_each_of_several_workers_has_its_curves(tmp_path: Path) -> None:
    with RunBuilder(tmp_path / "run", workers=2, alone=True) as builder:
        for n in range(6):
            builder.step(Step({"loss": 1.0 + n}, workers=(0,)))
        for n in range(9):
            builder.step(Step({"loss": 10.0 + n, "learning_rate": 0.1}, workers=(1,)))
        builder.leave()
    run = open_run(tmp_path / "run")
    traces = lines_of(loss_figure(run))
    assert list(traces) == ["model of worker_0, training", "model of worker_1, training"]
    assert list(traces["model of worker_1, training"].y) == list(range(10, 19))
    ((caption, figure),) = run_figures(run)
    assert figure.x.high is not None
    assert figure.x.high >= 8
    assert "worker_0" not in caption


def test_a_caption_says_of_which_rank_and_of_how_many_models_curves_are(tmp_path: Path) -> None:
    steps = [Step({"loss" if not n else f"model_{n + 1}/loss": 1.0}, model=n) for _ in range(3) for n in range(14)]
    ((caption, _),) = run_figures(open_run(build_run(tmp_path / "run", steps, workers=2)))
    assert caption.endswith("Shown: worker_0, one of 2 workers. Shown: the first 12 of 14 models.")


def test_a_validation_loss_that_is_of_another_function_is_called_that(tmp_path: Path) -> None:
    train = Step({"loss": 3.0, "loss/mse_loss": 1.0})  # with a penalty
    steps = [train, train, Step({"loss": 0.9, "loss/mse_loss": 0.9}, mode=Mode.EVAL), train]
    run = open_run(build_run(tmp_path / "run", steps))
    assert list(lines_of(loss_figure(run))) == ["training", "validation (mse_loss)"]


def test_of_models_that_take_turns_each_row_has_its_own_steps_and_what_lies_between(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    steps = [
        Step(
            {"loss": 1.0},
            statistics={f"gradient/{name}.weight": random.normal(size=(3, 3)) for name in names},
            model=n % 2,
        )
        for n, names in ((n, (("a", "b"), ("model_2.a",))[n % 2]) for n in range(8))
    ]
    grid = layer_grid(open_run(build_run(tmp_path / "run", steps)))
    assert grid is not None
    assert list(grid.columns) == list(range(8))
    known = np.isfinite(grid.cells)
    assert known.tolist() == [[*[True] * 7, False]] * 2 + [[False, *[True] * 7]]
    np.testing.assert_array_equal(grid.cells[0, [0, 2, 4]], grid.cells[0, [1, 3, 5]])


def test_healthy_normalisation_layers_are_not_drawn_as_if_nothing_arrived(tmp_path: Path) -> None:
    def step(broken: float) -> Step:
        gain = np.full(4, 1e-3, np.float32)
        gain[0] = broken
        return Step({"loss": 1.0}, statistics={"gradient/fc.weight": np.ones((4, 4)), "gradient/norm.weight": gain})

    rows = []
    for name, broken in (("healthy", 0.0), ("broken", np.nan)):
        grid = layer_grid(open_run(build_run(tmp_path / name, [step(broken)] * 3)))
        assert grid is not None
        rows.append(grid.rows)
    assert rows == [("fc.weight",), ("fc.weight", "norm.weight")]


def test_layers_of_a_healthy_model_differ_little_in_colour(tmp_path: Path) -> None:
    layers = {f"gradient/{name}.weight": np.full((4, 4), size) for name, size in (("a", 1.0), ("b", 0.1))}
    grid = layer_grid(open_run(build_run(tmp_path / "run", [Step({"loss": 1.0}, statistics=layers)])))
    assert grid is not None
    assert grid.high - grid.low == pytest.approx(4.0)


@pytest.mark.parametrize(("layers", "legend"), [(2, True), (40, False)])
def test_a_legend_of_many_layers_is_a_scale(tmp_path: Path, layers: int, legend: bool) -> None:
    statistics = {}
    for layer in range(layers):
        for role, size in (("", 1.0), ("update/", 1e-3)):
            statistics[f"{role}blocks.{layer}.weight"] = np.full((2, 2), size, np.float32)
    figure = update_ratio_figure(open_run(build_run(tmp_path / "run", [Step({"loss": 1.0}, statistics=statistics)])))
    assert figure is not None
    assert figure.ordered is not legend
    page = picture_html(figure)
    assert ("first layer" in page, "<span>" in page) == (not legend, legend)


def test_all_figures_of_a_page_have_the_same_steps(tmp_path: Path) -> None:
    steps = []
    for n in range(100):
        statistics = {"gradient/fc.weight": np.ones((2, 2))} if n < 20 else {}
        scalars = {"loss": 1.0, "learning_rate": 0.1, "reward": 0.5, **({"gradient_norm": 1.0} if n < 50 else {})}
        steps.append(Step(scalars, statistics=statistics))
    run = open_run(build_run(tmp_path / "run", steps))
    figures = [figure for _, figure in run_figures(run)]
    assert [figure.title for figure in figures] == ["Loss", "Learning rate", "Gradient norm", "Gradient norm by layer"]
    scalars, more = scalar_figures(run)
    assert [figure.title for figure in scalars] == ["reward"]
    assert more == 0
    assert len({(figure.x.low, figure.x.high) for figure in [*figures, *scalars]}) == 1


def test_learning_rates_and_norms_have_a_line_each(tmp_path: Path) -> None:
    scalars = {"loss": 1.0, "gradient_norm": 1.0, "gradient_norm_before_clip": 7.0}
    steps = [Step({**scalars, "learning_rate/0": 0.1 - n / 100, "learning_rate/1": 0.2}) for n in range(5)]
    run = open_run(build_run(tmp_path / "run", steps))
    assert list(lines_of(learning_rate_figure(run))) == ["learning_rate/0", "learning_rate/1"]
    assert list(lines_of(gradient_norm_figure(run))) == ["gradient norm", "before clipping"]


def test_of_very_many_numbers_the_rest_is_counted(tmp_path: Path) -> None:
    step = Step({"loss": 1.0, **{f"metric_{n}": 1.0 for n in range(30)}})
    figures, more = scalar_figures(open_run(build_run(tmp_path / "run", [step] * 3)))
    assert (len(figures), more) == (24, 6)


@pytest.mark.parametrize("field", LAYER_FIELDS)
def test_a_grid_of_layers_shows_what_the_run_recorded(sick_run: Run, field: str) -> None:
    grid = layer_grid(sick_run, field)
    if LAYER_FIELDS[field].role is Role.OUTPUT:
        assert grid is None  # no outputs were captured
        return
    assert grid is not None
    assert grid.rows[-1] == "head.weight"
    weight = sick_run.tensor("head.weight").reductions("rms")[1]
    expected = {
        "gradient.l2": sick_run.tensor("gradient/head.weight").reductions("l2")[1],
        "update.ratio": sick_run.tensor("update/head.weight").reductions("rms")[1] / weight,
        "weight.l2": sick_run.tensor("head.weight").reductions("l2")[1],
    }[field]
    np.testing.assert_allclose(grid.cells[-1], np.log10(expected), rtol=1e-5)


def test_shares_of_zeros_are_not_logarithms(tmp_path: Path) -> None:
    half = np.array([[0.0, 1.0]], np.float32)
    run = open_run(build_run(tmp_path / "run", [Step({"loss": 1.0}, statistics={"a.output": half})] * 3))
    grid = layer_grid(run, "output.zeros")
    assert grid is not None
    assert (grid.cells == 0.5).all()
    assert (grid.low, grid.high) == (0.0, 1.0)


def test_updates_that_are_not_finite_are_cells_of_their_own(tmp_path: Path) -> None:
    one, broken = np.ones((2, 2), np.float32), np.full((2, 2), np.nan, np.float32)
    updates = [one / 10, one / 10, broken, broken]
    steps = [Step({"loss": 1.0}, statistics={"fc.weight": one, "update/fc.weight": each}) for each in updates]
    grid = layer_grid(open_run(build_run(tmp_path / "run", steps)), "update.ratio")
    assert grid is not None
    assert grid.columns.tolist() == [0, 1, 2, 3]
    assert grid.broken.tolist() == [[False, False, True, True]]
    np.testing.assert_allclose(grid.cells[0, :2], -1, rtol=1e-5)


def tree_run(tmp_path: Path) -> Run:
    """Two blocks of two layers and a head; in the second block a gradient vanishes, and one is not finite at last."""
    sizes = {"blocks.0.a": 1.0, "blocks.0.b": 0.1, "blocks.1.a": 1.0, "blocks.1.b": 1.0, "head": 10.0}
    steps = []
    for n in range(4):
        now = {**sizes, "blocks.1.a": 10.0**-n, "blocks.0.b": np.nan if n == 3 else 0.1}
        steps.append({f"gradient/{name}.weight": np.full((1, 1), size, np.float32) for name, size in now.items()})
    found = Finding(
        id="0123456789ab", rule="VanishingGradient", severity=Severity.WARNING, step=1, last_step=3, count=3,
        mode=Mode.TRAIN, worker="worker_0", tensors=("gradient/blocks.1.a.weight", "gradient/blocks.1.b.weight"),
        value=0.1, limit=1.0, message="none arrives",
    )  # fmt: skip
    statistics = [Step({"loss": 1.0}, statistics=each) for each in steps]
    return open_run(build_run(tmp_path / "run", statistics, journal=[found]))


def test_tensors_are_joined_at_a_depth_of_the_tree_of_modules(tmp_path: Path) -> None:
    run = tree_run(tmp_path)
    assert layer_depths(run, LAYER_FIELDS["gradient.l2"]) == [1, 2]
    whole = layer_grid(run)
    assert whole is not None
    assert len(whole.rows) == 5
    grid = layer_grid(run, depth=2, findings=run.journal.findings)
    assert grid is not None
    # A module of one tensor keeps the name of that.
    assert grid.rows == ("blocks.0", "blocks.1", "head.weight")
    np.testing.assert_allclose(grid.cells, [[-1, -1, -1, np.nan], [0, -1, -2, -3], [1, 1, 1, 1]], atol=1e-6)
    assert grid.broken.tolist() == [[False, False, False, True], [False] * 4, [False] * 4]
    # A finding about several tensors of a row outlines it once.
    assert [(box.row, box.begin, box.end) for box in grid.boxes] == [(1, 0.5, 3.5)]


def test_joined_rows_show_what_is_farthest_from_its_own_median(tmp_path: Path) -> None:
    run = tree_run(tmp_path)
    grid = layer_grid(run, depth=1, relative=True)
    assert grid is not None
    assert grid.rows == ("blocks", "head.weight")
    np.testing.assert_allclose(grid.cells, [[1.5, 0.5, -0.5, np.nan], [0, 0, 0, 0]], atol=1e-6)
    greatest = layer_grid(run, "gradient.l2", depth=1, within="blocks.1")
    assert greatest is not None
    assert greatest.rows == ("blocks",)


def test_zeros_among_zeros_are_like_their_median(tmp_path: Path) -> None:
    sizes = [1.0, 0.0, 0.0, 0.0, 0.0]
    rows = [{"gradient/fc.weight": np.full((2, 2), size, np.float32)} for size in sizes]
    steps = [Step({"loss": 1.0}, statistics=each) for each in rows]
    grid = layer_grid(open_run(build_run(tmp_path / "run", steps)), relative=True)
    assert grid is not None
    np.testing.assert_allclose(grid.cells, [[grid.high, 0, 0, 0, 0]], rtol=1e-6)


def test_a_joined_module_is_unfolded_beside_joined_ones(tmp_path: Path) -> None:
    run = tree_run(tmp_path)
    rows = {
        (): ("blocks", "head.weight"),
        ("blocks",): ("blocks.0", "blocks.1", "head.weight"),
        ("blocks", "blocks.1"): ("blocks.0", "blocks.1.a.weight", "blocks.1.b.weight", "head.weight"),
        # What is in a module that is not open stays in its row.
        ("blocks.1", "head", "nothing"): ("blocks", "head.weight"),
    }
    for opened, expected in rows.items():
        grid = layer_grid(run, depth=1, opened=opened, findings=run.journal.findings)
        assert grid is not None
        assert grid.rows == expected
    unfolded = layer_grid(run, depth=1, opened=("blocks",))
    at_depth = layer_grid(run, depth=2)
    assert unfolded is not None
    assert at_depth is not None
    np.testing.assert_array_equal(unfolded.cells, at_depth.cells)


def relu_run(tmp_path: Path, *, functional: bool = False) -> Run:
    """Of the first ReLU one unit more is inactive at each captured step, of the second none."""
    one, other = ("fc2.input", "fc3.input") if functional else ("relu1.output", "relu2.output")
    modules = {"fc2": "Linear", "fc3": "Linear"} if functional else {"relu1": "ReLU", "relu2": "ReLU"}
    steps = []
    for n in range(6):
        units = {one: np.arange(4) < n, other: np.zeros(8, bool)} if n % 2 == 0 else {}
        steps.append(Step({"loss": 1.0}, units=units))
    return open_run(build_run(tmp_path / "run", steps, modules=modules))


@pytest.mark.parametrize("functional", [False, True])
def test_dead_units_are_the_share_of_units_that_a_step_did_not_use(tmp_path: Path, functional: bool) -> None:
    run = relu_run(tmp_path, functional=functional)
    grid = layer_grid(run, "output.inactive")
    assert grid is not None
    assert grid.rows == (("fc2.input", "fc3.input") if functional else ("relu1.output", "relu2.output"))
    assert grid.columns.tolist() == [0, 2, 4]
    np.testing.assert_allclose(grid.cells, [[0, 0.5, 1], [0, 0, 0]])
    assert (grid.low, grid.high) == (0, 1)
    assert layer_grid(tree_run(tmp_path / "other"), "output.inactive") is None


def test_a_module_is_opened_by_its_path(tmp_path: Path) -> None:
    run = tree_run(tmp_path)
    grid = layer_grid(run, within="blocks.1")
    assert grid is not None
    assert grid.rows == ("blocks.1.a.weight", "blocks.1.b.weight")
    assert ">blocks.1.b.weight<" in svg(grid)
    # The modules that two long names have in common are drawn once, and an ellipsis says so.
    drawn = svg(replace(grid, rows=("model.encoder.blocks.1.a.weight", "model.encoder.blocks.1.b.weight")))
    assert ">model.encoder.blocks.1.a.weight<" in drawn
    assert ">….b.weight<title>model.encoder.blocks.1.b.weight<" in drawn
    with pytest.raises(UnknownNameError, match=r"no gradient within a module 'block'"):
        layer_grid(run, within="block")
    with pytest.raises(InvalidValueError, match=r"depth must be a whole number from 1 on but got 0"):
        layer_grid(run, depth=0)


@pytest.mark.parametrize(("field", "shown"), [("weight.l2", 2.0), ("gradient.l2", 1.0)])
def test_the_worst_of_joined_tensors_is_the_greatest_or_the_smallest(tmp_path: Path, field: str, shown: float) -> None:
    prefix = "gradient/" if field == "gradient.l2" else ""
    statistics = {f"{prefix}a.{name}.weight": np.full((1, 1), 10.0**size) for name, size in (("b", 1), ("c", 2))}
    grid = layer_grid(
        open_run(build_run(tmp_path / "run", [Step({"loss": 1.0}, statistics=statistics)])), field, depth=1
    )
    assert grid is not None
    np.testing.assert_allclose(grid.cells, [[shown]], atol=1e-6)
    words = joined_sentence(LAYER_FIELDS[field], relative=False)
    assert ("greatest" in words, "smallest" in words) == (shown == 2, shown == 1)


def test_a_grid_says_that_it_leaves_out_tensors_of_a_large_model(tmp_path: Path) -> None:
    weights = {f"gradient/blocks.{n}.weight": np.ones((2, 2)) for n in range(160)}
    run = open_run(build_run(tmp_path / "run", [{"statistics": weights}] * 2))
    whole, part = layer_grid(run, depth=1), layer_grid(run)
    assert whole is not None
    assert part is not None
    assert whole.title == "Gradient norm by layer"
    assert part.title == "Gradient norm by layer; 150 of 160 tensors, spread over the model"
    assert len(part.rows) == 150
