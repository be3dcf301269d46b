"""Findings of one disease become one diagnosis with ranked causes, a chain, and concrete advice."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from watchglass.diagnose import diagnose
from watchglass.records import Finding, Mode, Severity
from watchglass.rules import load_knowledge


def finding(rule: str, step: int, symptoms: tuple[str, ...] = (), **more) -> Finding:
    evidence = {"symptoms": list(symptoms), "subject": "", **more.pop("evidence", {})}
    defaults = {
        "id": f"{rule}@{step}", "severity": Severity.WARNING, "last_step": step, "count": 1, "mode": Mode.TRAIN,
        "worker": "worker_0", "tensors": (), "value": None, "limit": None, "message": f"{rule} at {step}",
        "global_step": step,
    }  # fmt: skip
    return Finding(rule=rule, step=step, evidence=evidence, **{**defaults, **more})


def test_a_divergence_is_one_disease_with_its_chain() -> None:
    rate = {"learning_rate": 5.0, "optimizer": "SGD"}
    findings = [
        finding("DeadRelu", 9, ("dead_units",)),
        finding(
            "ExplodingTensor", 4, ("nonfinite_forward", "rose_before"), severity=Severity.ERROR,
            tensors=("b.output",), evidence={"module": "b", **rate},
        ),
        finding("WeightUpdateRatio", 1, ("update_ratio_extreme",), evidence={"update_ratio": 0.12, **rate}),
        finding("ExplodingGradient", 2, ("gradient_growth",), severity=Severity.ERROR),
    ]  # fmt: skip
    (diagnosis,) = diagnose(findings)
    assert diagnosis.causes[0].cause.id == "learning_rate_too_high"
    assert diagnosis.findings == ("WeightUpdateRatio@1", "ExplodingGradient@2", "ExplodingTensor@4", "DeadRelu@9")
    assert (diagnosis.step, diagnosis.severity, diagnosis.subject) == (1, Severity.ERROR, "b")
    assert diagnosis.headline == "The learning rate is too high: ExplodingTensor at 4"
    assert diagnosis.what_to_try[0] == (
        "Learning rate 5 with SGD: try 0.04; the update ratio was 10^-0.9, healthy is 10^-3"
    )
    assert [ranked.score for ranked in diagnosis.causes] == sorted((r.score for r in diagnosis.causes), reverse=True)


@pytest.mark.parametrize(
    ("ratio", "advice"),
    [
        (None, "try 0.5"),
        (0.002, "try 0.5; the update ratio was 10^-2.7, healthy is 10^-3"),
        (0.01, "try 0.5; the update ratio was 10^-2.0, healthy is 10^-3"),
        (2.0, "try 0.002; the update ratio was 10^0.3, healthy is 10^-3"),
        (1e9, "try 1e-05; the update ratio was 10^9.0, healthy is 10^-3"),
        (float("nan"), "try 0.5"),
        ("many", "try 0.5"),
    ],
)
def test_the_update_ratio_says_how_far_off_the_learning_rate_is(ratio: object, advice: str) -> None:
    evidence = {"learning_rate": 5.0, "optimizer": "SGD", **({"update_ratio": ratio} if ratio else {})}
    (diagnosis,) = diagnose([finding("ExplodingGradient", 2, ("gradient_growth",), evidence=evidence)])
    assert diagnosis.what_to_try[0] == f"Learning rate 5 with SGD: {advice}"


def test_no_rate_is_lowered_whose_updates_are_small() -> None:
    evidence = {"learning_rate": 5.0, "optimizer": "SGD", "update_ratio": 5e-4}
    (diagnosis,) = diagnose([finding("ExplodingGradient", 2, ("gradient_growth",), evidence=evidence)])
    assert diagnosis.what_to_try[0] == "Lower the learning rate by a factor of 10"


def test_no_rate_is_lowered_beyond_what_trains() -> None:
    evidence = {"learning_rate": 1e-5, "optimizer": "SGD", "update_ratio": 2.0}
    (diagnosis,) = diagnose([finding("ExplodingGradient", 2, ("gradient_growth",), evidence=evidence)])
    assert diagnosis.what_to_try[0] == "Lower the learning rate by a factor of 10"


def test_a_rate_is_scaled_by_the_ratio_that_was_measured_with_it() -> None:
    findings = [
        finding("LossIncreasing", 2, ("loss_rising",), evidence={"learning_rate": 1e-4, "optimizer": "SGD"}),
        finding("WeightUpdateRatio", 90, ("update_ratio_extreme",), evidence={"learning_rate": 2.0, "update_ratio": 1}),
    ]
    (diagnosis,) = diagnose(findings)
    assert diagnosis.what_to_try[0] == (
        "Learning rate 2 with SGD: try 0.002; the update ratio was 10^0.0, healthy is 10^-3"
    )


DEAD, RATE = ("all_units_dead",), ("loss_diverged", "update_ratio_extreme")


def of_model(model: int, step: int, symptoms: tuple[str, ...], **evidence: object) -> Finding:
    rule = "DeadRelu" if symptoms == DEAD else "LossIncreasing"
    return finding(
        rule, step, symptoms, model=model, id=f"{rule}@{step} of {model}", severity=Severity.ERROR, evidence=evidence
    )  # fmt: skip


def test_faults_of_models_that_cannot_affect_each_other_are_different_diagnoses() -> None:
    dead = of_model(0, 7, DEAD, learning_rate=0.01)
    diverged = of_model(1, 202, RATE, learning_rate=5.0, update_ratio=2.5, optimizer="SGD")
    apart = diagnose([dead, diverged], part=lambda each: each.model)
    assert [each.models for each in apart] == [(0,), (1,)]
    assert [each.causes[0].cause.id for each in apart] == ["dying_relu", "learning_rate_too_high"]
    assert apart[1].what_to_try[0].startswith("Learning rate 5 with SGD: try 0.002;")
    # Of two that are trained in turns, as a generator and its critic, one may be the consequence of the other.
    (together,) = diagnose([replace(dead, step=203, global_step=203), diverged])
    assert together.models == (0, 1)


def test_one_fault_of_several_models_is_one_diagnosis_with_the_numbers_of_one_of_them() -> None:
    folds = [
        of_model(0, 9, RATE, learning_rate=5.0, update_ratio=2.5, optimizer="SGD"),
        of_model(1, 202, RATE, learning_rate=9.0, update_ratio=3e3, optimizer="Adam"),
        of_model(2, 402, DEAD),
    ]
    both, dead = diagnose(folds, part=lambda each: each.model)
    assert (both.models, dead.models) == ((0, 1), (2,))
    assert both.what_to_try[0].startswith("Learning rate 5 with SGD: try 0.002;")


def test_advice_has_the_numbers_of_the_model_of_the_headline() -> None:
    shown = of_model(0, 9, RATE, learning_rate=5.0, optimizer="SGD")
    other = of_model(1, 4, ("gradient_growth",), learning_rate=0.01, update_ratio=2e3)
    (diagnosis,) = diagnose([replace(other, severity=Severity.WARNING), shown])
    assert diagnosis.headline.endswith("LossIncreasing at 9")
    assert diagnosis.what_to_try[0] == "Learning rate 5 with SGD: try 0.5"


def test_a_learning_rate_that_is_too_low_is_raised() -> None:
    evidence = {"learning_rate": 1e-6, "update_ratio": 2e-6}
    (diagnosis,) = diagnose([finding("WeightUpdateRatio", 300, ("update_ratio_small", "loss_flat"), evidence=evidence)])
    assert diagnosis.what_to_try[0] == (
        "Learning rate 1e-06 with this optimizer: try 0.0005; the update ratio was 10^-5.7, healthy is 10^-3"
    )


def test_without_numbers_advice_is_general() -> None:
    (diagnosis,) = diagnose([finding("ExplodingGradient", 2, ("gradient_growth",))])
    assert diagnosis.what_to_try[0] == "Lower the learning rate by a factor of 10"


@pytest.mark.parametrize(
    ("symptoms", "cause"),
    [
        (("nonfinite_input", "calm_before"), "bad_data"),
        (("nonfinite_loss_only", "calm_before"), "overflow_in_loss"),
        (("nonfinite_forward", "calm_before"), "overflow_in_module"),
        (("nonfinite_backward", "calm_before"), "overflow_in_backward"),
        (("nonfinite_weights", "calm_before"), "poisoned_weights"),
        (("nonfinite_forward", "nonfinite_half_precision", "calm_before"), "overflow_in_half_precision"),
        (("nonfinite_loss", "rose_before"), "learning_rate_too_high"),
        (("vanishing_over_depth", "saturating_modules_between"), "deep_saturating_activations"),
        (("vanishing_over_depth",), "vanishing_over_depth"),
        (("dead_units", "all_units_dead", "gradients_exactly_zero", "loss_flat"), "dying_relu"),
        (("identical_rows", "dead_units", "all_units_dead", "gradients_exactly_zero"), "identical_initialization"),
        (("weight_scale", "activations_over_depth"), "poor_initialization_scale"),
        (("update_ratio_small", "loss_flat"), "learning_rate_too_low"),
        (("no_gradient",), "detached_parameters"),
        (("loss_flat",), "nothing_to_learn"),
        (("validation_rises",), "overfitting"),
    ],
)
def test_symptoms_point_to_their_cause(symptoms: tuple[str, ...], cause: str) -> None:
    (diagnosis,) = diagnose([finding("Rule", 3, symptoms)])
    assert diagnosis.causes[0].cause.id == cause
    assert len(diagnosis.causes) <= 3


def test_two_diseases_are_two_diagnoses_worst_first() -> None:
    findings = [
        finding("Overfit", 50, ("validation_rises",)),
        finding("PoorWeightInitialization", 0, ("identical_rows",), severity=Severity.ERROR),
    ]
    first, second = diagnose(findings)
    assert (first.causes[0].cause.id, second.causes[0].cause.id) == ("identical_initialization", "overfitting")


def test_what_a_cause_leads_to_joins_it() -> None:
    findings = [
        finding("LossNotDecreasing", 2, ("loss_diverged",)),
        finding("VanishingGradient", 60, ("gradients_exactly_zero",)),
        finding("WeightUpdateRatio", 90, ("update_ratio_small",)),
    ]
    (diagnosis,) = diagnose(findings)
    assert diagnosis.causes[0].cause.id == "learning_rate_too_high"
    assert len(diagnosis.findings) == 3


def test_dropout_of_nearly_all_explains_units_that_die_of_what_it_leaves() -> None:
    findings = [
        finding("TooMuchDropout", 8, ("dropout_high",)),
        finding("DeadRelu", 96, ("dead_units", "all_units_dead"), severity=Severity.ERROR),
    ]
    (diagnosis,) = diagnose(findings)
    assert [ranked.cause.id for ranked in diagnosis.causes] == ["dropout_too_high"]


def test_a_proven_cause_comes_before_all_that_only_fit_and_explains_what_was_seen_before_it() -> None:
    findings = [
        finding("WeightUpdateRatio", 2, ("update_ratio_extreme",)),
        finding("ExplodingGradient", 3, ("gradient_growth",), severity=Severity.ERROR),
        finding("LossNotDecreasing", 20, ("loss_diverged",)),
        finding("MissingZeroGrad", 24, ("gradients_left_over",)),
    ]
    (diagnosis,) = diagnose(findings)
    assert [ranked.cause.id for ranked in diagnosis.causes] == ["gradients_never_cleared"]
    assert diagnosis.findings == tuple(each.id for each in findings)
    assert diagnosis.severity is Severity.ERROR
    without = diagnose(findings[:-1])
    assert without[0].causes[0].cause.id == "learning_rate_too_high"


def test_what_values_that_are_not_finite_cannot_change_is_a_cause_although_it_was_seen_later() -> None:
    bad = finding("ExplodingTensor", 4, ("nonfinite_loss_only", "calm_before"), severity=Severity.ERROR)
    exact = finding("OutputActivationMismatch", 8, ("not_probabilities",))
    (diagnosis,) = diagnose([bad, exact])
    assert diagnosis.causes[0].cause.id == "logits_as_probabilities"
    (other,) = diagnose([bad, finding("DeadRelu", 8, ("dead_units",))])
    assert other.causes[0].cause.id == "overflow_in_loss"


@pytest.mark.parametrize(("since", "joins"), [(40, True), (41, True), (39, False), (42, False), (None, False)])
def test_what_is_slow_belongs_to_bad_values_only_where_both_began_together(since: int | None, joins: bool) -> None:
    nan = finding("ExplodingTensor", 40, ("nonfinite_loss_only",), severity=Severity.ERROR)
    slow = finding(
        "StepOutlier", 56, ("steps_slower_for_good",), severity=Severity.INFO, evidence={"since_step": since}
    )
    (diagnosis,) = diagnose([nan, slow])
    assert (slow.id in diagnosis.findings) is joins
    assert diagnosis.headline.endswith("ExplodingTensor at 40; StepOutlier at 56" if joins else "ExplodingTensor at 40")


@pytest.mark.parametrize(
    ("rule", "symptom", "cause"),
    [("InputBound", "waits_for_workers", "loader_too_slow"), ("MemoryLeak", "graphs_held", "graphs_kept"),
     ("Hang", "no_step_completed", "training_stalled"), ("StepOutlier", "outliers_save", "checkpoints_stop_training")],
)  # fmt: skip
def test_what_the_machine_shows_after_values_became_bad_is_no_consequence(rule: str, symptom: str, cause: str) -> None:
    nan = finding("ExplodingTensor", 40, ("nonfinite_loss_only",), severity=Severity.ERROR)
    values, machine = diagnose([nan, finding(rule, 72, (symptom,))])
    assert values.findings == (nan.id,)
    assert machine.causes[0].cause.id == cause


def test_a_summary_of_the_run_is_no_consequence_of_bad_values() -> None:
    nan = finding("ExplodingTensor", 40, ("nonfinite_loss_only",), severity=Severity.ERROR)
    (diagnosis,) = diagnose([nan, finding("OverallSystemUsage", 90, severity=Severity.INFO)])
    assert diagnosis.findings == (nan.id,)


def test_of_diagnoses_as_bad_the_proven_one_comes_first() -> None:
    first, second = diagnose(
        [finding("DeadRelu", 2, ("dead_units",)), finding("TrainEvalMode", 9, ("training_mode_in_evaluation",))]
    )
    assert (first.causes[0].cause.id, second.causes[0].cause.id) == ("evaluated_in_training_mode", "dying_relu")


def test_of_diagnoses_as_bad_the_earlier_one_comes_first_whatever_the_numbers_of_their_steps() -> None:
    """An evaluation counts its steps for itself, and the last step of a run is often one."""
    late = replace(finding("Overfit", 5, ("validation_rises",)), mode=Mode.EVAL, global_step=905)
    first, second = diagnose([late, finding("DeadRelu", 300, ("dead_units",))])
    assert (first.causes[0].cause.id, second.causes[0].cause.id) == ("dying_relu", "overfitting")


def test_of_what_makes_steps_slow_the_largest_gain_comes_first_and_no_stated_gain_last() -> None:
    findings = [
        finding("TooManyDataWorkers", 8, ("many_loader_workers",)),
        finding("InputBound", 71, ("waits_without_workers",), evidence={"gain": 1.8}),
        finding("Straggler", 72, ("rank_is_late_between_steps",), evidence={"gain": 10.0}),
    ]
    rules = [each.findings for each in diagnose(findings)]
    assert rules == [("Straggler@72",), ("InputBound@71",), ("TooManyDataWorkers@8",)]
    alike = [replace(each, evidence={**each.evidence, "gain": 1.8}) for each in findings[1:]]
    assert [each.step for each in diagnose(alike)] == [71, 72]


@pytest.mark.parametrize("gain", [True, "much", float("nan"), None, [3.0]])
def test_a_gain_that_is_no_number_is_none(gain: object) -> None:
    slow = finding("Straggler", 71, ("rank_is_slow",), evidence={"gain": gain})
    assert slow.gain is None
    assert diagnose([slow, finding("InputBound", 72, ("waits_for_data",), evidence={"gain": 1.1})])[0].step == 72


def leak(step: int, ends_in_s: object) -> Finding:
    return finding("MemoryLeak", step, ("memory_grows",), evidence={"ends_in_s": ends_in_s})


SLOW = finding("InputBound", 71, ("waits_without_workers",), evidence={"gain": 1.7})


def order(*findings: Finding, survived: tuple[str, ...] = ()) -> list[str]:
    return [each.findings[0].partition("@")[0] for each in diagnose(findings, survived=survived)]


@pytest.mark.parametrize(
    ("ends_in_s", "first"),
    [(1800.0, True), (86_400, True), (86_401.0, False), (3 * 7 * 86_400.0, False), (None, False), (-1.0, False),
     (float("nan"), False), (True, False), ("soon", False)],
)  # fmt: skip
def test_what_ends_the_run_within_a_day_comes_before_what_makes_it_slow(ends_in_s: object, first: bool) -> None:
    assert order(SLOW, leak(90, ends_in_s)) == (["MemoryLeak", "InputBound"] if first else ["InputBound", "MemoryLeak"])


def test_what_has_stopped_the_run_comes_first_then_the_soonest_end() -> None:
    stands = finding("Hang", 99, ("no_step_completed",), evidence={"ends_in_s": 0.0})
    later = replace(leak(12, 9_000.0), evidence={**leak(12, 9_000.0).evidence, "symptoms": ["graphs_held"]})
    assert order(SLOW, later, leak(90, 1_800.0), stands) == ["Hang", "MemoryLeak", "MemoryLeak", "InputBound"]
    assert [each.step for each in diagnose([SLOW, later, leak(90, 1_800.0), stands])] == [99, 90, 12, 71]


def test_an_end_that_did_not_come_no_longer_counts() -> None:
    assert order(SLOW, leak(90, 1_800.0), survived=("MemoryLeak@90",)) == ["InputBound", "MemoryLeak"]
    # One rank of two goes on.
    other = replace(leak(90, 1_800.0), id="other", worker="worker_1")
    assert order(SLOW, leak(90, 1_800.0), other, survived=("other",)) == ["MemoryLeak", "InputBound"]


def test_an_end_of_the_run_repairs_no_values() -> None:
    dead = finding("DeadRelu", 200, ("dead_units",))
    assert order(leak(9, 60.0), dead) == ["DeadRelu", "MemoryLeak"]
    # Among findings about values an end does not count, as no gain does.
    rises = finding("Overfit", 300, ("validation_rises",), evidence={"ends_in_s": 60.0})
    assert order(rises, dead) == ["DeadRelu", "Overfit"]


def test_no_gain_comes_before_what_is_wrong_with_values() -> None:
    slow = finding("Straggler", 9, ("rank_is_late_between_steps",), evidence={"gain": 10.0})
    values = finding("DeadRelu", 200, ("dead_units",), evidence={"gain": 0.1})
    assert [each.step for each in diagnose([slow, values])] == [200, 9]
    worse = replace(slow, severity=Severity.ERROR)
    assert [each.step for each in diagnose([worse, values])] == [9, 200]


def test_a_loss_like_guessing_belongs_to_what_keeps_the_model_from_learning() -> None:
    vanishes = finding("VanishingGradient", 30, ("vanishing_over_depth", "saturating_modules_between"))
    for symptoms in (("loss_at_guess",), ("evaluation_at_guess",)):
        (diagnosis,) = diagnose([vanishes, finding("NoBetterThanGuessing", 60, symptoms)])
        assert diagnosis.causes[0].cause.id == "deep_saturating_activations"
        assert len(diagnosis.findings) == 2


def test_info_alone_is_no_disease_but_supports_one() -> None:
    info = finding("WeightUpdateRatio", 1, ("update_ratio_large",), severity=Severity.INFO)
    assert diagnose([info]) == ()
    (diagnosis,) = diagnose([info, finding("LossNotDecreasing", 2, ("loss_rising",))])
    assert diagnosis.findings == ("WeightUpdateRatio@1", "LossNotDecreasing@2")


def test_a_cause_that_is_less_likely_than_not_is_no_headline() -> None:
    (unclear,) = diagnose([finding("LossNotDecreasing", 2, ("loss_flat",))])
    assert unclear.causes[0].score < 0.5
    assert unclear.headline == "Cause unclear: LossNotDecreasing at 2"
    (likely,) = diagnose([finding("Overfit", 2, ("validation_rises",))])
    assert likely.causes[0].score >= 0.5
    assert likely.headline == "The model overfits its training data: Overfit at 2"


def test_custom_rules_name_causes_of_their_own() -> None:
    mine = finding("Mine", 3, causes=("cold_coffee",), what_to_try=("Make new coffee",))
    (diagnosis,) = diagnose([mine])
    assert diagnosis.headline == "Cold coffee: Mine at 3"
    assert diagnosis.what_to_try == ("Make new coffee",)
    (bare,) = diagnose([finding("Bare", 3)])
    assert bare.causes == ()
    assert bare.headline == "Bare has found something: Bare at 3"


def test_order_of_findings_does_not_matter() -> None:
    findings = [
        finding("A", 1, ("gradient_growth",)),
        finding("B", 2, ("loss_diverged",)),
        replace(finding("C", 2, ("validation_rises",)), worker="worker_1"),
    ]
    assert diagnose(findings) == diagnose(findings[::-1])


def test_causes_have_evidence_for_and_against_with_first_steps() -> None:
    growth = finding("ExplodingGradient", 2, ("gradient_growth",))
    broken = finding(
        "ExplodingTensor", 4, ("nonfinite_forward", "rose_before"), severity=Severity.ERROR, tensors=("b.output",)
    )
    (diagnosis,) = diagnose([broken, growth])
    high, overflow = (
        next(ranked for ranked in diagnosis.causes if ranked.cause.id == name)
        for name in ("learning_rate_too_high", "overflow_in_module")
    )
    assert high.evidence == (
        "step 2: ExplodingGradient at 2 (ExplodingGradient)",
        "step 4: ExplodingTensor at 4 (ExplodingTensor)",
        "step 4: the loss rose in the steps before (ExplodingTensor)",
    )
    assert (high.step, high.against) == (2, ())
    assert overflow.evidence == ("step 4: ExplodingTensor at 4 (ExplodingTensor)",)
    assert overflow.against == ("step 4: the loss rose in the steps before (ExplodingTensor)",)
    assert overflow.step == 4


def test_the_disease_of_many_workers_is_one_diagnosis_that_names_them() -> None:
    first = finding("ExplodingGradient", 2, ("gradient_growth",))
    findings = [replace(first, id=f"{n:012x}", worker=f"worker_{n}") for n in (0, 9, 10, 2)]
    (diagnosis,) = diagnose(findings)
    assert diagnosis.workers == ("worker_0", "worker_2", "worker_9", "worker_10")
    assert diagnosis.causes[0].evidence == ("step 2: ExplodingGradient at 2 (ExplodingGradient, on 4 workers)",)
    unknown = [replace(each, evidence={"symptoms": [], "subject": "x"}) for each in findings]
    (diagnosis,) = diagnose(unknown)
    assert (diagnosis.causes, len(diagnosis.workers), len(diagnosis.findings)) == ((), 4, 4)


def test_what_breaks_on_all_workers_at_one_step_is_one_disease() -> None:
    error = {"severity": Severity.ERROR}
    culprit = finding("ExplodingTensor", 4, ("nonfinite_input", "calm_before"), worker="worker_1", **error)
    passed_on = finding("ExplodingTensor", 4, ("nonfinite_backward", "calm_before"), **error)
    later = finding("ExplodingTensor", 5, ("nonfinite_weights",), worker="worker_2", **error)
    (diagnosis,) = diagnose([replace(passed_on, id="b"), replace(culprit, id="a"), later])
    assert diagnosis.causes[0].cause.id == "bad_data"
    assert diagnosis.workers == ("worker_0", "worker_1", "worker_2")
    assert diagnosis.what_to_try[0].startswith("Check the batch of training step 4 on worker_1 for NaN")


def test_each_attempt_breaks_for_itself() -> None:
    broken = finding("ExplodingTensor", 4, ("nonfinite_loss_only", "calm_before"), severity=Severity.ERROR)
    again = replace(broken, id="again", attempt=1)
    after = finding("DeadRelu", 5, ("dead_units",), attempt=1)
    (diagnosis,) = diagnose([after, again, broken])
    assert diagnosis.causes[0].cause.id == "overflow_in_loss"
    assert diagnosis.findings == (broken.id, "again", after.id)


def test_units_that_die_of_tiny_inputs_and_a_loss_at_the_guess_are_one_disease() -> None:
    (found,) = diagnose(
        [
            finding("InputNormalization", 0, ("inputs_tiny",)),
            finding("DeadRelu", 96, ("dead_units", "all_units_dead"), severity=Severity.ERROR),
            finding("WeightUpdateRatio", 204, ("update_ratio_small", "updates_small_at_usual_rate")),
            finding("LossNotDecreasing", 319, ("loss_flat", "update_ratio_small", "targets_follow_inputs")),
            finding("NoBetterThanGuessing", 399, ("loss_at_guess", "targets_follow_inputs")),
        ]
    )
    assert found.causes[0].cause.id == "inputs_normalized_twice"
    assert len(found.findings) == 5


def test_saturating_layers_explain_a_spread_that_shrinks_over_the_depth() -> None:
    shrinks = finding("PoorWeightInitialization", 0, ("activations_over_depth",))
    vanishes = finding("VanishingGradient", 25, ("vanishing_over_depth", "saturating_modules_between"))
    (found,) = diagnose([shrinks, vanishes])
    assert found.causes[0].cause.id == "deep_saturating_activations"
    (found,) = diagnose([shrinks, finding("VanishingGradient", 25, ("vanishing_over_depth", "deep_and_plain"))])
    assert found.causes[0].cause.id == "vanishing_over_depth"
    of_weights = finding("PoorWeightInitialization", 0, ("weight_scale", "activations_over_depth"))
    assert diagnose([of_weights, vanishes])[0].causes[0].cause.id == "poor_initialization_scale"


def test_the_only_batch_of_a_run_is_a_further_cause_of_overfitting() -> None:
    same = finding("RepeatedBatch", 9, ("same_inputs",), severity=Severity.INFO)
    (diagnosis,) = diagnose([finding("Overfit", 40, ("validation_rises",)), same])
    assert [ranked.cause.id for ranked in diagnosis.causes] == ["overfitting", "batch_repeated"]


@pytest.mark.parametrize(
    ("first", "then", "cause"),
    [
        # Momentum carries on where the next sorted batches pull back.
        ("batches_sorted", "update_climbs_loss", "data_not_shuffled"),
        # A loop that steps one optimizer twice, and another one never.
        ("one_never_stepped", "gradients_left_over", "optimizer_never_steps"),
    ],
)
def test_of_two_exact_symptoms_one_follows_from_the_other(first: str, then: str, cause: str) -> None:
    findings = [finding("First", 9, (first,)), finding("Then", 40, (then,), severity=Severity.ERROR)]
    (diagnosis,) = diagnose(findings)
    assert diagnosis.causes[0].cause.id == cause
    assert diagnosis.findings == ("First@9", "Then@40")


def test_the_chain_is_earliest_first_also_among_consequences() -> None:
    findings = [
        finding("LossNotDecreasing", 2, ("loss_diverged",)),
        finding("VanishingGradient", 30, ("gradients_exactly_zero",)),
        finding("ExplodingGradient", 60, ("gradient_growth",)),
    ]
    (diagnosis,) = diagnose(findings)
    assert diagnosis.findings == ("LossNotDecreasing@2", "VanishingGradient@30", "ExplodingGradient@60")


@pytest.mark.parametrize(
    ("symptoms", "more", "advice"),
    [
        (("nonfinite_forward", "calm_before"), {"evidence": {"module": "exp", "module_type": "Exp"}},
         "Guard the computation in exp (Exp): an epsilon under sqrt, log and divisions, a clamp before exp"),
        (("nonfinite_forward", "calm_before"), {"evidence": {"module": "", "module_type": ""}},
         "Guard the computation in that module: an epsilon under sqrt, log and divisions, a clamp before exp"),
        (("no_gradient",), {"tensors": ("gradient/head.weight",)},
         "Check that the optimizer holds head.weight, and that nothing between it and the loss is detached"),
        (("nonfinite_backward", "calm_before"), {"evidence": {"module": "head", "module_type": "Linear"}},
         "Add a small epsilon under sqrt, norms and fractional powers, in head (Linear) or between it and the loss"),
        (("validation_rises",), {"evidence": {"best_step": 120}},
         "The validation loss was lowest at training step 120: use the checkpoint from there"),
        (("dead_units",), {"evidence": {"layer": "act1 (ReLU)"}}, "Use LeakyReLU, GELU or SiLU after act1 (ReLU)"),
    ],
)  # fmt: skip
def test_advice_names_what_is_known(symptoms: tuple[str, ...], more: dict[str, object], advice: str) -> None:
    (diagnosis,) = diagnose([finding("Rule", 3, symptoms, **more)])
    assert diagnosis.what_to_try[0] == advice


def test_what_a_rule_advises_itself_is_kept() -> None:
    named = finding("Mine", 3, causes=("learning_rate_too_high",), what_to_try=("Ask the owner of this model",))
    (diagnosis,) = diagnose([named])
    assert diagnosis.what_to_try[0] == "Lower the learning rate by a factor of 10"
    assert "Ask the owner of this model" in diagnosis.what_to_try


def test_diagnosing_many_findings_takes_no_longer_than_in_proportion() -> None:
    def cost(amount: int) -> float:
        many = [
            replace(finding("A", n % 97, ("gradient_growth",) if n % 2 else ()), id=str(n), worker=f"worker_{n}")
            for n in range(amount)
        ]
        begun = time.process_time()
        (first, second) = diagnose(many)
        assert len(first.findings) + len(second.findings) == amount
        return time.process_time() - begun

    # Twenty times as many: in proportion with room for noise, and far from four hundred times.
    assert min(cost(10_000) for _ in range(2)) < 120 * max(min(cost(500) for _ in range(3)), 0.002)


def test_findings_of_many_subjects_without_a_cause_take_no_longer_than_in_proportion() -> None:
    def cost(amount: int) -> float:
        many = [finding("A", n % 97, id=str(n), tensors=(f"layer{n}.weight",)) for n in range(amount)]
        begun = time.process_time()
        assert len(diagnose(many)) == amount
        return time.process_time() - begun

    assert min(cost(4_000) for _ in range(2)) < 60 * max(min(cost(400) for _ in range(3)), 0.002)


def test_findings_without_a_cause_belong_to_their_subject_and_to_what_broke() -> None:
    error = {"severity": Severity.ERROR}
    known = load_knowledge()
    silent = replace(known, links={"nonfinite_loss": {}})
    findings = [
        finding("B", 1, tensors=("x",)),
        finding("B", 1, id="info", severity=Severity.INFO, tensors=("z",)),
        finding("Broken", 3, ("nonfinite_loss",), id="here", **error),
        finding("Broken", 3, ("nonfinite_loss",), id="there", worker="worker_1", tensors=("y",), **error),
        finding("B", 2, tensors=("x",)),
        finding("C", 9),
    ]
    assert [diagnosis.findings for diagnosis in diagnose(findings, silent)] == [
        ("here", "there", "C@9"), ("B@1", "B@2")
    ]  # fmt: skip


def test_initial_weights_that_are_off_are_no_fault_of_the_learning_rate() -> None:
    rate = {"learning_rate": 0.05, "optimizer": "SGD"}
    findings = [
        finding("PoorWeightInitialization", 0, ("weight_scale", "activations_over_depth")),
        finding("WeightUpdateRatio", 0, ("update_ratio_extreme",), evidence={"update_ratio": 117.0, **rate}),
        finding("ExplodingGradient", 1, ("gradient_growth",), evidence=rate),
        finding("LossNotDecreasing", 2, ("loss_diverged",), evidence=rate),
        finding("ExplodingTensor", 6, ("nonfinite_forward", "rose_before", "gradient_growth"), severity=Severity.ERROR),
    ]
    (diagnosis,) = diagnose(findings)
    assert [ranked.cause.id for ranked in diagnosis.causes[:2]] == [
        "poor_initialization_scale", "learning_rate_too_high"
    ]  # fmt: skip
    assert len(diagnosis.findings) == 5


def test_a_cause_that_a_rule_would_have_seen_is_much_less_likely() -> None:
    findings = [finding("UnchangedTensor", 200, ("gradients_exactly_zero",))]
    (before,) = diagnose(findings)
    assert before.causes[0].cause.id == "dying_relu"
    (after,) = diagnose(findings, load_knowledge().where([], ["DeadRelu"]))
    assert after.causes[0].cause.id == "detached_parameters"
    dying = next(ranked for ranked in after.causes if ranked.cause.id == "dying_relu")
    assert dying.against == ("DeadRelu has found nothing",)
    assert dying.score < 0.3
    (none,) = diagnose(findings, load_knowledge().where(["DeadRelu"], ["DeadRelu"]))
    assert "dying_relu" not in [ranked.cause.id for ranked in none.causes]


def test_a_cause_with_hardly_any_evidence_is_not_shown_beside_a_likely_one() -> None:
    quiet = load_knowledge().where([], ["PoorWeightInitialization"])
    (diagnosis,) = diagnose([finding("ExplodingGradient", 2, ("gradient_growth",))], quiet)
    assert [ranked.cause.id for ranked in diagnosis.causes] == ["learning_rate_too_high"]
    (alone,) = diagnose([finding("Weights", 2, ("weight_scale",))], quiet)
    assert [ranked.cause.id for ranked in alone.causes] == ["poor_initialization_scale"]


def test_no_rate_is_raised_beyond_what_trains() -> None:
    def advice(rate: float) -> str:
        evidence = {"learning_rate": rate, "optimizer": "SGD", "update_ratio": 1e-9}
        (diagnosis,) = diagnose([finding("WeightUpdateRatio", 300, ("update_ratio_small",), evidence=evidence)])
        return diagnosis.what_to_try[0].partition(";")[0]

    assert advice(1e-8) == "Learning rate 1e-08 with SGD: try 0.01"
    assert advice(0.1) == "Learning rate 0.1 with SGD: try 1"
    assert advice(1.0) == "Raise the learning rate by a factor of 10"


@pytest.mark.parametrize(
    ("symptoms", "other"),
    [
        (("update_ratio_small", "loss_flat"), "learning_rate_too_high"),
        (("update_ratio_small", "loss_flat"), "nothing_to_learn"),
        (("update_ratio_large", "loss_flat"), "learning_rate_too_low"),
        (("vanishing_over_depth", "loss_flat"), "deep_saturating_activations"),
    ],
)
def test_what_contradicts_a_symptom_is_no_likely_cause_of_it(symptoms: tuple[str, ...], other: str) -> None:
    (diagnosis,) = diagnose([finding("Rule", 3, symptoms)])
    assert {ranked.cause.id: ranked.score for ranked in diagnosis.causes}.get(other, 0.0) < 0.25


def test_labels_may_be_what_is_not_finite() -> None:
    (diagnosis,) = diagnose([finding("ExplodingTensor", 3, ("nonfinite_loss_only", "calm_before"))])
    assert [ranked.cause.id for ranked in diagnosis.causes[:2]] == ["overflow_in_loss", "bad_data"]


def test_no_number_of_symptoms_makes_a_cause_certain() -> None:
    symptoms = (
        "rose_before", "gradient_growth", "gradient_huge", "loss_diverged", "loss_rising", "update_ratio_extreme",
        "update_ratio_large",
    )  # fmt: skip
    (diagnosis,) = diagnose([finding("Rule", 3, symptoms)])
    assert diagnosis.causes[0].score == 0.999


@pytest.mark.parametrize("machine", ["update_takes_most", "batch_leaves_room"])
def test_a_small_batch_with_a_noisy_gradient_is_one_diagnosis_that_states_both(machine: str) -> None:
    findings = [
        finding("UpdateBound", 135, (machine,), message="the update takes 70 %", evidence={"batch_size": 4}),
        finding("GradientNoise", 300, ("gradient_mostly_noise",), severity=Severity.INFO, message="it is noise",
                evidence={"batch_size": 4, "noise_scale": 64}),
    ]  # fmt: skip
    (alone,) = diagnose(findings[:1])
    (both,) = diagnose(findings)
    assert both.headline == "The batch is too small for the machine: the update takes 70 %; it is noise"
    assert both.findings == ("UpdateBound@135", "GradientNoise@300")
    assert both.severity is Severity.WARNING
    assert both.causes[0].score > alone.causes[0].score
    assert both.causes[0].evidence[1] == "step 300: it is noise (GradientNoise)"
    assert both.what_to_try[0].startswith("Raise the batch of 4 samples towards 64, the noise scale of its gradient")


def test_a_gradient_with_little_noise_speaks_against_a_larger_batch_and_the_headline_states_it() -> None:
    findings = [
        finding("UpdateBound", 135, ("update_takes_most",), message="the update takes 70 %"),
        finding("GradientNoise", 300, ("gradient_mostly_signal",), severity=Severity.INFO, message="it is no noise"),
    ]
    (alone,), (both,) = diagnose(findings[:1]), diagnose(findings)
    assert both.headline == "The batch is too small for the machine: the update takes 70 %; it is no noise"
    assert both.causes[0].against == ("step 300: it is no noise (GradientNoise)",)
    assert 0.5 < both.causes[0].score < alone.causes[0].score


@pytest.mark.parametrize("symptom", ["gradient_mostly_noise", "gradient_mostly_signal"])
def test_noise_of_the_gradient_alone_is_no_diagnosis_and_joins_no_other(symptom: str) -> None:
    noise = finding("GradientNoise", 300, (symptom,), severity=Severity.INFO)
    assert diagnose([noise]) == ()
    (other,) = diagnose([noise, finding("InputBound", 40, ("waits_for_workers",))])
    assert other.findings == ("InputBound@40",)
    assert "GradientNoise" not in other.headline


def test_an_error_is_no_consequence_of_a_later_warning() -> None:
    error = finding("ExplodingGradient", 75, ("gradient_huge",), severity=Severity.ERROR)
    for later in ("learning_rate_is_zero", "decay_outweighs_gradient", "epsilon_above_second_moment"):
        first, second = diagnose([error, finding("Later", 755, (later, "loss_flat"))])
        assert (first.findings, first.step, first.severity) == ((error.id,), 75, Severity.ERROR)
        assert (second.findings, second.step) == (("Later@755",), 755)


def test_what_the_program_itself_shows_explains_also_an_error_that_was_seen_before() -> None:
    error = finding("ExplodingGradient", 75, ("gradient_huge",), severity=Severity.ERROR)
    (diagnosis,) = diagnose([error, finding("TargetsOutOfScale", 755, ("targets_off_scale",))])
    assert diagnosis.causes[0].cause.id == "targets_out_of_scale"
    assert diagnosis.findings == (error.id, "TargetsOutOfScale@755")


def test_an_error_that_supports_a_cause_weakly_is_not_explained_by_what_was_seen_later() -> None:
    error = finding("Rule", 75, ("loss_diverged", "loss_at_guess"), severity=Severity.ERROR)
    later = finding("LaterRule", 755, ("labels_constant",))
    assert "nothing_to_learn" in load_knowledge().links["loss_at_guess"]
    # Labels that are all of one class are the program's own, and hold from the first step on.
    assert len(diagnose([error, later])) == 1
    found = diagnose([error, finding("LaterRule", 755, ("evaluation_at_guess",))])
    assert [each.findings for each in found] == [("Rule@75", "LaterRule@755")]
    assert found[0].causes[0].cause.id == "learning_rate_too_high"


def test_a_diagnosis_begins_with_its_fault_and_not_with_the_report() -> None:
    slower = finding("StepOutlier", 351, ("steps_slower_for_good",), evidence={"since_step": 1})
    (diagnosis,) = diagnose([slower])
    assert (diagnosis.step, diagnosis.causes[0].step) == (1, 1)
    zero = finding("LearningRateZero", 762, ("learning_rate_is_zero",), evidence={"since_step": 755})
    flat = finding("LossNotDecreasing", 758, ("loss_flat",))
    (diagnosis,) = diagnose([zero, flat])
    assert diagnosis.step == 755
    assert diagnosis.findings == (flat.id, zero.id)


@pytest.mark.parametrize("since", [-1, 400, "7", True, None, 3.0])
def test_a_beginning_that_cannot_be_is_none(since: object) -> None:
    assert finding("Rule", 351, evidence={"since_step": since}).since == 351


def test_what_a_model_shows_after_its_loss_diverged_is_a_consequence() -> None:
    rate = finding("WeightUpdateRatio", 0, ("update_ratio_extreme", "rate_above_usual"))
    diverged = finding("LossIncreasing", 21, ("loss_diverged",), severity=Severity.ERROR)
    decay = finding("PenaltyDominates", 128, ("weights_pulled_to_zero", "decay_outweighs_gradient"))
    dead = finding("DeadRelu", 384, ("dead_units",), severity=Severity.ERROR)
    constant = finding("ConstantOutput", 384, ("output_constant",))
    (diagnosis,) = diagnose([rate, diverged, decay, dead, constant])
    assert diagnosis.causes[0].cause.id == "learning_rate_too_high"
    assert len(diagnosis.findings) == 5
    # Without an error too, and not where the decay came first.
    warned = replace(diverged, severity=Severity.WARNING)
    assert diagnose([rate, warned, decay])[0].causes[0].cause.id == "learning_rate_too_high"
    early = replace(decay, step=0, global_step=0)
    assert "penalty_dominates" in {each.causes[0].cause.id for each in diagnose([warned, early])}


def test_a_value_that_becomes_nan_after_the_loss_diverged_is_stated() -> None:
    diverged = finding("LossIncreasing", 21, ("loss_diverged",), severity=Severity.ERROR)
    bad = finding("ExplodingTensor", 40, ("nonfinite_loss", "rose_before"), severity=Severity.ERROR)
    (diagnosis,) = diagnose([diverged, bad])
    assert diagnosis.headline == "The learning rate is too high: ExplodingTensor at 40"


def test_consequences_of_a_consequence_stay_in_the_diagnosis() -> None:
    left_over = finding("MissingZeroGrad", 3, ("gradients_left_over",))
    bad = finding("ExplodingTensor", 40, ("nonfinite_loss", "rose_before"), severity=Severity.ERROR)
    dead = finding("DeadRelu", 60, ("dead_units",))
    other = finding("ClassImbalance", 70, ("validation_never_fell",))
    (diagnosis,) = diagnose([left_over, bad, dead, other])
    assert diagnosis.findings == tuple(each.id for each in (left_over, bad, dead, other))


def test_a_silent_rule_does_not_weaken_what_is_measured() -> None:
    knowledge = load_knowledge().where([], ["TooSlow", "VanishingGradient", "DeadRelu"])
    tiny = finding("WeightUpdateRatio", 300, ("update_ratio_small", "update_ratio_nil"))
    (diagnosis,) = diagnose([tiny], knowledge)
    assert diagnosis.causes[0].cause.id == "learning_rate_too_low"
    assert diagnosis.causes[0].score >= 0.9
    assert diagnosis.causes[0].against == ()
    assert diagnosis.headline.startswith("The learning rate is too low: ")
    (unmeasured,) = diagnose([finding("WeightUpdateRatio", 300, ("update_ratio_small",))], knowledge)
    assert unmeasured.causes[0].against == ("TooSlow has found nothing",)
    assert unmeasured.causes[0].score < 0.5


def test_a_script_that_warms_up_does_not_lack_a_warmup() -> None:
    symptoms = ("loss_rises_from_start", "rate_above_usual", "full_rate_at_once")
    first = finding("LossIncreasing", 5, symptoms, severity=Severity.ERROR)
    warmed = finding("WeightUpdateRatio", 30, ("update_ratio_extreme",), evidence={"already": ["warms_up"]})
    (without,) = diagnose([first, replace(warmed, evidence={"symptoms": ["update_ratio_extreme"]})])
    assert "warmup_missing" in {each.cause.id for each in without.causes}
    (diagnosis,) = diagnose([first, warmed])
    assert "warmup_missing" not in {each.cause.id for each in diagnosis.causes}
    other = replace(warmed, model=1)
    apart = diagnose([first, other], part=lambda each: each.model)
    assert "warmup_missing" in {ranked.cause.id for each in apart for ranked in each.causes}
