"""Devices of this node and what they measure: NVML where it is there, simulated where asked, else none.

A reading that cannot be taken says why by its outcome; it is never a zero.
"""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from typing import Any, Protocol

import msgspec

from .protocol import Gpu, Reading

TEMPERATURE = "gpu_temperature"
SIMULATED_FILE = "simulated.json"
SIMULATED_C = 45.0
SIMULATED_BYTES = 16 * 1024**3


class Devices(Protocol):
    """What a node has. Order of calls: ``gpus`` once, ``readings`` at each heartbeat, ``close``."""

    def gpus(self) -> list[Gpu]: ...

    def readings(self) -> list[Reading]: ...

    def close(self) -> None: ...


class NoDevices:
    """A node without a GPU that we can see."""

    def gpus(self) -> list[Gpu]:
        return []

    def readings(self) -> list[Reading]:
        return []

    def close(self) -> None: ...


class _SimulatedFile(msgspec.Struct):
    temperature_c: float | None = None
    gpus: dict[str, float] = {}
    """device index (decimal) -> its own temperature"""


class SimulatedDevices:
    """CPU slots that stand for GPUs. ``simulated.json`` in the state directory is read at each call:
    ``{"temperature_c": 96}`` for all, ``{"gpus": {"0": 96}}`` for one; 45 C without it."""

    def __init__(self, count: int, node: str, state_dir: Path) -> None:
        self._count = count
        self._node = node
        self._path = state_dir / SIMULATED_FILE

    def gpus(self) -> list[Gpu]:
        return [
            Gpu(
                index=index,
                uuid=f"simulated-{self._node}-{index}",
                model="CPU slot",
                memory_bytes=SIMULATED_BYTES,
                simulated=True,
            )
            for index in range(self._count)
        ]

    def readings(self) -> list[Reading]:
        try:
            found = msgspec.json.decode(self._path.read_bytes(), type=_SimulatedFile)
        except FileNotFoundError:
            found = _SimulatedFile()
        except (OSError, msgspec.DecodeError):
            return [self._reading(index, None) for index in range(self._count)]
        common = SIMULATED_C if found.temperature_c is None else found.temperature_c
        values = (found.gpus.get(str(index), common) for index in range(self._count))
        return [self._reading(index, value) for index, value in enumerate(values)]

    def _reading(self, index: int, value: float | None) -> Reading:
        good = value is not None and math.isfinite(value)
        return Reading(
            check=TEMPERATURE,
            entity=f"gpu{index}",
            outcome="ok" if good else "transient",
            value=value if good else None,
            unit="celsius",
            simulated=True,
        )

    def close(self) -> None: ...


class NvmlDevices:
    """NVIDIA devices through NVML. Made by ``find``, which says None where there is no driver."""

    def __init__(self, nvml: Any) -> None:  # Any: nvidia-ml-py carries no types
        self._nvml = nvml
        self._handles = [
            nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())
        ]

    def gpus(self) -> list[Gpu]:
        nvml = self._nvml
        return [
            Gpu(
                index=index,
                uuid=str(nvml.nvmlDeviceGetUUID(handle)),
                model=str(nvml.nvmlDeviceGetName(handle)),
                memory_bytes=int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
            )
            for index, handle in enumerate(self._handles)
        ]

    def readings(self) -> list[Reading]:
        return [self._temperature(index, handle) for index, handle in enumerate(self._handles)]

    def _temperature(self, index: int, handle: Any) -> Reading:  # Any: an opaque NVML handle
        nvml = self._nvml
        outcomes = {
            nvml.NVML_ERROR_NOT_SUPPORTED: "unsupported",
            nvml.NVML_ERROR_NO_PERMISSION: "no_permission",
            nvml.NVML_ERROR_GPU_IS_LOST: "fatal",
        }
        value, outcome = None, "ok"
        try:
            value = float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))
        except nvml.NVMLError as error:
            outcome = outcomes.get(error.value, "transient")
        reading = {"check": TEMPERATURE, "entity": f"gpu{index}", "unit": "celsius"}
        return msgspec.convert({**reading, "outcome": outcome, "value": value}, Reading)

    def close(self) -> None:
        self._nvml.nvmlShutdown()


def find(simulate: int, node: str, state_dir: Path) -> Devices:
    """The devices of this node."""
    if simulate:
        return SimulatedDevices(simulate, node, state_dir)
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except Exception:  # noqa: BLE001  a missing library and each of NVML's errors mean the same
        return NoDevices()
    return NvmlDevices(nvml)
