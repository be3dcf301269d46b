"""FrozenByMistake: frozen layers whose weights look freshly initialised."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from watchglass.config import parameter
from watchglass.records import Finding, Mode, Role, Severity, TensorInfo, facts
from watchglass.rules import signals
from watchglass.rules.fresh_weights import initialization_of
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.tables import Statistics, StepView

#: Of a weight that is trained, or was: it is never taken for a fresh one again.
_TRAINED: list[Any] = [[], -1, "", 0]
#: Captures with the same values that are enough where a run ends.
_FEWEST = 2
#: Share of the layers up to which frozen first ones that no optimizer holds are taken for a choice (house); the first
#: layer of a vision transformer is frozen so in MoCo v3 (Chen, Xie and He, ICCV 2021).
_FEW = 0.25


class FrozenByMistake(Rule):
    """Some layers are frozen at random weights from the start, while others are trained.

    Looks at: weights with two or more axes that do not require a gradient, or have gradients and never move because
        the learning rate of their group is zero: minimum, maximum and spread against what the usual initialisations
        give for their size.
    Fires when: such a weight has not changed in `patience` captures and half of the run is over, or in two and the run
        ends, other weights are trained, and the values of this weight fill the range of a uniform initialisation
        (PyTorch's default, Xavier, Kaiming) to its edges with the spread of a uniform distribution. Pretrained weights
        do not look like this. For two or more weights, the spread and range of a normal distribution are enough.
        The looks are not enough: a function of `torch.nn.init`, or `normal_` or `uniform_` of a tensor, must have drawn
        these values, or others in the same order (initializers scale and cut off), or, in a model that was made before
        `watch(model)`, the weight must have been written just once, and be uniform. So what a script has
        loaded in any way is not reported. Pretrained backbones that are frozen, copies of trained weights (targets
        of self-supervised learning; not layers of one stack), fixed tables of positions, and weights that are unfrozen
        later are not reported.
        Random first layers may be frozen on purpose: where no optimizer holds them, and they are a quarter of the
        layers or fewer, the finding is an info.
    Usual causes: a loop over parameters that freezes too much, a learning rate of zero for one group, a backbone whose
        pretrained weights were not loaded.
    What to try: set requires_grad=True for these layers, and give them to the optimizer with a learning rate above
        zero; or load their weights.
    Costs: statistics of weights outside the optimizer, twice in each doubling of captured steps.
    Source: defaults of torch.nn.init; exact for uniform initialisations; house: `patience`, `tolerance`.
    """

    idle_at_plain_steps = True
    needs = (
        Needs(role=Role.WEIGHT, statistics=("min", "max", "std", "sum", "l2"), why="to see frozen weights"),
        Needs(facts=("membership",), optional=True, why="to know weights that are as an initializer drew them"),
        Needs(scalars=("learning_rate/0",), optional=True, why="to see a group whose learning rate is zero"),
        Needs(role=Role.UPDATE, statistics=("l2",), optional=True, why="to know the weights of such a group"),
        Needs(role=Role.GRADIENT, statistics=("l2",), optional=True, why="to see that these could be trained"),
        Needs(facts=("initialization",), optional=True, why="to omit copies of trained weights"),
        Needs(facts=("training_flags",), optional=True, why="to see that weights are unfrozen"),
    )

    patience: int = parameter(3, help="captures with the same values", unit="captures", ge=2)
    tolerance: float = parameter(0.02, help="relative difference of a spread that fits", unit="ratio", gt=0, lt=1)

    #: Frozen weights by name: sum and norm, captures with these, the initialisation that fits, last step seen.
    fresh: dict[str, list[Any]] = state(dict)
    #: Frozen ones that the optimizer holds; spreads of trained weights at the start, by shape.
    held: list[str] = state(list)
    #: Trainable weights that a group with a learning rate of zero has kept as they are, at the first capture.
    unmoved: list[str] | None = state(lambda: None)
    trained: int = state(int)
    #: Frozen weights that are as an initializer drew them, and others that were written once before they were watched.
    drawn: list[str] = state(list)
    written_once: list[str] = state(list)
    #: By model how many parameters were frozen, and the step since which there are fewer.
    frozen: dict[str, int] = state(dict)
    thawed: int = state(int)

    applicable = staticmethod(signals.without_layers)

    def check(self, view: StepView) -> Iterable[Finding]:
        """At most one finding at a captured TRAIN step."""
        for membership in view.facts(facts.Membership):
            self.held = [name for each in membership.optimizers.values() for name in each.frozen.names]
            self.drawn, self.written_once = list(membership.drawn), list(membership.written_once)
            # They require a gradient, although no optimizer holds them.
            self.fresh.update(dict.fromkeys(membership.left_out.names if membership.left_out else (), _TRAINED))
        for flags in view.facts(facts.TrainingFlags):
            if flags.frozen_parameters < self.frozen.get(flags.model, 0):
                self.thawed = view.model_step
            self.frozen[flags.model] = flags.frozen_parameters
        if view.mode is not Mode.TRAIN or not view.captured:
            return
        if self.unmoved is None:
            self.unmoved = self._unmoved(view)
        weights = view.statistics(Role.WEIGHT, min_dims=2)
        # Most weights are trained, and the same ones at every captured step.
        key = ("frozen", *self.held, "unmoved", *self.unmoved)
        frozen, trained, found = weights.group.answers.get(key, lambda: self._frozen(weights))
        self.fresh.update(trained)
        parts = (weights.min, weights.max, weights.std, weights.sum, weights.l2) if frozen else ()
        for row, least, most, std, total, l2 in zip(frozen, *(part[frozen].tolist() for part in parts), strict=True):
            info = weights.tensors[row]
            known = self.fresh.get(info.name)
            if known is None:
                self.fresh[info.name] = [[total, l2], 1, self._fits(view, info, least, most, std), 0]
            elif known[0] != [total, l2]:  # unfrozen for a time, or a running average of other weights
                self.fresh[info.name] = _TRAINED
            elif known[1] > 0:
                known[1] += 1
                known[3] = view.model_step
        self.trained = max(self.trained, found)
        planned = view.latest_fact(facts.PlannedSteps)
        steps = planned.steps if planned is not None else None
        if steps is not None and 2 * view.model_step >= steps:
            yield from self._judge(view, self.patience)

    def finish(self, view: StepView) -> Iterable[Finding]:
        """The last judgement; a slow run has few captures."""
        yield from self._judge(view, min(self.patience, _FEWEST))

    def _unmoved(self, view: StepView) -> list[str]:
        """Weights with gradients that do not move, where one group has a learning rate of zero and another has not."""
        if not signals.has_idle_group(view):
            return []
        parts = [view.statistics(role, min_dims=2) for role in (Role.UPDATE, Role.GRADIENT)]
        moved, slope = (dict(zip(part.names, part.l2.tolist(), strict=True)) for part in parts)
        names = [name.removeprefix("update/") for name, norm in moved.items() if norm == 0]
        return [name for name in names if slope.get(f"gradient/{name}", 0) > 0]

    def _kept(self) -> set[str]:
        """Names of weights that the optimizer holds and leaves as they are."""
        return {*self.held, *(self.unmoved or ())}

    def _frozen(self, weights: Statistics) -> tuple[list[int], dict[str, list[Any]], int]:
        """Rows of frozen weights; the trained ones as :attr:`fresh` has them, and how many of these are layers'."""
        rows, trained = list[int](), list[TensorInfo]()
        kept = self._kept()
        for row, info in enumerate(weights.tensors):
            if info.trainable is False or info.name in kept:
                rows.append(row)
            else:
                trained.append(info)
        # An image that is optimised is no layer.
        return rows, dict.fromkeys((info.name for info in trained), _TRAINED), sum(bool(i.module) for i in trained)

    def _judge(self, view: StepView, patience: int) -> Iterable[Finding]:
        # A weight that has been unfrozen shows by its values where it is captured. Short runs have few late captures.
        rows = {name: row for name, row in self.fresh.items() if row[1] >= patience and row[3] >= self.thawed}
        still = {name: row[2] for name, row in rows.items() if self._is_random(name, row[2])}
        unmoved = {name: fits for name, fits in still.items() if name in (self.unmoved or ())}
        for fresh in (unmoved, {name: fits for name, fits in still.items() if name not in unmoved}):
            names = [name for name, fits in fresh.items() if "uniform" in fits] or list(fresh) * (len(fresh) > 1)
            if self.trained and names:
                yield self._about(view, names, fresh[names[0]], rows[names[0]][3], zero_rate=fresh is unmoved)

    def _is_random(self, name: str, fits: str) -> bool:
        """Whether more than its looks tells that a weight is random; what was written once must be of the exact kind.

        A loaded weight may be normal, and hardly any is uniform to its edges after one step of training.
        """
        return (name in self.drawn and bool(fits)) or (name in self.written_once and "uniform" in fits)

    def _about(self, view: StepView, names: list[str], fits: str, step: int, *, zero_rate: bool) -> Finding:
        others = f" and {len(names) - 1} more" if len(names) > 1 else ""
        verb = "are" if others else "is"
        what = f"{verb} frozen since the start, with weights that look"
        if zero_rate:
            what = f"{verb} in a group whose learning rate is zero since the start, and look{'' if others else 's'}"
        chosen = not zero_rate and not {*names} & {*self.held} and self._are_first_few(view, names)
        return self.finding(
            view,
            severity=Severity.INFO if chosen else Severity.WARNING,
            subject="zero rate" if zero_rate else "frozen",
            tensors=names[:16],
            value=float(len(names)),
            limit=0.0,
            message=f"{names[0]}{others} {what} like a fresh initialisation ({fits}), up to step {step}",
            symptoms=("group_rate_is_zero",) if zero_rate else ("frozen_at_random_weights",),
        )

    def _are_first_few(self, view: StepView, names: list[str]) -> bool:
        """Whether weights are those of the first layers, before all trained ones, and few."""
        places = [
            [info.layer_index for info in map(view.catalog.by_name, some) if info is not None]
            for some in (names, [name for name, row in self.fresh.items() if row[1] < 0])
        ]
        frozen, trained = places
        return bool(frozen and trained) and max(frozen) < min(trained) and len(frozen) <= _FEW * sum(map(len, places))

    def _fits(self, view: StepView, info: TensorInfo, least: float, most: float, std: float) -> str:
        """The initialisation that the values of a weight look like; "" for none."""
        if self._is_copy(view, info, std):
            return ""
        size = math.prod(info.shape)
        return initialization_of(info.shape, info.module_kind, size, least, most, std, self.tolerance)

    def _is_copy(self, view: StepView, info: TensorInfo, std: float) -> bool:
        """Whether a trained weight began with the same shape and spread.

        Layers of one stack, and frozen weights that the optimizer holds, are copies of another from the start.
        """
        initial = view.latest_fact(facts.Initialization)
        rows = initial.tensors if initial is not None else {}
        kept = self._kept()
        others = [row for name, row in rows.items() if name not in kept and not _is_stacked(name, info.name)]
        return any(row.shape == tuple(info.shape) and abs((row.std or 0) / std - 1) < 1e-5 for row in others)


def _is_stacked(one: str, other: str) -> bool:
    """Whether two weights have the same place in layers of one stack: their paths differ in one number at most."""
    parts, others = one.split("."), other.split(".")
    if len(parts) != len(others):
        return False
    different = [pair for pair in zip(parts, others, strict=True) if pair[0] != pair[1]]
    return len(different) <= 1 and all(part.isdecimal() for pair in different for part in pair)
