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

from train_twice import Watch, bits, trained_twice

STEPS, BATCH, LENGTH, WORDS, WIDTH, LAYERS = 20, 3, 8, 31, 16, 2


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def gpt2() -> Any:
    """The library, which takes seconds to import and leaves an import hook; nothing is downloaded."""
    transformers = pytest.importorskip("transformers")
    made(transformers)
    return transformers


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
