"""A small language model of Hugging Face's library: its outputs are found by their names, and nothing changes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import watchglass
from train_twice import Watch, bits, trained_twice
from watchglass.config import RuleSpec
from watchglass.evaluate import replay
from watchglass.records import Severity, Status
from watchglass.rules import capture_for, rule_names

STEPS, BATCH, LENGTH, WORDS, WIDTH, LAYERS = 20, 3, 8, 31, 16, 2


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def gpt2() -> Any:
    """The library, which takes seconds to import and leaves an import hook; nothing is downloaded."""
    transformers = pytest.importorskip("transformers")
    made(transformers)
    for attention in ("eager", "sdpa"):
        for model in MODELS:
            of_language(transformers, model, attention)
    return transformers


#: By model: its configuration, its class, and its settings where their names differ from those of Llama.
MODELS = {
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 16}),
    "llama": ("LlamaConfig", "LlamaForCausalLM", {"num_key_value_heads": 2}),
    "bert": ("BertConfig", "BertForMaskedLM", {}),
}
#: Rules of the set that have nothing to judge in a short run of a plain model in float32, without an evaluation.
NOTHING_TO_JUDGE = {
    "Overfit", "Overtraining", "SchedulerMisuse", "StalledTraining", "RouterLogits", "MixedPrecision", "Fp8Range",
    "MoEImbalance", "DeadExpert", "ReplicaDivergence", "GradientsSummedOverRanks", "RanksRepeatData",
    "SilentDataCorruption",
}  # fmt: skip
#: Those that look at dropout, which Llama lacks.
OF_DROPOUT = {"TrainEvalMode", "TooMuchDropout"}


def of_language(transformers: Any, model: str, attention: str) -> Any:
    """A language model of two layers and four heads."""
    config, kind, settings = MODELS[model]
    usual: dict[str, Any] = {}
    if model != "gpt2":
        usual = {
            "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
            "max_position_embeddings": 16,
        }  # fmt: skip
    if model == "bert":
        # As usual, 0.02 is for models of 768 units: with 32 the first attention would hardly get a gradient.
        usual["initializer_range"] = 0.1
    words = {"vocab_size": WORDS, "bos_token_id": 0, "eos_token_id": 0, "attn_implementation": attention}
    made_config = getattr(transformers, config)(**usual, **settings, **(words if model != "bert" else _without(words)))
    return getattr(transformers, kind)(made_config)


def _without(words: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in words.items() if not name.endswith("_token_id")}


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("model", MODELS)
def test_the_rules_for_language_models_find_all_that_they_look_at(
    tmp_path: Path, gpt2: Any, model: str, attention: str
) -> None:
    """With no setting but the set: attention logits of each head, output logits, update ratios, the batch."""
    torch.manual_seed(0)
    trained = of_language(gpt2, model, attention)
    optimizer = torch.optim.AdamW(trained.parameters(), lr=1e-3)
    specs = [RuleSpec(name) for name in rule_names("llm")]
    with watchglass.watch(trained, run=tmp_path / "run", strict=True, **capture_for(specs)):
        for _ in range(STEPS):
            tokens = torch.randint(0, WORDS, (8, 16))
            loss = trained(input_ids=tokens, labels=tokens).loss
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(trained.parameters(), 1.0)
            optimizer.step()
    run = watchglass.open_run(tmp_path / "run")
    names = run.tensor_names()
    for what in ("attention_logits_max", "attention_entropy"):
        heads = [name for name in names if f".{what}." in name]
        assert len(heads) == 2 * 4, what
    assert [name for name in names if name.endswith("logsumexp")]
    updated = {name.removeprefix("update/") for name in names if name.startswith("update/")}
    blocks = {name.partition("weight")[0] for name in updated if name.endswith(".weight") and ".0." in name}
    assert len(blocks) > 4, "updates of the first block"
    evaluation = replay(str(tmp_path / "run"), specs)
    unjudged = {s.rule for s in evaluation.statuses if s.status not in (Status.NO_ISSUES_FOUND, Status.ISSUES_FOUND)}
    assert unjudged == NOTHING_TO_JUDGE | (OF_DROPOUT if model == "llama" else set())
    assert [f.message for f in evaluation.findings if f.severity is not Severity.INFO] == []


def made(transformers: Any, **settings: Any) -> Any:
    config = transformers.GPT2Config(
        vocab_size=WORDS, n_positions=LENGTH, n_embd=WIDTH, n_layer=LAYERS, n_head=2, attn_implementation="eager",
        bos_token_id=0, eos_token_id=0, use_cache=False, **settings,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def batches() -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(5)
    for _ in range(STEPS):
        yield torch.randint(0, WORDS, (BATCH, LENGTH), generator=generator)


class Seen:
    """A training run of the model, and what it showed the script in each step."""

    def __init__(self, transformers: Any, **settings: Any) -> None:
        self.transformers, self.settings = transformers, settings
        self.outputs: list[dict[str, Any]] = []

    def __call__(self, watch: Watch) -> Any:
        model = made(self.transformers, **self.settings)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        watch(model)
        self.outputs.clear()
        types = set()
        for tokens in batches():
            optimizer.zero_grad()
            output = model(input_ids=tokens, labels=tokens, output_hidden_states=True)
            output.loss.backward()
            optimizer.step()
            types.add(type(output).__name__)
            self.outputs.append({name: value for name, value in output.items() if isinstance(value, Tensor)})
            self.outputs[-1] |= {f"hidden_states.{i}": one for i, one in enumerate(output.hidden_states)}
        return model, optimizer, sorted(types), [bits(found) for found in self.outputs]


def test_a_language_model_trains_bit_for_bit_as_unwatched_and_its_outputs_have_their_names(
    tmp_path: Path, gpt2: Any
) -> None:
    training = Seen(gpt2)
    run = trained_twice(tmp_path, training, save_raw=True, collections=("outputs", "inputs", "model_output"))
    expected = {"output.loss", "output.logits", *(f"output.hidden_states.{number}" for number in range(LAYERS + 1))}
    names = set(run.tensor_names())
    assert expected == {name for name in names if name.startswith("output.")}
    for step in (0, STEPS - 1):
        for name in expected:
            found, value = run.tensor(name).value(step), training.outputs[step][name.removeprefix("output.")]
            np.testing.assert_array_equal(found, value.detach().numpy(), err_msg=name)
    losses = [float(found["loss"].detach()) for found in training.outputs]
    np.testing.assert_allclose(run.scalars("loss")[1], losses, rtol=1e-6)
    # Modules inside return tensors and tuples of them, the attention its weights beside what comes of them.
    for number in range(LAYERS):
        assert run.tensor(f"transformer.h.{number}.mlp.c_fc.output").steps() == list(range(STEPS))
        assert run.tensor(f"transformer.h.{number}.attn.output.1").steps() == list(range(STEPS))
    assert run.tensor("input.input_ids").value(3).shape == (BATCH, LENGTH)


def test_its_weights_gradients_and_optimizer_state_are_all_there(tmp_path: Path, gpt2: Any) -> None:
    collections = ("weights", "biases", "gradients", "updates", "optimizer_variables")
    run = trained_twice(tmp_path, Seen(gpt2), collections=collections)
    names = {name for name, _ in made(gpt2).named_parameters()}
    assert "transformer.wte.weight" in names, "tied with the head, which has no second name"
    for kind in ("", "gradient/", "update/", "optimizer/exp_avg/", "optimizer/exp_avg_sq/"):
        found = {name.removeprefix(kind) for name in run.tensor_names() if name.startswith(kind)}
        assert names <= found, kind
        assert run.tensor(f"{kind}transformer.wte.weight").steps() == list(range(STEPS))


def test_a_model_without_labels_is_judged_by_the_scripts_own_loss(tmp_path: Path, gpt2: Any) -> None:
    losses: list[float] = []

    def training(watch: Watch) -> Any:
        model = made(gpt2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        watch(model)
        losses.clear()
        for tokens in batches():
            optimizer.zero_grad()
            logits = model(input_ids=tokens).logits
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return model, optimizer

    run = trained_twice(tmp_path, training, collections=("outputs", "model_output", "labels", "predictions"))
    np.testing.assert_array_equal(run.scalars("loss")[1], losses)
    assert run.tensor("prediction").info.shape == (BATCH * (LENGTH - 1), WORDS)
    assert run.tensor("label").info.shape == (BATCH * (LENGTH - 1),)
    assert "output.logits" in run.tensor_names()
    assert "output.loss" not in run.tensor_names()
