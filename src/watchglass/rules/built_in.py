"""The built-in rules by name: what may be asked of them without importing one."""

from __future__ import annotations

from watchglass.config import RuleSpec

#: Built-in rules by name, in the order in which they are evaluated and listed. Imported when first asked for.
BUILT_IN = {
    "ExplodingTensor": "watchglass.rules.classic.exploding_tensor",
    "ExplodingGradient": "watchglass.rules.classic.exploding_gradient",
    "VanishingGradient": "watchglass.rules.classic.vanishing_gradient",
    "DeadRelu": "watchglass.rules.classic.dead_relu",
    "PoorWeightInitialization": "watchglass.rules.classic.poor_weight_initialization",
    "WeightUpdateRatio": "watchglass.rules.classic.weight_update_ratio",
    "UnchangedTensor": "watchglass.rules.classic.unchanged_tensor",
    "LossNotDecreasing": "watchglass.rules.classic.loss_not_decreasing",
    "Overfit": "watchglass.rules.classic.overfit",
}


def rule_names() -> list[str]:
    """Names of the built-in rules, in the order in which they are evaluated."""
    return list(BUILT_IN)


#: Those that are evaluated where no rule is named: the rules that declare ``default = True``. They stand here, too, so
#: that a training process need not import them to plan what it captures.
DEFAULT_RULES = (
    "ExplodingTensor", "ExplodingGradient", "VanishingGradient", "DeadRelu", "PoorWeightInitialization",
    "WeightUpdateRatio", "UnchangedTensor", "LossNotDecreasing", "Overfit",
)  # fmt: skip


def default_rules() -> tuple[RuleSpec, ...]:
    """The rules that are evaluated where no rule is named, with their defaults."""
    return tuple(RuleSpec(name) for name in DEFAULT_RULES)
