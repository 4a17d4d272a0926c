"""The agents' key-value store as torch sees it. One object for the life of the process: at each new
generation it is turned to that generation's store, so the groups that torch made keep a live one."""

from __future__ import annotations

import datetime

import torch.distributed as dist
from torch._C._distributed_c10d import Store

from ..protocol import StoreRef
from ..store_client import StoreClient, StoreError


class AgentStore(Store):
    """Raises ``dist.DistStoreError`` for whatever the client raises."""

    def __init__(self, timeout_s: float) -> None:
        super().__init__()
        self._client: StoreClient | None = None
        self._timeout_s = timeout_s

    def turn_to(self, client: StoreClient) -> None:
        """Use ``client`` from now on and close the one before."""
        before, self._client = self._client, client
        if before is not None:
            before.close()

    def close(self) -> None:
        """End every call in progress, from any thread."""
        if self._client is not None:
            self._client.close()

    @property
    def client(self) -> StoreClient:
        if self._client is None:
            raise dist.DistStoreError("this process has no store yet")
        return self._client

    def clone(self) -> AgentStore:
        return self

    @property
    def timeout(self) -> datetime.timedelta:
        return datetime.timedelta(seconds=self._timeout_s)

    def set_timeout(self, timeout: datetime.timedelta) -> None:
        self._timeout_s = timeout.total_seconds()

    def set(self, key: str, value: str | bytes) -> None:
        try:
            self.client.set(key, value.encode() if isinstance(value, str) else bytes(value))
        except StoreError as error:
            raise dist.DistStoreError(str(error)) from error

    def get(self, key: str) -> bytes:
        try:
            return self.client.get(key, self._timeout_s)
        except StoreError as error:
            raise dist.DistStoreError(str(error)) from error

    def add(self, key: str, amount: int) -> int:
        try:
            return self.client.add(key, amount)
        except StoreError as error:
            raise dist.DistStoreError(str(error)) from error

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        try:
            return self.client.compare_set(key, expected.encode(), desired.encode())
        except StoreError as error:
            raise dist.DistStoreError(str(error)) from error

    def check(self, keys: list[str]) -> bool:
        try:
            return self.client.check(keys)
        except StoreError as error:
            raise dist.DistStoreError(str(error)) from error

    def wait(self, keys: list[str], timeout: datetime.timedelta | None = None) -> None:
        seconds = self._timeout_s if timeout is None else timeout.total_seconds()
        try:
            self.client.wait(keys, seconds)
        except StoreError as error:
            raise dist.DistStoreError(str(error)) from error

    def delete_key(self, key: str) -> bool:
        try:
            return self.client.delete_key(key)
        except StoreError as error:
            raise dist.DistStoreError(str(error)) from error

    def num_keys(self) -> int:
        return self.client.num_keys()

    def append(self, key: str, value: str | bytes) -> None:
        self.client.append(key, value.encode() if isinstance(value, str) else bytes(value))

    def multi_get(self, keys: list[str]) -> list[bytes]:
        try:
            return self.client.multi_get(keys, self._timeout_s)
        except StoreError as error:
            raise dist.DistStoreError(str(error)) from error

    def multi_set(self, keys: list[str], values: list[str | bytes]) -> None:
        data = [v.encode() if isinstance(v, str) else bytes(v) for v in values]
        self.client.multi_set(keys, data)

    def has_extended_api(self) -> bool:
        return True


def open_store(
    ref: StoreRef,
    *,
    connect_timeout_s: float,
    timeout_s: float,
    bind_host: str,
    connect: bool = True,
) -> StoreClient:
    """A client of the generation's prefix. Raises StoreError."""
    return StoreClient(
        ref.host, ref.port, ref.prefix, ref.secret, timeout_s=timeout_s,
        connect_timeout_s=connect_timeout_s, bind_host="" if bind_host in ("", "0.0.0.0") else bind_host,
        connect=connect,
    )  # fmt: skip
