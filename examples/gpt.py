"""A small GPT on the source text of the Python standard library: the demo's job, and a script to copy.

    python examples/gpt.py --parallelism ddp --steps 200

The three lines that protect it are marked. Everything else is ordinary PyTorch: AdamW, a warm-up and cosine
schedule, gradient clipping, dropout, one BatchNorm, a stateful loader. Without an agent around it the script
trains unprotected and says so.
"""

from __future__ import annotations

import argparse
import math
import random
import sysconfig
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset, DistributedSampler
from torchdata.stateful_dataloader import StatefulDataLoader

import yoco

CORPUS_BYTES_MAX = 4_000_000


def corpus() -> torch.Tensor:
    """The bytes of the standard library's top-level modules, in name order, as a uint8 vector."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    text = b"\n".join(path.read_bytes() for path in sorted(folder.glob("*.py")))
    return torch.frombuffer(bytearray(text[:CORPUS_BYTES_MAX]), dtype=torch.uint8)


class Windows(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Non-overlapping windows of ``length`` bytes and the same shifted by one."""

    def __init__(self, text: torch.Tensor, length: int) -> None:
        self.text, self.length = text, length

    def __len__(self) -> int:
        return (len(self.text) - 1) // self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        start = index * self.length
        window = self.text[start : start + self.length + 1].long()
        return window[:-1], window[1:]


class Block(nn.Module):
    """Pre-norm attention and MLP. Shapes: (batch, time, width) in and out."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.norm_1(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, dropout_p=self.dropout if self.training else 0.0
        )
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm_2(x))


class GPT(nn.Module):
    """Bytes in, logits over 256 bytes out. The BatchNorm keeps running statistics worth moving."""

    def __init__(self, length: int, width: int, layers: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(256, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.norm = nn.BatchNorm1d(width)
        self.head = nn.Linear(width, 256, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x.flatten(0, 1)).view_as(x))


def wrapped(model: GPT, parallelism: str) -> nn.Module:
    """The model under DDP or FSDP2."""
    if parallelism == "ddp":
        return DistributedDataParallel(model)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def schedule(step: int, warm_up: int = 20, horizon: int = 4000) -> float:
    """Linear warm-up, then cosine down to a tenth; a factor of the base learning rate."""
    if step < warm_up:
        return (step + 1) / warm_up
    return 0.1 + 0.45 * (1 + math.cos(math.pi * min(1.0, (step - warm_up) / horizon)))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parallelism", choices=["ddp", "fsdp2"], default="ddp")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=4, help="windows per rank")
    parser.add_argument("--length", type=int, default=64, help="bytes per window")
    parser.add_argument("--width", type=int, default=160)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--workers", type=int, default=0, help="loader processes per rank")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--step-ms-min", type=float, default=0.0, help="slow down so that a person can watch"
    )
    return parser.parse_args()


def main() -> None:
    args = arguments()
    torch.set_num_threads(1)
    run = yoco.join()  # 1

    torch.manual_seed(args.seed)
    model = wrapped(
        GPT(args.length, args.width, args.layers, heads=4, dropout=0.1), args.parallelism
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)
    data = Windows(corpus(), args.length)
    sampler = DistributedSampler(
        data, dist.get_world_size(), dist.get_rank(), shuffle=True, seed=args.seed, drop_last=True
    )
    loader = StatefulDataLoader(
        data, args.batch, sampler=sampler, num_workers=args.workers, drop_last=True
    )
    # Unseeded generators would be carried over a failure too, but no twin could equal this run.
    torch.manual_seed(args.seed + 1000 + dist.get_rank())
    np.random.seed(args.seed + dist.get_rank())
    random.seed(args.seed + dist.get_rank())
    run.protect(model=model, optimizer=optimizer, scheduler=scheduler, loader=loader)  # 2

    def train() -> None:
        began = time.monotonic()
        for tokens, targets in run.batches():
            logits = model(tokens)
            loss = functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            run.report(loss=loss.item())
            if run.step >= args.steps:
                break
            time.sleep(max(0.0, args.step_ms_min / 1000 - (time.monotonic() - began)))
            began = time.monotonic()

    run.loop(train)  # 3


if __name__ == "__main__":
    main()
