"""The built-in rules by name, with their modules and sets, without importing a rule."""

from __future__ import annotations

from typing import NamedTuple

from watchglass.config import RuleSpec


class BuiltInRule(NamedTuple):
    """Where a built-in rule is, and which sets hold it."""

    module: str  #: Its module in this package, imported on first use of the rule.
    #: Names of its sets in :data:`~watchglass.rules.registry.RULE_SETS`, except ``"all"``, which has every rule. Rules
    #: of ``"default"`` are evaluated when the user names none; each declares ``default = True``. The sets are listed
    #: here, so that a training process plans its capture without importing the rules.
    sets: str
    #: Why no real training run fires it in the tests, as half a sentence; "" where one does, live under ``watchglass
    #: run``, and its healthy twin does not. A test compares it with the tests of real runs.
    built_only: str = ""


_NO_GPU = "it needs a GPU, which the machines of the tests lack"

#: Built-in rules by name, in the order in which they are evaluated and listed.
BUILT_IN = {
    "ExplodingTensor": BuiltInRule("classic.exploding_tensor", "default sagemaker llm vision tabular trees"),
    "ExplodingGradient": BuiltInRule("classic.exploding_gradient", "default llm vision tabular"),
    "VanishingGradient": BuiltInRule("classic.vanishing_gradient", "default sagemaker llm vision tabular"),
    "DeadRelu": BuiltInRule("classic.dead_relu", "default sagemaker vision tabular"),
    "PoorWeightInitialization": BuiltInRule(
        "classic.poor_weight_initialization", "default sagemaker llm vision tabular"
    ),
    "WeightUpdateRatio": BuiltInRule("classic.weight_update_ratio", "default sagemaker llm vision tabular"),
    "UnchangedTensor": BuiltInRule("classic.unchanged_tensor", "default sagemaker llm vision tabular"),
    "LossNotDecreasing": BuiltInRule("classic.loss_not_decreasing", "default sagemaker llm vision tabular trees"),
    "LossIncreasing": BuiltInRule("classic.loss_increasing", "default llm vision tabular trees"),
    "Overfit": BuiltInRule("classic.overfit", "default sagemaker llm vision tabular trees"),
    "Overtraining": BuiltInRule("classic.overtraining", "sagemaker llm vision tabular trees"),
    "Underfit": BuiltInRule("classic.underfit", "default vision tabular"),
    "ZeroLoss": BuiltInRule("classic.zero_loss", "default llm vision tabular"),
    "LossOscillating": BuiltInRule("classic.loss_oscillating", "llm vision tabular trees"),
    "SaturatedActivation": BuiltInRule("classic.saturated_activation", "default sagemaker tabular"),
    "AllZero": BuiltInRule("classic.all_zero", "sagemaker llm vision tabular"),
    "TensorVariance": BuiltInRule("classic.tensor_variance", "sagemaker"),
    "StalledTraining": BuiltInRule("classic.stalled_training", "sagemaker llm"),
    "SimilarAcrossRuns": BuiltInRule("classic.similar_across_runs", "sagemaker"),
    "CheckNaN": BuiltInRule("classic.check_nan", "llm vision tabular trees"),
    "TreeDepth": BuiltInRule("classic.tree_depth", "sagemaker trees"),
    "FeatureImportanceOverweight": BuiltInRule("classic.feature_importance_overweight", "sagemaker trees"),
    "AttentionLogitGrowth": BuiltInRule("modern.attention_logit_growth", "llm"),
    "AttentionEntropyCollapse": BuiltInRule("modern.attention_entropy_collapse", "llm"),
    "OutputLogitDrift": BuiltInRule("modern.output_logit_drift", "llm"),
    "EmbeddingNormGrowth": BuiltInRule("modern.embedding_norm_growth", "llm"),
    "RouterLogits": BuiltInRule("modern.router_logits", "llm"),
    "MixedPrecision": BuiltInRule("modern.mixed_precision", "llm vision tabular"),
    "Fp8Range": BuiltInRule("modern.fp8_range", "llm"),
    "LossSpike": BuiltInRule("modern.loss_spike", "llm"),
    "SilentDataCorruption": BuiltInRule("modern.silent_data_corruption", "llm"),
    "GradientNormSpike": BuiltInRule("modern.gradient_norm_spike", "llm"),
    "MoEImbalance": BuiltInRule("modern.moe_imbalance", "default llm"),
    "DeadExpert": BuiltInRule("modern.dead_expert", "default llm"),
    "MissingZeroGrad": BuiltInRule("modern.missing_zero_grad", "default llm vision tabular"),
    "OptimizerNeverSteps": BuiltInRule("modern.optimizer_never_steps", "default llm vision tabular"),
    "OptimizerMissesParameter": BuiltInRule("modern.optimizer_misses_parameter", "default llm vision tabular"),
    "OptimizerForeignParameter": BuiltInRule("modern.optimizer_foreign_parameter", "default llm vision tabular"),
    "UnusedParameter": BuiltInRule("modern.unused_parameter", "default llm vision tabular"),
    "TrainEvalMode": BuiltInRule("modern.train_eval_mode", "default llm vision tabular"),
    "SchedulerMisuse": BuiltInRule("modern.scheduler_misuse", "default llm vision tabular"),
    "LossShape": BuiltInRule("modern.loss_shape", "default llm vision tabular"),
    "OutputActivationMismatch": BuiltInRule("modern.output_activation_mismatch", "default llm vision tabular"),
    "LossGraph": BuiltInRule("modern.loss_graph", "default llm vision tabular"),
    "MisplacedActivation": BuiltInRule("modern.misplaced_activation", "default llm vision tabular"),
    "ActivationMissing": BuiltInRule("modern.activation_missing", "default llm vision tabular"),
    "DetachedGraph": BuiltInRule("modern.detached_graph", "default llm vision tabular"),
    "CausalMaskMissing": BuiltInRule("modern.causal_mask_missing", "default llm"),
    "LabelsNotShifted": BuiltInRule("modern.labels_not_shifted", "default llm"),
    "NormalizationBatchSize": BuiltInRule("modern.normalization_batch_size", "default vision tabular"),
    "RepeatedBatch": BuiltInRule("modern.repeated_batch", "default llm vision tabular"),
    "InputNormalization": BuiltInRule("modern.input_normalization", "default vision tabular"),
    "WorkerSeedRepeats": BuiltInRule("modern.worker_seed_repeats", "default llm vision tabular"),
    "RanksRepeatData": BuiltInRule("modern.ranks_repeat_data", "default llm vision tabular"),
    "ReplicaDivergence": BuiltInRule("modern.replica_divergence", "default llm vision tabular"),
    "GradientsSummedOverRanks": BuiltInRule("modern.gradients_summed_over_ranks", "default llm vision tabular"),
    "UpdateAgainstGradient": BuiltInRule("modern.update_against_gradient", "default llm vision tabular"),
    "UpdateBelowPrecision": BuiltInRule("modern.update_below_precision", "default llm vision tabular"),
    "AdamEpsilonDominates": BuiltInRule("modern.adam_epsilon_dominates", "default llm vision tabular"),
    "AdamSecondMomentStale": BuiltInRule("modern.adam_second_moment_stale", "llm vision tabular"),
    "PenaltyDominates": BuiltInRule("modern.penalty_dominates", "default llm vision tabular"),
    "NoDataGradient": BuiltInRule("modern.no_data_gradient", "default llm vision tabular"),
    "TooSlow": BuiltInRule("modern.too_slow", "default llm vision tabular"),
    "LearningRateZero": BuiltInRule("modern.learning_rate_zero", "default llm vision tabular"),
    "AlwaysClipping": BuiltInRule("modern.always_clipping", "default llm vision tabular"),
    "NormalizationNeverUpdated": BuiltInRule("modern.normalization_never_updated", "default vision tabular"),
    "FrozenByMistake": BuiltInRule("modern.frozen_by_mistake", "default llm vision tabular"),
    "NoBetterThanGuessing": BuiltInRule("modern.no_better_than_guessing", "default llm vision tabular"),
    "ConstantOutput": BuiltInRule("modern.constant_output", "default llm vision tabular"),
    "TargetsOutOfScale": BuiltInRule("modern.targets_out_of_scale", "default vision tabular"),
    "LabelRange": BuiltInRule("modern.label_range", "default llm vision tabular"),
    "DataNotShuffled": BuiltInRule("modern.data_not_shuffled", "default vision tabular"),
    "TrainEvalShift": BuiltInRule("modern.train_eval_shift", "default vision tabular"),
    "InputDrift": BuiltInRule("modern.input_drift", "vision tabular"),
    "TooMuchDropout": BuiltInRule("modern.too_much_dropout", "default llm vision tabular"),
    "PaddingNotMasked": BuiltInRule("modern.padding_not_masked", "default llm"),
    "CorrelatedFeatures": BuiltInRule("classic.correlated_features", "default vision tabular"),
    "ClassImbalance": BuiltInRule("classic.class_imbalance", "default sagemaker vision tabular"),
    "Confusion": BuiltInRule("classic.confusion", "sagemaker vision tabular"),
    "CheckInputImages": BuiltInRule("classic.check_input_images", "sagemaker vision"),
    "NLPSequenceRatio": BuiltInRule("classic.nlp_sequence_ratio", "sagemaker llm"),
    "InputBound": BuiltInRule("system.input_bound", "system"),
    "StepOutlier": BuiltInRule("system.step_outlier", "system"),
    "Hang": BuiltInRule("system.hang", "system"),
    "SynchronousCopy": BuiltInRule("system.synchronous_copy", "system"),
    "MemoryLeak": BuiltInRule("system.memory_leak", "system"),
    "Straggler": BuiltInRule("system.straggler", "system"),
    "MemoryFragmentation": BuiltInRule("system.memory_fragmentation", "system", _NO_GPU),
    "CPUBottleneck": BuiltInRule("system.cpu_bottleneck", "system", _NO_GPU),
    "IOBottleneck": BuiltInRule("system.io_bottleneck", "system", _NO_GPU),
    "LowGPUUtilization": BuiltInRule("system.low_gpu_utilization", "system", _NO_GPU),
    "BatchSize": BuiltInRule("system.batch_size", "system", _NO_GPU),
    "UpdateBound": BuiltInRule("system.update_bound", "system"),
    "ScriptBound": BuiltInRule("system.script_bound", "system"),
    "EvaluationBound": BuiltInRule("system.evaluation_bound", "system"),
    "GradientNoise": BuiltInRule("system.gradient_noise", "system"),
    "LoadBalancing": BuiltInRule("system.load_balancing", "system", _NO_GPU),
    "GPUMemoryIncrease": BuiltInRule("system.gpu_memory_increase", "system", _NO_GPU),
    "OverallSystemUsage": BuiltInRule("system.overall_system_usage", "system"),
    "OverallFrameworkMetrics": BuiltInRule("system.overall_framework_metrics", "system"),
    "MaxInitializationTime": BuiltInRule("system.max_initialization_time", "system"),
    "TooManyDataWorkers": BuiltInRule("system.too_many_data_workers", "system"),
}


def rule_names(of_set: str = "all") -> list[str]:
    """Names of the built-in rules, or of those of a set, in the order in which they are evaluated."""
    return [name for name, each in BUILT_IN.items() if of_set in ("all", *each.sets.split())]


def default_rules() -> tuple[RuleSpec, ...]:
    """The rules that are evaluated where no rule is named, with their defaults."""
    return tuple(RuleSpec(name) for name in rule_names("default"))
