"""Captured tensors as images: channels of a layer, and inputs beside their gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from watchglass.errors import InvalidValueError, UnknownNameError
from watchglass.records import Mode, count, series_name
from watchglass.view.pictures.colours import scale
from watchglass.view.pictures.records import Image

if TYPE_CHECKING:
    from watchglass.run import Run

#: Most rows and columns of images side by side, and pixels between them.
_SIDE, _GAP = 8, 1
Pixels = NDArray[np.uint8]


def activations_image(
    run: Run, tensor: str, step: int | None = None, mode: Mode = Mode.TRAIN, example: int = 0
) -> Image:
    """The channels of one example of a captured output, each scaled to its own range.

    An output [n, channels, height, width] has an image for each channel, [n, height, width] one; of [n, units] the
    rows are examples.

    Raises:
        UnknownNameError: It was not saved as a whole at the step.
        InvalidValueError: There is no such example, or the tensor has another shape.
    """
    step, value = _saved(run, tensor, step, mode)
    if value.ndim == 2:
        shown = value[: 16 * _SIDE, : 32 * _SIDE]
        part = f"{len(shown)} of {len(value)} examples, {shown.shape[1]} of {value.shape[1]} units"
        return Image(f"{tensor} at {mode.name} step {step}: {part}, a row for each example", _coloured(shown))
    if value.ndim not in (3, 4) or not 0 <= example < len(value):
        raise InvalidValueError(
            f"activations need a tensor [n, units], [n, height, width] or [n, channels, height, width] and an example "
            f"below n, but {tensor} is {list(value.shape)} and the example {example}"
        )
    channels = value[example] if value.ndim == 4 else value[example][None]
    shown = channels[: _SIDE * _SIDE]
    part = f"{len(shown)} of {count(len(channels), 'channel')}, each scaled to its own range"
    title = f"{tensor} at {mode.name} step {step}, example {example}: {part}"
    return Image(title, _mosaic([_coloured(each) for each in shown]))


def saliency_image(
    run: Run, step: int | None = None, mode: Mode = Mode.TRAIN, model: int = 0, inputs: int = 0
) -> Image:
    """Inputs that are images, each beside the size of the loss's gradient with respect to it.

    The gradient is raw: its absolute value, the largest of the channels (Simonyan, Vedaldi and Zisserman 2013).

    Raises:
        UnknownNameError: The inputs or their gradients were not saved as whole tensors.
        InvalidValueError: The inputs are not images.
    """
    name = series_name(f"input.{inputs}", model)
    gradient = f"gradient/{name}"
    known = set(run.tensor_names())
    if not {name, gradient} <= known:
        raise UnknownNameError(
            f"{run.location} has no {gradient if name in known else name}; record inputs that require a gradient with "
            "watchglass run --save-raw model_input,input_gradients"
        )
    common = sorted(set(run.tensor(name).values(mode)) & set(run.tensor(gradient).values(mode)))
    step = step if step is not None or not common else common[-1]
    step, value = _saved(run, name, step, mode)
    _, slopes = _saved(run, gradient, step, mode)
    if value.ndim not in (3, 4) or value.shape != slopes.shape:
        raise InvalidValueError(f"a saliency needs inputs that are images, but {name} is {list(value.shape)}")
    pairs = []
    for image, slope in zip(value[:_SIDE], np.abs(slopes[:_SIDE]), strict=True):
        pairs += [_picture(image), _coloured(slope.max(axis=0) if slope.ndim == 3 else slope)]
    part = f"{len(pairs) // 2} of {count(len(value), 'input')}"
    title = f"{name} at {mode.name} step {step}: {part}, each left of its raw gradient's size"
    return Image(title, _mosaic(pairs))


def _saved(run: Run, tensor: str, step: int | None, mode: Mode) -> tuple[int, NDArray[Any]]:
    """A whole tensor, at the last step that has one or at a given one, which raises what :meth:`Tensor.value` does."""
    if step is None:
        steps = run.tensor(tensor).values(mode)
        if not steps:
            raise UnknownNameError(
                f"{run.location} has no whole {tensor} at {mode.name} steps; record it in a collection with save_raw"
            )
        step = max(steps)
    return step, np.asarray(run.tensor(tensor).value(step, mode, as_float32=True))


def _picture(image: NDArray[Any]) -> Pixels:
    """An input as it looks: grey, or in colours if it has three channels first or last."""
    if image.ndim == 3 and image.shape[0] in (1, 3):
        image = np.moveaxis(image, 0, -1)
    elif image.ndim == 3 and image.shape[-1] not in (1, 3):
        image = image.mean(axis=0)[..., None]
    elif image.ndim == 2:
        image = image[..., None]
    grey = np.rint(255 * _between(image)).astype(np.uint8)
    return np.broadcast_to(grey, (*grey.shape[:2], 3))


def _coloured(values: NDArray[Any]) -> Pixels:
    """Numbers as colours between the least and the greatest; those that are not finite are dark."""
    return scale(_between(values).reshape(-1)).reshape(*values.shape, 3)


def _between(values: NDArray[Any]) -> NDArray[np.float64]:
    """Numbers as shares of their range, those that are not finite as 0."""
    values = np.asarray(values, np.float64)
    known = values[np.isfinite(values)]
    low, high = (float(known.min()), float(known.max())) if len(known) else (0.0, 0.0)
    with np.errstate(invalid="ignore"):
        found: NDArray[np.float64] = np.clip((values - low) / ((high - low) or 1.0), 0.0, 1.0)
    return np.nan_to_num(found)


def _mosaic(images: list[Pixels]) -> Pixels:
    """Images of one size side by side, at most :data:`_SIDE` in a row, on white."""
    height, width = images[0].shape[:2]
    columns = min(_SIDE, len(images))
    rows = -(-len(images) // columns)
    page = np.full((rows * (height + _GAP) - _GAP, columns * (width + _GAP) - _GAP, 3), 255, np.uint8)
    for place, image in enumerate(images):
        top, left = place // columns * (height + _GAP), place % columns * (width + _GAP)
        page[top : top + height, left : left + width] = image
    return page
