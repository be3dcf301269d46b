"""Latent spaces: axes that stay, clusters that do not turn, and inputs that cannot be drawn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from watchglass.errors import InvalidValueError, UnknownNameError
from watchglass.run import Run, open_run
from watchglass.testing import build_run
from watchglass.view.embedding import embedding

RANDOM = np.random.default_rng(1)
LABELS = np.repeat([0, 1, 2], 20)
HIDDEN = RANDOM.normal(size=(60, 10)) + 8 * np.eye(10)[LABELS]


def run_of(path: Path, values: list[np.ndarray], labels: list[np.ndarray]) -> Run:
    steps = [{"raw": {"fc.output": value, "label": label}} for value, label in zip(values, labels, strict=True)]
    return open_run(build_run(path / "run", steps))


def test_all_steps_have_the_axes_of_the_last_one(tmp_path: Path) -> None:
    frames = embedding(run_of(tmp_path, [HIDDEN / 2, HIDDEN], [LABELS] * 2), "fc.output")
    np.testing.assert_allclose(
        frames[0].points - frames[0].points.mean(0), (frames[1].points - frames[1].points.mean(0)) / 2, atol=1e-9
    )
    # The two axes show most of what parts three classes.
    centres = np.stack([frames[1].points[label == LABELS].mean(0) for label in range(3)])
    assert min(np.linalg.norm(centres[a] - centres[b]) for a, b in ((0, 1), (0, 2), (1, 2))) > 5


@pytest.mark.slow
def test_tsne_goes_on_from_the_step_before(tmp_path: Path) -> None:
    noise = HIDDEN + RANDOM.normal(size=HIDDEN.shape) / 10
    first, second = embedding(run_of(tmp_path, [HIDDEN, noise], [LABELS] * 2), "fc.output", method="tsne")
    spread = first.points.std()
    moved = np.linalg.norm(first.points - second.points, axis=1)
    assert np.median(moved) < 0.5 * spread  # an embedding that began anew would be turned or mirrored


def test_rows_that_are_not_finite_are_left_out_with_their_labels(tmp_path: Path) -> None:
    broken = HIDDEN.copy()
    broken[:5] = np.nan
    (frame,) = embedding(run_of(tmp_path, [broken], [LABELS]), "fc.output")
    assert len(frame.points) == 55
    assert frame.labels is not None
    assert frame.labels.tolist() == LABELS[5:].tolist()


def test_labels_of_other_shapes_give_no_colours(tmp_path: Path) -> None:
    (frame,) = embedding(run_of(tmp_path, [HIDDEN], [LABELS[:10]]), "fc.output")
    assert frame.labels is None


def test_what_cannot_be_embedded_is_refused(tmp_path: Path) -> None:
    run = run_of(tmp_path, [HIDDEN[:3]], [LABELS[:3]])
    with pytest.raises(InvalidValueError, match=r"at least 4 finite rows of at least 2 numbers, but fc\.output has 3"):
        embedding(run, "fc.output")
    with pytest.raises(InvalidValueError, match=r"a method must be one of pca, tsne, umap, but got 'mds'"):
        embedding(run, "fc.output", method="mds")
    with pytest.raises(UnknownNameError, match=r"no whole fc\.output at TRAIN steps 5 to 8"):
        embedding(run, "fc.output", steps=range(5, 9))
