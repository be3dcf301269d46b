"""Hugging Face's Trainer with a tiny GPT-2, random tokens, and an evaluation after each epoch: it overfits."""
# /// watchglass
# options = ["--save-interval", "4"]
# headline = "^[0-9]+ (error|warning)"
# says = ["[Tt]he\\s+model\\s+overfits\\s+its\\s+training\\s+data|inputs do not\\s+determine the targets"]  # its tokens are random
# slow = true
# ///

import os

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from transformers import GPT2Config, GPT2LMHeadModel, PrinterCallback, Trainer, TrainingArguments, set_seed

torch.set_num_threads(1)
set_seed(0)

tokens = torch.randint(0, 32, (28, 8))
rows = [{"input_ids": row, "labels": row} for row in tokens]
config = GPT2Config(
    vocab_size=32, n_positions=8, n_embd=32, n_layer=1, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    bos_token_id=0, eos_token_id=0, use_cache=False,
)  # fmt: skip
arguments = TrainingArguments(
    output_dir="out", num_train_epochs=14, per_device_train_batch_size=4, per_device_eval_batch_size=5, learning_rate=1e-2,
    eval_strategy="epoch", save_strategy="no", logging_strategy="no", report_to=[], disable_tqdm=True, use_cpu=True,
    gradient_accumulation_steps=2,
)  # fmt: skip
trainer = Trainer(GPT2LMHeadModel(config), arguments, train_dataset=rows[:16], eval_dataset=rows[16:])
trainer.remove_callback(PrinterCallback)  # prints how long everything took
trainer.train()
print([round(entry["eval_loss"], 4) for entry in trainer.state.log_history if "eval_loss" in entry])
