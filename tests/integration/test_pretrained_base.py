"""A base for adapters by the real transformers and peft: one that was loaded is none that is random."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from waiting import PATIENCE_S
from watchglass.config import RuleSpec
from watchglass.evaluate import replay

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (find_spec("transformers") and find_spec("peft")), reason="needs transformers and peft"),
]

SAVING = """
import sys
from transformers import LlamaConfig, LlamaForCausalLM
sizes = dict(vocab_size=64, hidden_size=32, intermediate_size=64, num_attention_heads=2, max_position_embeddings=32)
LlamaForCausalLM(LlamaConfig(num_hidden_layers=1, **sizes)).save_pretrained(sys.argv[1])
"""
TRAINING = """
import sys, torch
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM
base, kind = sys.argv[1:]
torch.set_num_threads(1)
torch.manual_seed(1)
if kind == "loaded":
    model = AutoModelForCausalLM.from_pretrained(base)
else:
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(base))
model = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj"], task_type="CAUSAL_LM"))
optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], 1e-3)
for _ in range(20):
    tokens = torch.randint(0, 64, (8, 16))
    optimizer.zero_grad()
    model(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize("kind", ["loaded", "random"])
def test_only_a_random_base_is_reported(tmp_path: Path, kind: str) -> None:
    (tmp_path / "save.py").write_text(SAVING)
    (tmp_path / "train.py").write_text(TRAINING)
    base, run = str(tmp_path / "base"), tmp_path / "run"
    watched = ["-m", "watchglass", "run", "--run-dir", str(run), "--rules", "FrozenByMistake"]
    for command in (["save.py", base], [*watched, "train.py", base, kind]):
        done = subprocess.run(
            [sys.executable, *command], cwd=tmp_path, env={**os.environ, "HF_HUB_OFFLINE": "1"},
            capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
    found = replay(run, [RuleSpec("FrozenByMistake")]).findings
    assert len(found) == (kind == "random")
