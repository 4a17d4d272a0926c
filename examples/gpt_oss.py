"""A tiny mixture of experts, GPT-OSS of transformers with random weights, in a plain protected loop:

torchrun --nproc-per-node 3 examples/gpt_oss.py [STEPS [ddp|fsdp2]]

Nothing is downloaded: the model is made from its configuration class. The text is a module of Python.
"""

from __future__ import annotations

import codecs
import random
import sys

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from transformers import GptOssConfig, GptOssForCausalLM

import yoco

STEPS = int(sys.argv[1]) if sys.argv[1:] else 60
PARALLELISM = sys.argv[2] if sys.argv[2:] else "ddp"
LENGTH = 24

torch.set_num_threads(1)
run = yoco.join()
random.seed(run.rank)
np.random.seed(run.rank)
torch.manual_seed(0)

config = GptOssConfig(
    vocab_size=256, hidden_size=32, intermediate_size=48, num_hidden_layers=2, head_dim=8,
    num_attention_heads=4, num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2,
    sliding_window=8, max_position_embeddings=64, attention_dropout=0.1, router_aux_loss_coef=0.01,
    output_router_logits=True, use_cache=False, attn_implementation="eager",
    layer_types=["sliding_attention", "full_attention"],
    rope_scaling=None, rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
)  # fmt: skip
model: nn.Module = GptOssForCausalLM(config)
model.train()
if PARALLELISM == "fsdp2":
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
else:
    model = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=STEPS)

with open(codecs.__file__, "rb") as source:
    text = torch.frombuffer(bytearray(source.read()), dtype=torch.uint8)
windows = [text[at : at + LENGTH].long() for at in range(0, len(text) - LENGTH, LENGTH)]
sampler = DistributedSampler(windows, dist.get_world_size(), dist.get_rank(), seed=0)
loader = DataLoader(windows, batch_size=4, sampler=sampler, drop_last=True)
torch.manual_seed(1000 + run.rank)

run.protect(model=model, optimizer=optimizer, scheduler=scheduler, loader=loader)


def train() -> None:
    """Entered again, in position, after every recovery: keep what steers training out of its locals."""
    while run.step < STEPS:
        for tokens in run.batches():
            loss = model(input_ids=tokens, labels=tokens).loss
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            if run.rank == 0 and run.step % 20 == 0 and not run.rehearsing:
                print(f"step {run.step} epoch {run.epoch} loss {loss.item():.5f}", flush=True)
            if run.step >= STEPS:
                return


run.loop(train)
