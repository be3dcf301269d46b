"""Findings of one disease become one diagnosis with ranked causes, a chain, and concrete advice."""

from __future__ import annotations

from dataclasses import replace

import pytest

from watchglass.evaluate import diagnose
from watchglass.records import Finding, Mode, Severity


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
    assert diagnosis.what_to_try[0] == "Learning rate 5 with SGD: try 0.5"
    assert [ranked.score for ranked in diagnosis.causes] == sorted((r.score for r in diagnosis.causes), reverse=True)


@pytest.mark.parametrize(("ratio", "advice"), [(None, "0.5"), (0.01, "0.5"), (2.0, "0.05"), (1e9, "0.005")])
def test_the_update_ratio_says_how_far_off_the_learning_rate_is(ratio: float | None, advice: str) -> None:
    evidence = {"learning_rate": 5.0, "optimizer": "SGD", **({"update_ratio": ratio} if ratio else {})}
    (diagnosis,) = diagnose([finding("ExplodingGradient", 2, ("gradient_growth",), evidence=evidence)])
    assert diagnosis.what_to_try[0] == f"Learning rate 5 with SGD: try {advice}"


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


def test_info_alone_is_no_disease_but_supports_one() -> None:
    info = finding("WeightUpdateRatio", 1, ("update_ratio_large",), severity=Severity.INFO)
    assert diagnose([info]) == ()
    (diagnosis,) = diagnose([info, finding("LossNotDecreasing", 2, ("loss_rising",))])
    assert diagnosis.findings == ("WeightUpdateRatio@1", "LossNotDecreasing@2")


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
