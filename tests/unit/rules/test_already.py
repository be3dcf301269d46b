"""Nobody is advised to do what the script does already."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from synthetic_steps import MODULES, training
from watchglass.config import RuleSpec
from watchglass.diagnose import diagnose
from watchglass.errors import InvalidValueError
from watchglass.evaluate import replay
from watchglass.rules import load_knowledge
from watchglass.rules.already import FOUND_BY
from watchglass.rules.knowledge import ALREADY
from watchglass.testing import build_run

CLIP = {"function": "clip_grad_norm_", "max_norm": 1.0, "norm_type": 2.0, "calls": 1, "compared": 0, "exceeded": 0}
WARM_UP, CLIPPING = (
    "Warm the learning rate up over the first few hundred steps",
    "Clip the gradient norm, to 1.0 for a start",
)


def advised(path: Path, *, rises: int, facts: Mapping[int, Mapping[str, Mapping[str, Any]]]) -> tuple[str, ...]:
    """Advice of the diagnosis of a run that diverges at a rate of 50."""
    steps = training(
        60, loss=lambda n: 2.3 if n < 30 else 2.3 * 3.0 ** (n - 30), rate=lambda n: 50.0 * min(1.0, (n + 1) / rises),
        ratio=lambda n, layer: 3.0, facts=facts,
    )  # fmt: skip
    found = replay(build_run(path, steps, modules=MODULES), [RuleSpec("LossIncreasing"), RuleSpec("WeightUpdateRatio")])
    best = diagnose(found.findings)[0]
    assert best.causes[0].cause.id == "learning_rate_too_high"
    assert set(best.what_to_try) <= set(best.causes[0].what_to_try)
    for finding in found.findings:
        assert (WARM_UP in finding.what_to_try) == (WARM_UP in best.what_to_try) or finding.step < 3
    return best.what_to_try


@pytest.mark.parametrize(
    ("rises", "facts", "expected"),
    [
        (1, {}, (WARM_UP, CLIPPING)),
        (1, {0: {"clip": CLIP}}, (WARM_UP,)),
        (10, {}, (CLIPPING,)),
        (10, {0: {"clip": CLIP}}, ()),
        # A jump is no warm-up.
        (2, {}, (WARM_UP, CLIPPING)),
    ],
)
def test_what_the_script_does_is_not_advised(
    run_path: Path, rises: int, facts: Mapping[int, Mapping[str, Mapping[str, Any]]], expected: tuple[str, ...]
) -> None:
    first, *rest = advised(run_path, rises=rises, facts=facts)
    assert first.startswith("Learning rate 5")
    assert tuple(rest) == expected


def test_a_first_sentence_that_is_superfluous_goes_with_its_numbers() -> None:
    known = load_knowledge()
    every = known.advise("gradient_underflow", {})
    assert every[0].startswith("Use torch.amp.GradScaler")
    assert known.advise("gradient_underflow", {}, ["scales_loss"]) == every[1:]


def test_a_cause_that_the_script_rules_out_is_none() -> None:
    known = load_knowledge()
    assert known.likely(["full_rate_at_once"]) == ("warmup_missing",)
    assert known.likely(["full_rate_at_once"], ["warms_up"]) == ()


def test_a_custom_cause_names_what_makes_a_sentence_superfluous(tmp_path: Path) -> None:
    text = '[causes.mine]\ntitle = "a"\nexplanation = "b"\nwhat_to_try = ["One", {{ try = "Two", unless = "{}" }}]\n'
    path = tmp_path / "mine.toml"
    path.write_text(text.format("warms_up"))
    known = load_knowledge([path])
    assert known.advise("mine", {}) == known.cause("mine").what_to_try == ("One", "Two")
    assert known.advise("mine", {}, ["clips_gradients"]) == ("One", "Two")
    assert known.advise("mine", {}, ["warms_up"]) == ("One",)
    path.write_text(text.format("warm_up"))
    with pytest.raises(
        InvalidValueError, match=r'causes\.mine\.what_to_try\[1\]\.unless names "warm_up", which is not'
    ):
        load_knowledge([path])


def test_all_that_causes_may_name_is_found() -> None:
    assert set(FOUND_BY) == set(ALREADY)
