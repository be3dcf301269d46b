"""InputNormalization: inputs on a scale that weights cannot handle."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from watchglass.config import parameter
from watchglass.records import Finding, Mode, ModuleKind, Severity
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.tables import StepView

#: Modules whose response to an input grows with its scale, and those that bring it to a common scale.
_WEIGHTED = (ModuleKind.LINEAR, ModuleKind.CONVOLUTION, ModuleKind.RECURRENT, ModuleKind.ATTENTION)
_NORMALIZING = ModuleKind.NORMALIZATION


class InputNormalization(Rule):
    """The inputs reach the first weights unnormalised, or have been normalised twice.

    Looks at: moments of the inputs, by channel or feature, and the kinds of the modules that take them as they are. The
        rule skips inputs that the model normalises, divides or embeds first, and those of compiled models.
    Fires when: a linear, convolutional, recurrent or attention layer takes inputs of which a channel has a root mean
        square above `large` (raw 0..255 images), or those of two channels differ by more than `ratio` while the larger
        one is above `uneven`, or most channels lie further than `offset` standard deviations from zero. Inputs that all
        lie within `tiny` of zero, or that hardly vary around a value of order one, count as normalised twice.
    Usual causes: images without a division by 255, features in their physical units, a transform that is applied in
        the data set and again in the loop.
    What to try: subtract the mean and divide by the standard deviation of the training data, by channel or feature.
    Costs: a copy of at most 64 KiB of the inputs and a sketch of them every 64 steps, in the recorder's thread.
    Source: LeCun et al., Efficient BackProp, 1998, 4.3 (zero mean, unit variance). House: `large` lies between digits
        of 0..16, on which networks train well as they are, and images of 0..255, with a root mean square from about 80;
        `ratio` 100 is a ratio of 10,000 between the curvatures of the loss; `tiny` is far above 0..1 divided by 255
        and far below data that were divided once.
    """

    default = True
    needs = (Needs(facts=("input_sketch",), why="to see the scale of the inputs"),)

    large: float = parameter(30.0, help="largest root mean square of a channel", gt=0)
    ratio: float = parameter(100.0, help="largest ratio between the root mean squares of two channels", gt=1)
    uneven: float = parameter(10.0, help="root mean square from which such a ratio counts", gt=0)
    offset: float = parameter(20.0, help="largest mean of a channel, in its standard deviations", gt=0)
    tiny: float = parameter(0.01, help="largest absolute value of inputs that were divided twice", gt=0)

    #: Sketches so far, and those of inputs that weights took as they are.
    sketches: int = state(int)
    judged: int = state(int)

    def check(self, view: StepView) -> Iterable[Finding]:
        """A finding at a step whose inputs were sketched."""
        if view.mode is not Mode.TRAIN:
            return
        for fact in view.facts("input_sketch"):
            self.sketches += 1
            into = fact.data.get("into") or ()
            taken = any(kind.value in into for kind in _WEIGHTED) and _NORMALIZING.value not in into
            if taken and "mean" in fact.data and fact.data.get("sampled"):
                self.judged += 1
                yield from self._judged(view, fact.data)

    def applicable(self, view: StepView) -> str:
        """Not for models that change their inputs before any weight."""
        none = self.sketches and not self.judged
        why = "the model is compiled, or changes or normalises its inputs before the first layer with weights"
        return why if none else ""

    def _judged(self, view: StepView, data: Any) -> Iterable[Finding]:
        channels = data.get("channels") or {"mean": [data["mean"]], "std": [data["std"]]}
        mean, std = np.asarray(channels["mean"], float), np.asarray(channels["std"], float)
        quantiles = data["quantiles"]
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
        if max(abs(low), abs(high)) < self.tiny:
            what = f"{about}: they are as small as if they had been divided twice"
            yield self._finding(view, "inputs_tiny", what, max(abs(low), abs(high)), self.tiny, mean, std)
        elif rms[worst] > self.large:
            what = f"{about}, with a root mean square of {rms[worst]:.3g} ({where})"
            yield self._finding(view, "inputs_off_scale", what, float(rms[worst]), self.large, mean, std)
        elif spread > self.ratio and rms[worst] > self.uneven:
            what = f"{about}, and the scales of their channels differ {spread:.3g}-fold, {where} being the largest"
            yield self._finding(view, "inputs_off_scale", what, spread, self.ratio, mean, std)
        elif common > self.offset and float(np.median(np.abs(mean[varies]))) > 0.5:
            what = f"{about}: they lie {common:.3g} standard deviations from zero"
            twice = float(np.max(np.abs(mean))) < 5 and float(std.max()) < 0.05
            symptom = "inputs_tiny" if twice else "inputs_off_scale"
            yield self._finding(view, symptom, what, common, self.offset, mean, std)

    def _finding(
        self, view: StepView, symptom: str, what: str, value: float, limit: float, mean: Any, std: Any
    ) -> Finding:
        return self.finding(
            view,
            severity=Severity.WARNING,
            subject=symptom,
            value=value if math.isfinite(value) else None,
            limit=limit,
            message=f"{what}, at step {view.mode_step}",
            symptoms=(symptom,),
            evidence={
                "input_mean": float(mean.mean()),
                "input_std": float(std.mean()),
                "means": mean.tolist(),
                "stds": std.tolist(),
            },
        )
