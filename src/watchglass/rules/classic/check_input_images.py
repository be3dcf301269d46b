"""CheckInputImages: images whose channels are not centred."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from watchglass.config import parameter
from watchglass.records import Finding, Mode, Severity, facts
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.tables import StepView


class CheckInputImages(Rule):
    """The channels of the input images are far from zero mean.

    Looks at: mean and standard deviation of the input images by channel, over the sketched training steps.
    Fires when: over at least `threshold_samples` images the absolute mean of a channel is above `threshold_mean`, in
        units of its standard deviation: an `info`, because networks train on images of 0..1 too. In calibration
        `sagemaker` the mean itself counts, and it is a `warning`. InputNormalization reports inputs that harm training.
    Usual causes: a transform without normalisation.
    What to try: subtract the mean and divide by the standard deviation of the training images, by channel.
    Costs: a copy of at most 64 KiB of the inputs, at about 80 of 5,000 steps.
    Source: `threshold_mean`, `threshold_samples`: SageMaker Debugger; house: 2 standard deviations.
    """

    needs = (Needs(facts=("input_sketch",), why="to see the means of channels"),)
    modes = (Mode.TRAIN,)
    calibrations: ClassVar[Mapping[str, Mapping[str, Any]]] = {"sagemaker": {"threshold_mean": 0.2, "relative": False}}

    threshold_mean: float = parameter(2.0, help="largest absolute mean of a channel", gt=0)
    threshold_samples: int = parameter(500, help="images before the rule judges", unit="images", ge=1)
    relative: bool = parameter(True, help="whether the mean counts in standard deviations")

    images: int = state(int)
    #: Sums over images of mean and mean square, by channel.
    means: list[float] = state(list)
    squares: list[float] = state(list)

    def check(self, view: StepView) -> Iterable[Finding]:
        """A finding once enough images were sketched."""
        for sketch in view.facts(facts.InputSketch):
            if sketch.channels is not None and len(sketch.shape) == 4:
                self._add(sketch.channels.mean, sketch.channels.std, sketch.shape[0])
                yield from self._judge(view)

    def applicable(self, view: StepView) -> str:
        """Not for models without images."""
        return "" if self.images else "no input is a batch of images"

    def _add(self, means: Sequence[float], stds: Sequence[float], images: int) -> None:
        if len(self.means) != len(means):
            self.images, self.means, self.squares = 0, [0.0] * len(means), [0.0] * len(means)
        self.images += images
        self.means = [old + images * new for old, new in zip(self.means, means, strict=True)]
        squares = [mean**2 + std**2 for mean, std in zip(means, stds, strict=True)]
        self.squares = [old + images * new for old, new in zip(self.squares, squares, strict=True)]

    def _judge(self, view: StepView) -> Iterable[Finding]:
        if self.images < self.threshold_samples:
            return
        means = [total / self.images for total in self.means]
        variances = [total / self.images - mean**2 for total, mean in zip(self.squares, means, strict=True)]
        units = [max(variance, 1e-12) ** 0.5 if self.relative else 1.0 for variance in variances]
        values = [abs(mean) / unit for mean, unit in zip(means, units, strict=True)]
        worst = max(range(len(values)), key=lambda each: values[each])
        if values[worst] > self.threshold_mean:
            of = " standard deviations" if self.relative else ""
            yield self.finding(
                view,
                severity=Severity.INFO if self.relative else Severity.WARNING,
                subject="images",
                value=values[worst],
                limit=self.threshold_mean,
                message=f"channel {worst} of {self.images} images has a mean of {values[worst]:.3g}{of}",
                symptoms=() if self.relative else ("inputs_off_scale",),
                evidence={"channel": worst, "images": self.images},
            )
