"""Channels of a layer and saliencies as pixels."""

from __future__ import annotations

import numpy as np
import pytest

from watchglass.errors import InvalidValueError, UnknownNameError
from watchglass.run import Run, open_run
from watchglass.testing import build_run
from watchglass.view.captured_images import activations_image, saliency_image
from watchglass.view.pictures.colours import scale


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    ramp = np.arange(4.0).reshape(1, 1, 2, 2)
    raw = {
        "conv.output": np.concatenate([ramp, 100 * ramp], axis=1), "fc.output": np.eye(3), "vector": np.zeros(5),
        "input.0": np.concatenate([ramp] * 3, axis=1),
        "gradient/input.0": np.concatenate([0 * ramp, -ramp, 0 * ramp], axis=1),
    }  # fmt: skip
    return open_run(build_run(tmp_path_factory.mktemp("images") / "run", [{"raw": raw}]))


def test_each_channel_has_its_own_range(run: Run) -> None:
    image = activations_image(run, "conv.output")
    assert image.pixels.shape == (2, 5, 3)
    np.testing.assert_array_equal(image.pixels[:, :2], image.pixels[:, 3:])
    np.testing.assert_array_equal(image.pixels[:, :2].reshape(4, 3), scale(np.arange(4) / 3))
    assert image.title == "conv.output at TRAIN step 0, example 0: 2 of 2 channels, each scaled to its own range"


def test_units_have_a_row_for_each_example(run: Run) -> None:
    assert activations_image(run, "fc.output").title.endswith("3 of 3 examples, 3 of 3 units, a row for each example")


def test_a_saliency_is_the_largest_gradient_of_the_channels_beside_the_input(run: Run) -> None:
    image = saliency_image(run)
    assert image.pixels.shape == (2, 5, 3)
    assert image.pixels[:, :2, 0].tolist() == [[0, 85], [170, 255]]
    np.testing.assert_array_equal(image.pixels[:, 3:].reshape(4, 3), scale(np.arange(4) / 3))


def test_what_is_no_image_is_refused(run: Run) -> None:
    with pytest.raises(InvalidValueError, match=r"but vector is \[5\] and the example 0"):
        activations_image(run, "vector")
    with pytest.raises(InvalidValueError, match=r"an example below n, but conv.output .* and the example 1"):
        activations_image(run, "conv.output", example=1)
    with pytest.raises(UnknownNameError, match="has no tensor"):
        activations_image(run, "nothing")
