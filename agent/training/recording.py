"""Set-up collectives of the live ranks, kept in the store so that a standby hears the same answers.

While a rank sets up (from ``join`` to ``protect``) the small results of its collectives are kept; at
``protect``, and again in every generation, they are published under the generation's prefix. A standby waits
for one, takes the rank it belongs to as its provisional rank and plays it back; what was not recorded is
answered from its own input.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..store_client import StoreClient, StoreTimeout
from .work import LatchedWork, Tensors, tensors_of

if TYPE_CHECKING:
    from .group import YocoProcessGroup

RESULT_BYTES_MAX = 64 * 1024
TOTAL_BYTES_MAX = 4 * 1024 * 1024
OWN_RECORDING_S = 5.0
"""how long a standby prefers the recording of the rank it was launched as to another's"""
_RECORDED = frozenset(
    (
        "broadcast",
        "allgather",
        "_allgather_base",
        "all_gather_single",
        "allreduce",
        "gather",
        "scatter",
    )
)


class Recording:
    """What the process set up as ``rank`` heard. Kept by it, and by every standby that played it back, so
    that it outlives the process that made it."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self._heard: dict[str, bytes] = {}
        self._total_bytes = 0

    def keep(self, group: YocoProcessGroup, name: str, work: LatchedWork, result: Tensors) -> None:
        """Wait for ``work`` and keep its result, if it is small."""
        flat = _flat(result)
        size = sum(tensor.numel() * tensor.element_size() for tensor in flat)
        if name not in _RECORDED or size > RESULT_BYTES_MAX:
            return
        if any(tensor.device.type != "cpu" for tensor in flat):
            return
        if self._total_bytes + size > TOTAL_BYTES_MAX:
            return
        work.wait()
        self._heard[_key(group, name)] = b"".join(_bytes(tensor) for tensor in flat)
        self._total_bytes += size

    def publish(self, client: StoreClient) -> None:
        """Set the recording, then the list of it, then who has one. Raises StoreError."""
        keys = list(self._heard)
        if keys:
            client.multi_set(
                [f"setup/{self.rank}/{key}" for key in keys], list(self._heard.values())
            )
        client.set(f"setup/{self.rank}/whole", "\n".join(keys).encode())
        client.set("setup/some", str(self.rank).encode())

    @classmethod
    def fetch(cls, client: StoreClient, rank: int, timeout_s: float) -> Recording:
        """That of ``rank`` or, when nobody carries it any more, another's. Raises StoreError."""
        some = int(client.get("setup/some", timeout_s))
        if not client.check([f"setup/{rank}/whole"]):
            try:
                client.wait([f"setup/{rank}/whole"], OWN_RECORDING_S)
            except StoreTimeout:
                rank = some
        recording = cls(rank)
        keys = [key for key in client.get(f"setup/{rank}/whole").decode().split("\n") if key]
        values = client.multi_get([f"setup/{rank}/{key}" for key in keys]) if keys else []
        recording._heard = dict(zip(keys, values, strict=True))
        return recording

    def answer(
        self,
        group: YocoProcessGroup,
        name: str,
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
    ) -> bool:
        """Fill the outputs as the live rank's were filled; False when that was not recorded."""
        if name not in _RECORDED:
            return False
        data = self._heard.get(_key(group, name))
        if data is None:
            return False
        flat = _flat(tensors_of(arguments, keywords))
        if sum(tensor.numel() * tensor.element_size() for tensor in flat) != len(data):
            return False
        offset = 0
        with torch.no_grad():
            for tensor in flat:
                size = tensor.numel() * tensor.element_size()
                part = torch.frombuffer(bytearray(data[offset : offset + size]), dtype=torch.uint8)
                tensor.copy_(part.view(tensor.dtype).view(tensor.shape))
                offset += size
        return True


def _key(group: YocoProcessGroup, name: str) -> str:
    return f"{group.group_name}/{group.sequence}/{name}"


def _flat(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for item in value for tensor in _flat(item)]


def _bytes(tensor: torch.Tensor) -> bytes:
    flat = tensor.detach().contiguous().reshape(-1)
    return bytes(flat.view(torch.uint8).numpy()) if flat.numel() else b""
