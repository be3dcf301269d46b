"""InputNormalization: inputs on a scale that weights cannot handle."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from watchglass.config import parameter
from watchglass.records import Finding, Mode, ModuleKind, Severity, facts
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.tables import StepView

#: Modules whose response to an input grows with its scale, and those that bring it to a common scale.
_WEIGHTED = (ModuleKind.LINEAR, ModuleKind.CONVOLUTION, ModuleKind.RECURRENT, ModuleKind.ATTENTION)
_NORMALIZING = ModuleKind.NORMALIZATION
#: Means and standard deviations, by channel, that scripts normalise images in 0..1 with.
_OF_IMAGES = (
    ((0.5,), (0.5,)),
    ((0.1307,), (0.3081,)),  # MNIST
    ((0.2860,), (0.3530,)),  # Fashion-MNIST
    ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),  # ImageNet
    ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),  # CIFAR-10
    ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    ((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)),  # CIFAR-100
    ((0.4815, 0.4578, 0.4082), (0.2686, 0.2613, 0.2758)),  # CLIP
)
#: Features from which on inputs with two axes may be images, and a single sample says how large inputs are. Levels of
#: grey that values were divided by.
_PIXELS, _LEVELS = 64, (8, 128)
#: Relative error of numbers that were computed twice in single precision, and of moments of a sample.
_ROUNDING, _OWN = 1e-3, 0.04
#: Greatest values of pixels, and usual spreads as a share of these.
_RANGES, _SPREADS = (1, 16, 255), (0.1, 0.5)
#: Mean from which on inputs that hardly vary around it count.
_SHIFTED = 0.2
#: Features of a table from which on their means say whether it was standardised twice.
_FEATURES = 4


class InputNormalization(Rule):
    """The inputs reach the first weights unnormalised, or have been normalised twice.

    Looks at: moments of the inputs, by channel or feature, and the kinds of the modules that take them unchanged. The
        rule skips inputs that the model normalises, divides or embeds first, and those of compiled models.
    Fires when: a linear, convolutional, recurrent or attention layer takes inputs of which a channel has a root mean
        square above `large` (raw 0..255 images), or those of two channels differ by more than `ratio` while the larger
        one is above `uneven`, or most channels lie further than `offset` standard deviations from zero. Inputs that all
        lie within `tiny` of zero (not a single sample of few numbers), or that hardly vary around a value of order
        one, count as normalised twice. So do images with the range that a usual normalisation gives when it is
        applied twice, or in the steps that two divisions leave, and tables whose features all have means below zero
        by several spreads, with unequal spreads: an `info` unless the median feature lies further than
        `offset` spreads from zero.
    Usual causes: images without a division by 255, features in their physical units, a transform that is applied in
        the data set and again in the loop.
    What to try: subtract the mean and divide by the standard deviation of the training data, by channel or feature.
    Costs: a copy of at most 64 KiB of the inputs and a sketch of them every 64 steps, in the recorder's thread.
    Source: LeCun et al., Efficient BackProp, 1998, 4.3 (zero mean, unit variance). House: `large` lies between digits
        of 0..16, on which networks train well as they are, and images of 0..255, with a root mean square from about 80;
        `ratio` 100 is a ratio of 10,000 between the curvatures of the loss; `tiny` is far above 0..1 divided by 255
        and far below data that were divided once.
    """

    idle_at_plain_steps = True
    needs = (Needs(facts=("input_sketch",), why="to see the scale of the inputs"),)
    modes = (Mode.TRAIN,)

    large: float = parameter(30.0, help="largest root mean square of a channel", gt=0)
    ratio: float = parameter(100.0, help="largest ratio between the root mean squares of two channels", gt=1)
    uneven: float = parameter(10.0, help="root mean square from which such a ratio counts", gt=0)
    offset: float = parameter(20.0, help="largest mean of a channel, in its standard deviations", gt=0)
    tiny: float = parameter(0.01, help="largest absolute value of inputs that were divided twice", gt=0)

    #: Sketches so far, and those of inputs that weights took as they are.
    sketches: int = state(int)
    judged: int = state(int)
    #: Least value and means of the latest of these.
    before: list[float] = state(list)

    def check(self, view: StepView) -> Iterable[Finding]:
        """A finding at a step whose inputs were sketched."""
        for sketch in view.facts(facts.InputSketch):
            self.sketches += 1
            into = sketch.into or ()
            taken = any(kind.value in into for kind in _WEIGHTED) and _NORMALIZING.value not in into
            if taken and sketch.mean is not None and sketch.std is not None and sketch.quantiles and sketch.sampled:
                self.judged += 1
                yield from self._judged(view, sketch, sketch.mean, sketch.std, sketch.quantiles)

    def applicable(self, view: StepView) -> str:
        """Not for models that change their inputs before any weight."""
        none = self.sketches and not self.judged
        why = "the model is compiled, or changes or normalises its inputs before the first layer with weights"
        return why if none else ""

    def _judged(
        self, view: StepView, sketch: facts.InputSketch, center: float, width: float, quantiles: Sequence[float]
    ) -> Iterable[Finding]:
        channels = sketch.channels or facts.SketchedUnits((center,), (width,))
        mean, std = np.asarray(channels.mean, float), np.asarray(channels.std, float)
        low, high = float(quantiles[0]), float(quantiles[-1])
        varies = std > 1e-12
        if not varies.any() or not (np.isfinite(mean).all() and np.isfinite(std).all()):
            return
        rms = np.hypot(mean, std)
        worst = int(np.argmax(rms))
        apart = np.abs(mean[varies]) / std[varies]
        # Half of the elements may be padding: zeros, which say nothing about the scale of the others.
        common = float(np.median(apart))
        spread = float(rms.max() / rms[varies].min())
        about = f"the inputs go from {low:.3g} to {high:.3g}"
        where = f"channel {worst} of {len(rms)}" if len(rms) > 1 else "all of them"
        shape = sketch.shape
        pixels = len(shape) > 2 or (len(shape) == 2 and shape[1] >= _PIXELS)
        # Black pixels give all batches the same minimum. Batches of sorted samples have different means.
        before, self.before = self.before, [low, *mean.tolist()]
        black = len(before) > 0 and abs(low - before[0]) <= _ROUNDING * abs(low)
        walks = len(before) != len(mean) + 1 or bool(np.median(np.abs(mean - before[1:])[varies] / std[varies]) > 1)
        again = _divided_twice(quantiles) or (_of_images(low, high, center, width, black=black) if pixels else "")
        if again:
            yield self._finding(view, "inputs_rescaled_twice", f"{about}{again}", high, 1.0, mean, std, (low, high))
        elif max(abs(low), abs(high)) < self.tiny and not _is_small_sample(shape):
            what = f"{about}: they are as small as if they had been divided twice"
            yield self._finding(view, "inputs_tiny", what, max(abs(low), abs(high)), self.tiny, mean, std, (low, high))
        elif rms[worst] > self.large:
            what = f"{about}, with a root mean square of {rms[worst]:.3g} ({where})"
            yield self._finding(view, "inputs_off_scale", what, float(rms[worst]), self.large, mean, std, (low, high))
        elif spread > self.ratio and rms[worst] > self.uneven:
            what = f"{about}, and the scales of their channels differ {spread:.3g}-fold, {where} being the largest"
            yield self._finding(view, "inputs_off_scale", what, spread, self.ratio, mean, std, (low, high))
        elif not walks and common > self.offset and float(np.median(np.abs(mean[varies]))) > _SHIFTED:
            again = _of_table(mean, std) if not pixels else ""
            what = f"{about}: they lie {common:.3g} standard deviations from zero{again}"
            twice = float(np.max(np.abs(mean))) < 5 and float(std.max()) < 0.05
            symptom = "inputs_rescaled_twice" if again else "inputs_tiny" if twice else "inputs_off_scale"
            yield self._finding(view, symptom, what, common, self.offset, mean, std, (low, high))
        elif not pixels and high > 0 and (again := _of_table(mean, std)):
            # Logarithms look so too.
            yield replace(
                self._finding(view, "inputs_rescaled_twice", f"{about}{again}", high, 1.0, mean, std, (low, high)),
                severity=Severity.INFO,
            )

    def _finding(
        self,
        view: StepView,
        symptom: str,
        what: str,
        value: float,
        limit: float,
        mean: Any,
        std: Any,
        ends: tuple[float, float],
    ) -> Finding:
        return self.finding(
            view,
            subject=symptom,
            value=value if math.isfinite(value) else None,
            limit=limit,
            message=f"{what}, at step {view.mode_step}",
            symptoms=(symptom,),
            evidence={
                "input_mean": float(mean.mean()),
                "input_std": float(std.mean()),
                "range": [*ends],
                "channel": int(np.argmax(np.hypot(mean, std))),
                "means": mean.tolist(),
                "stds": std.tolist(),
            },
        )


def _is_small_sample(shape: Sequence[int]) -> bool:
    """Whether the inputs are a single sample of few numbers, as the first state of an episode, often near zero."""
    return (len(shape) < 2 or shape[0] == 1) and math.prod(shape) < _PIXELS


def _divided_twice(quantiles: Sequence[float]) -> str:
    """Says that whole numbers were divided twice by their greatest, if they were; "" otherwise."""
    low, high = quantiles[0], quantiles[-1]
    levels = round(1 / high) if low == 0 and 0 < high < 1 else 0
    if not _LEVELS[0] <= levels < _LEVELS[1] or abs(high * levels - 1) > _ROUNDING:
        return ""
    steps = [value * levels**2 for value in quantiles]
    # A quantile between two neighbours may lie off the grid.
    off = sum(abs(step - round(step)) > _ROUNDING * levels for step in steps)
    return f", in steps of 1/{levels**2}: whole numbers up to {levels}, divided twice by {levels}" if off < 2 else ""


def _of_images(low: float, high: float, mean: float, std: float, *, black: bool) -> str:
    """Says that pixels were normalised twice, with usual numbers or with their own; "" otherwise.

    Args:
        low: Least value.
        high: Greatest value.
        mean: Mean of all values.
        std: Their standard deviation.
        black: Whether the sketch before had the same least value.
    """
    # One of many minima of other data comes near to such a number by chance.
    for means, stds in _OF_IMAGES if black else ():
        ends = [[((end - m) / s - m) / s for m, s in zip(means, stds, strict=True)] for end in (0, 1)]
        least, most = min(ends[0]), max(ends[1])
        if abs(low / least - 1) < _ROUNDING and (high - low) / (most - least) > 0.5 and high < most + _ROUNDING:
            return f": such a minimum results from two normalisations with mean {means[0]:g} and spread {stds[0]:g}"
    # With their mean and spread, twice: a range is divided by the square of the spread, the spread by itself.
    for most in _RANGES if black else _RANGES[:1]:
        root = math.sqrt(max(0.0, high - low) / most)
        own = low < 0 < root and _SPREADS[0] < 1 / (root * most) < _SPREADS[1] and abs(std / root - 1) < _OWN
        if own and abs(mean - low / (root + 1)) < _OWN * root:
            return f" with a spread of {std:.3g}: so do pixels from 0 to {most} that are standardised twice"
    return ""


def _of_table(mean: Any, std: Any) -> str:
    """Says that features were standardised twice with the mean and spread of the raw ones; "" otherwise.

    The second time, features with mean 0 and spread 1 get the mean -m/s and the spread 1/s: as raw features are mostly
    positive, the means are negative, and their spreads are as unequal as those of the raw ones.
    """
    varies = std > 1e-12
    if varies.sum() < _FEATURES or not (mean[varies] < 0).all():
        return ""
    apart = float(np.median(-mean[varies] / std[varies]))
    unequal = std[varies].max() / std[varies].min() > 2
    if apart < 2 or np.median(-mean[varies]) < 1 or not unequal:
        return ""
    return (
        f", and the means of all {int(varies.sum())} features are negative, in the median {apart:.3g} standard "
        f"deviations from zero, as where the mean is subtracted twice"
    )
