"""The built-in rules by name: what may be asked of them without importing one."""

from __future__ import annotations

from typing import NamedTuple

from watchglass.config import RuleSpec


class BuiltIn(NamedTuple):
    """Where a built-in rule is, and which sets hold it.

    Attributes:
        module: Its module in this package, imported when the rule is first asked for.
        sets: Sets of :data:`~watchglass.rules.sets.RULE_SETS`, all of which is ``"all"``. Those of ``"default"`` are
            evaluated where no rule is named; they declare ``default = True``, too. It stands here so that a training
            process need not import them to plan what it captures.
    """

    module: str
    sets: str


#: Built-in rules by name, in the order in which they are evaluated and listed.
BUILT_IN = {
    "ExplodingTensor": BuiltIn("classic.exploding_tensor", "default sagemaker llm vision trees"),
    "ExplodingGradient": BuiltIn("classic.exploding_gradient", "default llm vision"),
    "VanishingGradient": BuiltIn("classic.vanishing_gradient", "default sagemaker llm vision"),
    "DeadRelu": BuiltIn("classic.dead_relu", "default sagemaker vision"),
    "PoorWeightInitialization": BuiltIn("classic.poor_weight_initialization", "default sagemaker llm vision"),
    "WeightUpdateRatio": BuiltIn("classic.weight_update_ratio", "default sagemaker llm vision"),
    "UnchangedTensor": BuiltIn("classic.unchanged_tensor", "default sagemaker llm vision"),
    "LossNotDecreasing": BuiltIn("classic.loss_not_decreasing", "default sagemaker llm vision trees"),
    "Overfit": BuiltIn("classic.overfit", "default sagemaker llm vision trees"),
}


def rule_names(of_set: str = "all") -> list[str]:
    """Names of the built-in rules, or of those of a set, in the order in which they are evaluated."""
    return [name for name, each in BUILT_IN.items() if of_set in ("all", *each.sets.split())]


def default_rules() -> tuple[RuleSpec, ...]:
    """The rules that are evaluated where no rule is named, with their defaults."""
    return tuple(RuleSpec(name) for name in rule_names("default"))
