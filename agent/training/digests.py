"""One number for a state: equal bits give equal digests, in every process and on every rank."""

from __future__ import annotations

import xxhash

from .batches import tensor_into
from .catalogue import Catalogue


def full_digest(catalogue: Catalogue, optimizer_words: bytes, private: bytes) -> str:
    """Over every parameter, optimizer tensor and buffer in name order, and the encoded rest."""
    hasher = xxhash.xxh3_128()
    _held(hasher, catalogue, ("parameter", "frozen", "buffer", "optimizer"))
    hasher.update(optimizer_words)
    hasher.update(private)
    return hasher.hexdigest()


def replica_digest(catalogue: Catalogue, optimizer_words: bytes, schedulers: bytes) -> str:
    """Over what replicas must hold alike: parameters, optimizer state, and schedulers, which steer both."""
    hasher = xxhash.xxh3_128()
    _held(hasher, catalogue, ("parameter", "frozen", "optimizer"))
    hasher.update(optimizer_words)
    hasher.update(schedulers)
    return hasher.hexdigest()


def _held(hasher: xxhash.xxh3_128, catalogue: Catalogue, roles: tuple[str, ...]) -> None:
    for held in sorted(catalogue.held, key=lambda item: (item.name, item.role)):
        if held.role in roles:
            hasher.update(f"{held.role} {held.name}".encode())
            tensor_into(hasher, held.tensor)
