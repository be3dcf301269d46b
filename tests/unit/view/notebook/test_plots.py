"""``run.plot``: figures that hold the numbers of the run, and errors that say how to record what is missing."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from watchglass.errors import InvalidValueError, UnknownNameError
from watchglass.records import ModuleKind, Verdict
from watchglass.run import Run, open_run
from watchglass.testing import build_run
from watchglass.view.notebook.figures import figure_of
from watchglass.view.pictures import (
    Axis,
    Band,
    Bands,
    Bars,
    Grid,
    Image,
    Line,
    Lines,
    Mark,
    Picture,
    Piece,
    PointGroup,
    Points,
    Story,
    Strip,
    Strips,
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A classifier of three classes, whose hidden units part them more from step to step."""
    random = np.random.default_rng(0)
    labels = np.arange(30) % 3
    hidden = random.normal(size=(30, 8))
    hidden[np.arange(30), labels] += 3.0
    steps = [
        {
            "scalars": {"loss": 1.0 / (n + 1), "learning_rate": 0.1},
            "statistics": {"gradient/fc.weight": random.normal(size=(3, 8)) / (n + 1)},
            "raw": {
                "prediction": hidden[:, :3], "label": labels, "fc.output": hidden * (n + 1),
                "input.0": random.random((30, 1, 4, 4)), "gradient/input.0": random.normal(size=(30, 1, 4, 4)),
                "conv.output": random.normal(size=(30, 5, 4, 4)), "feature_importance/gain": np.array([1.0, n, 0.0]),
            },
        }
        for n in range(4)
    ]  # fmt: skip
    modules = {"conv": ModuleKind.CONVOLUTION, "fc": ModuleKind.LINEAR}
    return open_run(build_run(tmp_path_factory.mktemp("plots") / "run", steps, modules=modules))


def test_losses_are_those_of_the_run(run: Run) -> None:
    figure = run.plot.losses()
    (line,) = figure.data
    assert line.name == "training"
    np.testing.assert_allclose(line.y, [1.0, 0.5, 1 / 3, 0.25], rtol=1e-6)
    assert figure.layout.xaxis.title.text == "training step"


def test_layers_have_a_row_for_each_tensor(run: Run) -> None:
    (cells,) = run.plot.layers("gradient", "l2").data
    assert list(cells.y) == ["fc.weight"]
    norms = run.tensor("gradient/fc.weight").reductions("l2")[1]
    np.testing.assert_allclose(cells.z[0], np.log10(norms), rtol=1e-5)
    with pytest.raises(
        InvalidValueError, match=r"layers has the fields .*'gradient', 'l2'.* but got \('gradient', 'x'\)"
    ):
        run.plot.layers("gradient", "x")


def test_layers_are_joined_at_a_depth_of_the_tree_of_modules(tmp_path: Path) -> None:
    step = {
        "scalars": {"loss": 1.0},
        "statistics": {f"gradient/blocks.{n}.weight": np.full((1, 1), 10.0**n) for n in range(3)},
    }
    plot = open_run(build_run(tmp_path / "run", [step] * 2)).plot
    (cells,) = plot.layers(depth=1).data
    assert list(cells.y) == ["blocks"]
    np.testing.assert_allclose(cells.z, [[0, 0]], atol=1e-6)
    (cells,) = plot.layers(within="blocks.2").data
    assert list(cells.y) == ["blocks.2.weight"]


def test_a_confusion_shows_counts(run: Run) -> None:
    figure = run.plot.confusion()
    counts = np.array(figure.data[0].text, int)
    answers = np.argmax(run.tensor("prediction").value(3), axis=1)
    assert counts.sum() == 30
    assert counts.trace() == (answers == np.arange(30) % 3).sum()
    assert "TRAIN step 3" in figure.layout.title.text


def test_an_embedding_has_a_frame_for_each_step_and_a_colour_for_each_class(run: Run) -> None:
    figure = run.plot.embedding("fc.output")
    assert [frame.name for frame in figure.frames] == ["0", "1", "2", "3"]
    assert [trace.name for trace in figure.data] == ["label 0", "label 1", "label 2"]
    # The last step has four times the numbers of the first, on the same axes.
    np.testing.assert_allclose(
        np.std(np.concatenate([trace.x for trace in figure.frames[3].data])),
        4 * np.std(np.concatenate([trace.x for trace in figure.frames[0].data])),
        rtol=1e-5,
    )


def test_importance_of_features_over_rounds(run: Run) -> None:
    figure = run.plot.feature_importance("gain")
    assert [trace.name for trace in figure.data] == ["feature 1", "feature 0", "feature 2"]
    assert list(figure.data[0].y) == [0, 1, 2, 3]
    with pytest.raises(UnknownNameError, match="no feature importance 'cover'; it has feature_importance/gain"):
        run.plot.feature_importance("cover")


def test_images_of_a_layer_and_of_inputs(run: Run) -> None:
    assert "5 of 5 channels" in run.plot.activations("conv.output").layout.title.text
    assert "8 of 30 inputs" in run.plot.saliency().layout.title.text


