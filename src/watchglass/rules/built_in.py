"""The built-in rules by name, with their modules and sets, without importing a rule."""

from __future__ import annotations

from typing import NamedTuple

from watchglass.config import RuleSpec


class BuiltInRule(NamedTuple):
    """Where a built-in rule is, and which sets hold it.

    Attributes:
        module: Its module in this package, imported on first use of the rule.
        sets: Names of its sets in :data:`~watchglass.rules.registry.RULE_SETS`, except ``"all"``, which has every rule.
            Rules of ``"default"`` are evaluated when the user names none; each declares ``default = True``. The sets
            are listed here, so that a training process plans its capture without importing the rules.
        built_only: Why no real training run fires it in the tests, as half a sentence; "" where one does, live under
            ``watchglass run``, and its healthy twin does not. A test compares it with the tests of real runs.
    """

    module: str
    sets: str
    built_only: str = ""


#: Built-in rules by name, in the order in which they are evaluated and listed.
BUILT_IN = {
    "ExplodingTensor": BuiltInRule("classic.exploding_tensor", "default sagemaker llm vision trees"),
    "ExplodingGradient": BuiltInRule("classic.exploding_gradient", "default llm vision"),
    "VanishingGradient": BuiltInRule("classic.vanishing_gradient", "default sagemaker llm vision"),
    "DeadRelu": BuiltInRule("classic.dead_relu", "default sagemaker vision"),
    "PoorWeightInitialization": BuiltInRule("classic.poor_weight_initialization", "default sagemaker llm vision"),
    "WeightUpdateRatio": BuiltInRule("classic.weight_update_ratio", "default sagemaker llm vision"),
    "UnchangedTensor": BuiltInRule("classic.unchanged_tensor", "default sagemaker llm vision"),
    "LossNotDecreasing": BuiltInRule("classic.loss_not_decreasing", "default sagemaker llm vision trees"),
    "LossIncreasing": BuiltInRule("classic.loss_increasing", "default llm vision trees"),
    "Overfit": BuiltInRule("classic.overfit", "default sagemaker llm vision trees"),
    "Overtraining": BuiltInRule("classic.overtraining", "sagemaker llm vision trees"),
    "Underfit": BuiltInRule("classic.underfit", "default vision"),
    "ZeroLoss": BuiltInRule("classic.zero_loss", "default llm vision"),
    "LossOscillating": BuiltInRule("classic.loss_oscillating", "llm vision trees"),
    "SaturatedActivation": BuiltInRule("classic.saturated_activation", "sagemaker"),
    "AllZero": BuiltInRule("classic.all_zero", "sagemaker llm vision"),
    "TensorVariance": BuiltInRule("classic.tensor_variance", "sagemaker"),
    "StalledTraining": BuiltInRule("classic.stalled_training", "sagemaker llm"),
    "SimilarAcrossRuns": BuiltInRule("classic.similar_across_runs", "sagemaker"),
    "CheckNaN": BuiltInRule("classic.check_nan", "llm vision trees"),
    "TreeDepth": BuiltInRule("classic.tree_depth", "sagemaker trees"),
    "FeatureImportanceOverweight": BuiltInRule("classic.feature_importance_overweight", "sagemaker trees"),
    "AttentionLogitGrowth": BuiltInRule("modern.attention_logit_growth", "llm"),
    "AttentionEntropyCollapse": BuiltInRule("modern.attention_entropy_collapse", "llm"),
    "OutputLogitDrift": BuiltInRule("modern.output_logit_drift", "llm"),
    "EmbeddingNormGrowth": BuiltInRule("modern.embedding_norm_growth", "llm"),
    "RouterLogits": BuiltInRule("modern.router_logits", "llm"),
    "MixedPrecision": BuiltInRule("modern.mixed_precision", "llm vision"),
    "LossSpike": BuiltInRule("modern.loss_spike", "llm"),
    "GradientNormSpike": BuiltInRule("modern.gradient_norm_spike", "llm"),
    "MoEImbalance": BuiltInRule("modern.moe_imbalance", "default llm"),
    "DeadExpert": BuiltInRule("modern.dead_expert", "default llm"),
    "MissingZeroGrad": BuiltInRule("modern.missing_zero_grad", "default llm vision"),
    "OptimizerNeverSteps": BuiltInRule("modern.optimizer_never_steps", "default llm vision"),
    "OptimizerMissesParameter": BuiltInRule("modern.optimizer_misses_parameter", "default llm vision"),
    "OptimizerForeignParameter": BuiltInRule("modern.optimizer_foreign_parameter", "default llm vision"),
    "UnusedParameter": BuiltInRule("modern.unused_parameter", "default llm vision"),
    "TrainEvalMode": BuiltInRule("modern.train_eval_mode", "default llm vision"),
    "SchedulerMisuse": BuiltInRule("modern.scheduler_misuse", "default llm vision"),
    "LossShape": BuiltInRule("modern.loss_shape", "default llm vision"),
    "OutputActivationMismatch": BuiltInRule("modern.output_activation_mismatch", "default llm vision"),
    "LossGraph": BuiltInRule("modern.loss_graph", "default llm vision"),
    "MisplacedActivation": BuiltInRule("modern.misplaced_activation", "default llm vision"),
    "ActivationMissing": BuiltInRule("modern.activation_missing", "default llm vision"),
    "DetachedGraph": BuiltInRule("modern.detached_graph", "default llm vision"),
    "NormalizationBatchSize": BuiltInRule("modern.normalization_batch_size", "default vision"),
    "RepeatedBatch": BuiltInRule("modern.repeated_batch", "default llm vision"),
    "InputNormalization": BuiltInRule("modern.input_normalization", "default vision"),
    "WorkerSeedRepeats": BuiltInRule("modern.worker_seed_repeats", "default llm vision"),
    "RanksRepeatData": BuiltInRule("modern.ranks_repeat_data", "default llm vision"),
    "ReplicaDivergence": BuiltInRule("modern.replica_divergence", "default llm vision"),
    "GradientsSummedOverRanks": BuiltInRule("modern.gradients_summed_over_ranks", "default llm vision"),
    "UpdateAgainstGradient": BuiltInRule("modern.update_against_gradient", "default llm vision"),
    "UpdateBelowPrecision": BuiltInRule("modern.update_below_precision", "default llm vision"),
    "AdamEpsilonDominates": BuiltInRule("modern.adam_epsilon_dominates", "default llm vision"),
    "AdamSecondMomentStale": BuiltInRule("modern.adam_second_moment_stale", "llm vision"),
    "PenaltyDominates": BuiltInRule("modern.penalty_dominates", "default llm vision"),
    "NoDataGradient": BuiltInRule("modern.no_data_gradient", "default llm vision"),
    "TooSlow": BuiltInRule("modern.too_slow", "default llm vision"),
    "LearningRateZero": BuiltInRule("modern.learning_rate_zero", "default llm vision"),
    "AlwaysClipping": BuiltInRule("modern.always_clipping", "default llm vision"),
    "NormalizationNeverUpdated": BuiltInRule("modern.normalization_never_updated", "default vision"),
    "FrozenByMistake": BuiltInRule("modern.frozen_by_mistake", "default llm vision"),
    "NoBetterThanGuessing": BuiltInRule("modern.no_better_than_guessing", "default llm vision"),
    "ConstantOutput": BuiltInRule("modern.constant_output", "default llm vision"),
    "TargetsOutOfScale": BuiltInRule("modern.targets_out_of_scale", "default vision"),
    "LabelRange": BuiltInRule("modern.label_range", "default llm vision"),
    "DataNotShuffled": BuiltInRule("modern.data_not_shuffled", "default vision"),
    "TrainEvalShift": BuiltInRule("modern.train_eval_shift", "default vision"),
    "InputDrift": BuiltInRule("modern.input_drift", "vision"),
    "TooMuchDropout": BuiltInRule("modern.too_much_dropout", "default llm vision"),
    "PaddingNotMasked": BuiltInRule("modern.padding_not_masked", "default llm"),
    "CorrelatedFeatures": BuiltInRule("classic.correlated_features", "default vision"),
    "ClassImbalance": BuiltInRule("classic.class_imbalance", "default sagemaker vision"),
    "Confusion": BuiltInRule("classic.confusion", "sagemaker vision"),
    "CheckInputImages": BuiltInRule("classic.check_input_images", "sagemaker vision"),
    "NLPSequenceRatio": BuiltInRule("classic.nlp_sequence_ratio", "sagemaker llm"),
}


def rule_names(of_set: str = "all") -> list[str]:
    """Names of the built-in rules, or of those of a set, in the order in which they are evaluated."""
    return [name for name, each in BUILT_IN.items() if of_set in ("all", *each.sets.split())]


def default_rules() -> tuple[RuleSpec, ...]:
    """The rules that are evaluated where no rule is named, with their defaults."""
    return tuple(RuleSpec(name) for name in rule_names("default"))
