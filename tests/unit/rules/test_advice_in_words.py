"""Advice in the words of the framework that a run trains with."""

from __future__ import annotations

import re

import pytest

from watchglass.config import read_toml
from watchglass.rules.knowledge.knowledge import Knowledge
from watchglass.rules.knowledge.phrases import WORDED, in_words_of, phrases
from watchglass.rules.knowledge.reading import BUILT_IN_FILE, built_in_knowledge

#: Names of PyTorch, as sentences mention them.
_PYTORCH = re.compile(
    r"torch|\bF\.|(?<!tf\.)(?<!jax\.)\bnn\.|\bdetach\(|zero_grad|no_grad|(?<!tf)\.data\b|\.item\(|DataLoader|num_workers|worker_init|Scaler\b"
    r"|\.step\(|\.to\(|\.train\(|\.eval\(|\bbackward\(|parameters\(\)|non_blocking|retain_graph|requires_grad|_grad_"
)
#: Causes whose symptoms exist in PyTorch alone: a call of the script forgets, mistakes or doubles something.
_OF_CALLS = {
    "gradients_never_cleared", "gradients_discarded", "optimizer_never_steps", "scheduler_misused",
    "clipped_while_scaled", "evaluated_in_training_mode", "trained_in_evaluation_mode", "worker_seeds_repeat",
    "loader_workers_do_not_fit",
}  # fmt: skip


def _sentences() -> list[tuple[str, str]]:
    causes = read_toml(BUILT_IN_FILE, "file of causes")["causes"]
    return [
        (name, each["try"] if isinstance(each, dict) else each)
        for name, row in causes.items()
        for each in [*row["what_to_try"], *row.get("advice", ())]
    ]


@pytest.mark.parametrize("framework", sorted(WORDED))
def test_no_sentence_for_another_framework_names_what_only_pytorch_has(framework: str) -> None:
    named = {text: found for _, text in _sentences() if (found := _PYTORCH.search(in_words_of(framework, text)))}
    # A loop of JAX may have PyTorch's loader.
    assert not {text: found[0] for text, found in named.items() if framework != "jax" or "worker" not in text}


def test_every_phrase_is_in_a_sentence() -> None:
    texts = [text for _, text in _sentences()]
    assert [phrase for phrase in phrases() if not any(phrase in text for text in texts)] == []


@pytest.mark.parametrize("framework", sorted(WORDED))
def test_a_cause_that_the_framework_can_have_keeps_advice(framework: str) -> None:
    knowledge = built_in_knowledge()
    silent = {name for name in knowledge.causes if not knowledge.advise(name, {}, (), framework)}
    assert silent <= _OF_CALLS


def test_names_are_replaced_in_general_sentences_and_in_those_with_numbers() -> None:
    knowledge = built_in_knowledge()
    cause = "identical_initialization"
    assert "torch.nn.init.kaiming_normal_" in knowledge.advise(cause, {})[0]
    assert "keras.initializers.HeNormal" in knowledge.advise(cause, {}, (), "keras")[0]
    filled = knowledge.advise(cause, {"tensor": "dense.kernel"}, (), "jax")[0]
    assert filled == "Initialise dense.kernel at random (jax.nn.initializers.he_normal), only biases with a constant"


def test_a_sentence_without_words_in_a_framework_is_left_out() -> None:
    assert in_words_of("jax", "Call scaler.unscale_(optimizer) between loss.backward() and the clipping") == ""
    assert in_words_of("torch", "Call model.train() before training") == "Call model.train() before training"
    assert Knowledge().advise("unknown", {}, (), "keras") == ()
