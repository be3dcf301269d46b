"""The capture that rules need: the union of their needs, as settings of a session."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from watchglass.config import (
    BUILT_IN_COLLECTIONS,
    DEFAULT_COLLECTIONS,
    PART_OF,
    Collection,
    ModeSteps,
    RuleSpec,
    facts_for,
)
from watchglass.records import Mode, ModuleKind, Role
from watchglass.rules.built_in import default_rules
from watchglass.rules.needs import Needs

#: Collection of the tensors of a role. Losses and metrics are recorded at every step, tensors of a script when saved.
_BY_ROLE = {
    Role.WEIGHT: "weights", Role.BIAS: "biases", Role.GRADIENT: "gradients", Role.UPDATE: "updates",
    Role.OUTPUT: "outputs", Role.INPUT: "inputs", Role.OPTIMIZER_STATE: "optimizer_variables",
    Role.LABEL: "labels", Role.PREDICTION: "predictions",
}  # fmt: skip

#: Costs nothing and makes a step a captured one, so that facts are recorded without any tensors.
_EVERY_STEP = "losses"

#: Interval outside of training, where no budget chooses, for rules without a longest interval.
_INTERVAL = 32

#: Longest readable part of the name of a partial collection.
_LONGEST = 24

_MODES = {Mode.EVAL: "eval", Mode.PREDICT: "predict"}


def capture_for(
    rules: Iterable[RuleSpec],
    calibration: str = "default",
    *,
    given: Iterable[str] = (),
    default: Sequence[Collection] = DEFAULT_COLLECTIONS,
    always: Sequence[Collection] = (),
) -> dict[str, Any]:
    """Fields of :class:`~watchglass.config.SessionConfig` that record what rules need.

    Pure: depends on the rules' needs alone. In training the overhead budget chooses the interval; a rule that needs a
    shorter one gets status ``Starved``. With the default rules, the default collections are recorded too; for the
    default rules alone the settings are empty.

    Args:
        rules: The rules.
        calibration: Their set of default thresholds.
        given: Names of the settings that the user gives for the whole run; an interval among them is kept.
        default: The collections for the default rules.
        always: The collections for any rules.

    Raises:
        UnknownNameError, InvalidValueError, MissingFileError, PluginFileError: See :func:`build_rule`.
    """
    rules, by_default = tuple(rules), {spec.name for spec in default_rules()}
    base = tuple(always)
    default_ones = by_default <= {spec.name for spec in rules}
    if default_ones:
        rules, base = tuple(spec for spec in rules if spec.name not in by_default), tuple(default)
        if not rules:
            return {}
    from watchglass.rules.registry import build_rule  # imports NumPy and the rules

    needs = [need for spec in rules for need in build_rule(spec, calibration).needs]
    intervals = not {"save_interval", "modes"} & set(given)
    return capture_of(needs, base, intervals=intervals, default=default_ones)


def capture_of(
    needs: Iterable[Needs], base: Sequence[Collection] = (), *, intervals: bool = True, default: bool = False
) -> dict[str, Any]:
    """As :func:`capture_for`, of needs.

    Args:
        needs: Required and optional needs.
        base: Collections that are recorded in any case.
        intervals: Whether to set the intervals outside of training.
        default: Whether to record the facts that the default rules read.
    """
    needs = tuple(needs)
    base = base or (Collection(_EVERY_STEP),)
    wanted: dict[str, _Wanted] = {}
    for need in needs:
        for part in _wanted_by(need):
            wanted.setdefault(part.name, part).join(part)
    collections = {collection.name: collection for collection in base}
    for part in wanted.values():
        before, whole = collections.get(part.whole), wanted.get(part.whole)
        in_base = before is not None and part.modes <= {Mode.TRAIN} and not part.raw
        if not in_base and (part is whole or whole is None or not part.is_within(whole)):
            collections[part.name] = part.collection(before is not None, intervals)
    settings: dict[str, Any] = {"collections": list(collections.values())}
    facts = facts_for((kind for need in needs for kind in need.facts), default=default)
    if facts is not None:
        settings["facts"] = list(facts)
    return settings


@dataclass
class _Wanted:
    """One collection that rules need."""

    whole: str  #: The built-in collection that it is or belongs to.
    name: str  #: Name of the collection.
    #: Its selection from ``whole``.
    module_kinds: tuple[ModuleKind, ...] = ()
    regex: str | None = None
    modes: set[Mode] = field(default_factory=set)  #: Modes in which rules need it.
    #: Outside of training, the longest useful interval by mode.
    intervals: dict[Mode, int] = field(default_factory=dict)
    raw: bool = False  #: Whether rules need whole tensors.

    def join(self, other: _Wanted) -> None:
        self.modes, self.raw = self.modes | other.modes, self.raw or other.raw
        for mode, interval in other.intervals.items():
            self.intervals[mode] = min(interval, self.intervals.get(mode, interval))

    def is_within(self, whole: _Wanted) -> bool:
        """Whether ``whole`` contains it, at least as often."""
        often = all(whole.intervals.get(mode, interval + 1) <= interval for mode, interval in self.intervals.items())
        return self.modes <= whole.modes and often and self.raw <= whole.raw

    def collection(self, in_training: bool, intervals: bool) -> Collection:
        """The collection, also recorded in training if needed."""
        modes = {
            _MODES[mode]: ModeSteps(save_interval=every if intervals else None)
            for mode, every in sorted(self.intervals.items())
        }
        if Mode.TRAIN not in self.modes and not in_training:
            modes["train"] = ModeSteps(end_step=0)
        selects: dict[str, Any] = {"save_raw": True} if self.raw else {}
        if self.whole == self.name:
            return Collection(self.name, modes=modes or None, **selects)
        selects["module_kinds"] = self.module_kinds
        selects["include_regex"] = (self.regex,) if self.regex is not None else ()
        built_in = BUILT_IN_COLLECTIONS[self.whole]
        return Collection(self.name, roles=built_in.roles, modes=modes or None, **selects)


def _wanted_by(need: Needs) -> list[_Wanted]:
    """The collections of one need."""
    modes = {mode for mode in need.modes if mode is not Mode.GLOBAL} or {Mode.TRAIN, Mode.EVAL}
    intervals: dict[Mode, int] = {mode: need.max_interval or _INTERVAL for mode in modes if mode in _MODES}
    found = []
    for whole in collections_for(need):
        name, kinds, regex = whole, need.module_kinds, need.name_regex
        if kinds or regex is not None:
            if BUILT_IN_COLLECTIONS[whole].tags:
                kinds, regex = (), None  # few tensors have a tag
            else:
                name = f"{PART_OF}{whole}.{_label(kinds, regex)}"
        found.append(_Wanted(whole, name, kinds, regex, set(modes), dict(intervals), need.raw))
    return found


def collections_for(need: Needs) -> list[str]:
    """Built-in collections with the needed tensors; none for values that are recorded in any case."""
    if not need.of_tensors:
        return []
    if need.collection is not None:
        built_in = BUILT_IN_COLLECTIONS.get(need.collection)
        return [] if built_in is None or built_in.every_step else [need.collection]
    if need.having and need.role is None:
        return [rows.collection for rows in need.having if rows.collection]
    if need.role is not None:
        return [_BY_ROLE[need.role]] if need.role in _BY_ROLE else []
    if need.name_regex is not None:
        return ["all"]  # a name does not give the role of a tensor
    if need.module_kinds:
        return ["outputs"]
    return [collection.name for collection in DEFAULT_COLLECTIONS]


def _label(module_kinds: tuple[ModuleKind, ...], regex: str | None) -> str:
    """The suffix of the name: readable, and unique for the selectors."""
    words = re.sub(r"[^A-Za-z0-9]+", "-", "-".join((*(kind.value for kind in module_kinds), regex or ""))).strip("-")
    if regex is None and len(words) <= _LONGEST:
        return words
    digest = hashlib.sha256(repr((words, regex)).encode()).hexdigest()[:6]
    return f"{words[:_LONGEST]}-{digest}".lstrip("-")
