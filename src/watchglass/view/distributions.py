"""One tensor: how its elements were spread over time, at one step, and its values where they were saved as a whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from watchglass.errors import InvalidValueError, UnknownNameError
from watchglass.records import Mode, count
from watchglass.view.captured_images import activations_image
from watchglass.view.courses import Courses
from watchglass.view.pictures.colours import COLOURS
from watchglass.view.pictures.records import Axis, Band, Bars, Image, Line, Lines
from watchglass.view.pictures.tables import TextTable
from watchglass.view.series import Steps, line_of, within
from watchglass.view.text import number

if TYPE_CHECKING:
    from watchglass.run import Run

_QUANTILES = (0.05, 0.5, 0.95)
#: Most steps at which quantiles are worked out.
_CHOSEN = 100
#: Bins are powers of two and halves of them: what differs by less than this factor lies in one or two.
_COARSE = 2.0
#: Most rows and columns of a table of values.
_ROWS, _COLUMNS = 16, 8
_STEP = Axis("training step", whole=True)


class Distribution(NamedTuple):
    """The distribution of a tensor over time, and how to read it."""

    picture: Lines
    caption: str


def distribution_figure(
    run: Run, name: str, courses: Courses | None = None, steps: Steps = None
) -> Distribution | None:
    """Extremes, mean and deviation of a tensor at its training steps, and quantiles at some of them.

    Where the elements differ by less than the bins of a histogram are wide, there are no quantiles, and the caption
    says so. None where no statistics of it were captured.

    Args:
        run: The run.
        name: The tensor.
        courses: What is known of the run already; it is continued.
        steps: Only these training steps, half-open.

    Raises:
        UnknownNameError: There is no such tensor.
    """
    run.tensor(name).info  # noqa: B018  # refuses a wrong name
    kept = courses or Courses()
    found = {}
    for reduction in ("min", "mean", "std", "max"):
        at, values = kept.of(run, (name,), reduction)
        found[reduction] = within((at, values[:, 0]), steps)
    if not len(found["mean"][0]):
        return None
    least = line_of("least", found["min"], COLOURS["eval"])
    greatest = line_of("greatest", found["max"], COLOURS["warning"])
    at, middle = found["mean"]
    chosen = np.unique(np.linspace(0, len(at) - 1, _CHOSEN).round().astype(int))
    deviation, centre = found["std"][1][chosen], middle[chosen]
    with np.errstate(invalid="ignore"):
        mean = Line(
            "mean ± deviation", at[chosen].astype(np.float64), centre, COLOURS["train"], low=centre - deviation,
            high=centre + deviation, missing=at[~np.isfinite(middle)].astype(np.float64),
        )  # fmt: skip
    quantiles = kept.quantiles(run, name, at[chosen], _QUANTILES)
    known = np.isfinite(quantiles).all(axis=1)
    lines, caption = [greatest, least, mean], "Exact least, greatest and mean; around the mean its standard deviation."
    if known.any():
        if _is_coarse(quantiles[known]):
            caption += (
                " Its elements differ by less than the bins of a histogram are wide (a factor of 1.5), so there are no "
                "quantiles: read mean and deviation."
            )
        else:
            low, median, high = quantiles.T
            median_line = Line(
                "median, 5 to 95 %", at[chosen].astype(np.float64), median, "#009E73", low=low, high=high
            )
            lines.append(median_line)
            caption += " Quantiles are from histograms, right within a factor of 1.5."
    axis = Axis("value")
    return Distribution(Lines(f"{name} over time", _STEP, axis, tuple(lines)), caption)


def _is_coarse(quantiles: NDArray[np.float64]) -> bool:
    low, _, high = np.abs(quantiles[-1])
    return bool(np.sign(quantiles[-1][0]) == np.sign(quantiles[-1][2]) and max(low, high) < _COARSE * min(low, high))


def histogram_figure(run: Run, name: str, step: int) -> Bars | None:
    """The elements of a tensor at a step by their magnitude, on a logarithmic axis, negative and positive ones.

    None where none is finite and other than zero.

    Raises:
        UnknownNameError: No histogram was captured at that step.
    """
    found = run.tensor(name).histogram(step)
    signs = {"positive": found.low >= 0, "negative": found.low < 0}
    sides = {
        "positive": (found.low, found.high), "negative": (-found.high, -found.low),
    }  # fmt: skip
    edges = np.unique(np.concatenate([each for pair in sides.values() for each in pair]))
    edges = edges[edges > 0]
    if len(edges) < 2:
        return None
    bands = []
    for sign, colour in (("negative", COLOURS["eval"]), ("positive", COLOURS["train"])):
        counts = np.zeros(len(edges) - 1)
        low = np.where(signs[sign], sides[sign][0], 0.0)[signs[sign]]
        np.add.at(counts, np.clip(np.searchsorted(edges, low), 0, len(counts) - 1), found.counts[signs[sign]])
        if counts.any():
            bands.append(Band(sign, counts, colour))
    more = "".join(
        f", {amount:,} {what}" for what, amount in (("zero", found.zero), ("not finite", found.nonfinite)) if amount
    )
    part = f", {found.seen:,} of them looked at" if found.seen < found.count else ""
    title = f"{name} at step {step:,}: {count(found.count, 'element')}{part}{more}"
    x, y = Axis("magnitude", logarithmic=True), Axis("elements", low=0.0, whole=True)
    return Bars(title, x, y, edges, tuple(bands))


def raw_values(run: Run, name: str, step: int) -> tuple[Image | None, TextTable | None, str]:
    """The values of a tensor that was saved as a whole: as an image where it has two axes or more, and its first ones.

    Returns:
        The image, the table, and a sentence about what they show, or about why there is neither.
    """
    try:
        value = np.asarray(run.tensor(name).value(step, as_float32=True))
    except UnknownNameError as error:
        return None, None, str(error)
    image = None
    if value.ndim >= 2 and value.size:
        try:
            image = activations_image(run, name, step, Mode.TRAIN)
        except (UnknownNameError, InvalidValueError):
            image = None  # with more than four axes
    rows = value.reshape(-1, value.shape[-1] if value.ndim > 1 else 1)[:_ROWS, :_COLUMNS]
    table = TextTable(("", *map(str, range(rows.shape[1]))), [
        (str(place), *(number(float(each)) for each in row)) for place, row in enumerate(rows)
    ])  # fmt: skip
    return image, table, f"{list(value.shape)} of {value.dtype}; the table has the first rows and columns."
