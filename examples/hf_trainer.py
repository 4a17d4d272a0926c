"""Hugging Face Trainer with evaluation, early stopping and checkpoints, protected:

torchrun --nproc-per-node 3 examples/hf_trainer.py [STEPS [FOLDER]]
"""

from __future__ import annotations

import codecs
import sys
from typing import Any

import torch
from transformers import (
    EarlyStoppingCallback,
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainingArguments,
)

import yoco
import yoco.transformers

STEPS = int(sys.argv[1]) if sys.argv[1:] else 60
FOLDER = sys.argv[2] if sys.argv[2:] else "checkpoints"
LENGTH = 24

torch.set_num_threads(1)
run = yoco.join()  # before TrainingArguments, which take the group that exists

with open(codecs.__file__, "rb") as source:
    text = list(source.read()[: LENGTH * 132])
windows: list[dict[str, Any]] = [
    {"input_ids": text[at : at + LENGTH], "labels": text[at : at + LENGTH]}
    for at in range(0, len(text), LENGTH)
]
torch.manual_seed(0)
config = GPT2Config(
    vocab_size=256, n_positions=LENGTH, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
)  # fmt: skip
arguments = TrainingArguments(
    output_dir=FOLDER, use_cpu=True, max_steps=STEPS, per_device_train_batch_size=4, learning_rate=1e-3,
    logging_steps=2, eval_strategy="steps", eval_steps=3, save_strategy="steps", save_steps=3,
    load_best_model_at_end=True, metric_for_best_model="eval_loss", report_to=[], disable_tqdm=True,
    seed=3, per_device_eval_batch_size=2, ddp_find_unused_parameters=False,
)  # fmt: skip
trainer = Trainer(
    model=GPT2LMHeadModel(config),
    args=arguments,
    train_dataset=windows[:120],
    eval_dataset=windows[120:],
    callbacks=[EarlyStoppingCallback(early_stopping_patience=3)],
)
yoco.transformers.protect(trainer, run)
trainer.train()