def test_two_runs_in_one_figure(run: Run, tmp_path: Path) -> None:
    other = open_run(build_run(tmp_path / "run", [{"scalars": {"loss": 3.0}}]))
    names = [trace.name for trace in run.plot.compare(other).data if trace.showlegend is not False]
    assert names == [run.location, other.location]
    with pytest.raises(InvalidValueError, match="by must be one of step, time, but got 'epoch'"):
        run.plot.compare(other, by="epoch")
    with pytest.raises(InvalidValueError, match=r"other must be a run but got 'runs/b'; open it with"):
        run.plot.compare("runs/b")  # type: ignore[arg-type]
    with pytest.raises(UnknownNameError, match=r"has no f1, which neither run has saved; run.tensor_names\("):
        run.plot.compare(other, metric="f1")


def test_the_story_has_lanes_over_one_axis(tmp_path: Path, sick_verdict: Verdict) -> None:
    steps = [{"scalars": {"loss": 1.0 + n, "learning_rate": 0.1}} for n in range(60)]
    figure = open_run(build_run(tmp_path / "run", steps, journal=sick_verdict.findings)).plot.story()
    assert {trace.xaxis for trace in figure.data} <= {None, "x"}
    assert len({trace.yaxis for trace in figure.data}) >= 3
    rows = [name for trace in figure.data for name in trace.y if isinstance(name, str)]
    assert "ExplodingTensor" in rows


def test_a_distribution_has_exact_ends(run: Run) -> None:
    lines = {trace.name: trace.y for trace in run.plot.distribution("gradient/fc.weight").data if trace.name}
    np.testing.assert_allclose(lines["least"], run.tensor("gradient/fc.weight").reductions("min")[1], rtol=1e-6)


@pytest.mark.parametrize("name", ["losses", "accuracy", "learning_rates", "gradient_norms", "layers", "update_ratios"])
def test_what_was_not_recorded_is_named(name: str, tmp_path: Path) -> None:
    empty = open_run(build_run(tmp_path / "run", [{"scalars": {"mine": 1.0}}]))
    with pytest.raises(UnknownNameError, match=rf"{empty.location} has no .*, which (is recorded|are recorded|needs) "):
        getattr(empty.plot, name)()


def test_whole_tensors_that_were_not_saved_are_named_with_the_setting(tmp_path: Path) -> None:
    empty = open_run(build_run(tmp_path / "run", [{"scalars": {"loss": 1.0}}]))
    with pytest.raises(UnknownNameError, match="record them with watchglass run --save-raw predictions,labels"):
        empty.plot.confusion()
    with pytest.raises(UnknownNameError, match="watchglass run --save-raw model_input,input_gradients"):
        empty.plot.saliency()


_X = np.arange(3.0)


@pytest.mark.parametrize(
    "picture",
    [
        Lines("<b>$x$", Axis("step"), Axis("loss", logarithmic=True),
              (Line("a", _X, _X + 1, "#112233", dots=True, missing=np.array([1.0])),), (Mark(1, "rule", "error"),)),
        Bands("<b>$x$", Axis("step"), Axis("ms"), _X, (Band("data", _X, "#112233"), Band("forward", _X, "#445566"))),
        Bars("<b>$x$", Axis("ms", logarithmic=True), Axis("steps"), np.array([1.0, 10.0, 100.0]),
             (Band("training", np.array([3.0, 4.0]), "#112233"),), (Mark(10.0, "median"),)),
        Grid("<b>$x$", Axis("step"), ("a", "b"), _X, np.ones((2, 3), np.float32), 0, 1, "log10",
             np.eye(2, 3, dtype=bool)),
        Points("<b>$x$", Axis(), Axis(), (PointGroup("a", _X, _X, "#112233"),)),
        Image("<b>$x$", np.zeros((4, 4, 3), np.uint8)),
        Strips("<b>$x$", Axis("step", low=0, high=9),
               (Strip("rule", (Piece(1, 4, "text", "error"), Piece(5, 5, "t"))),)),
        Story("<b>$x$", Axis("step", low=0, high=9), (
            Lines("loss", Axis("step"), Axis("loss"), (Line("a", _X, _X, "#112233"),)),
            Strips("findings", Axis("step", low=0, high=9), (Strip("rule", (Piece(1, 4, "text", "error"),)),)),
        )),
    ],
    ids=lambda each: type(each).__name__,
)  # fmt: skip
def test_every_kind_of_picture_is_a_figure_whose_texts_are_plain(picture: Picture) -> None:
    figure = figure_of(picture)
    assert figure.layout.title.text == "&lt;b&gt;&#36;x&#36;"
    document = json.loads(figure.to_json())
    assert document["data"]


def test_marks_stand_at_their_place_on_a_logarithmic_axis() -> None:
    bars = Bars(
        "t", Axis("ms", logarithmic=True), Axis("steps"), np.array([1.0, 10.0, 100.0]),
        (Band("training", np.array([3.0, 4.0]), "#112233"),), (Mark(10.0, "median"),),
    )  # fmt: skip
    figure = figure_of(bars)
    # A line is placed by its number, a text by its logarithm: see "shapes" and "annotations" in plotly's reference.
    assert figure.layout.shapes[0].x0 == 10.0
    assert figure.layout.annotations[0].x == 1.0
