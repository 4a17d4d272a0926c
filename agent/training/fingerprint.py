"""What decides the last bit of a sum on this machine, as words and as one short hash.

Two processes with different hashes may compute different bits from equal state.
"""

from __future__ import annotations

import os
import platform

import numpy as np
import torch
import xxhash

_VARIABLES = (
    "ATEN_CPU_CAPABILITY", "MKL_CBWR", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "ONEDNN_MAX_CPU_ISA",
    "DNNL_MAX_CPU_ISA", "NVIDIA_TF32_OVERRIDE", "CUBLAS_WORKSPACE_CONFIG",
)  # fmt: skip


def fingerprint_words() -> dict[str, str]:
    """What was looked at, in words."""
    words = {
        "torch": torch.__version__,
        "numpy": np.__version__,
        "build": torch.__config__.show(),
        "instruction set": torch.backends.cpu.get_cpu_capability(),
        "processor": _processor(),
        "threads": str(torch.get_num_threads()),
        "interop threads": str(torch.get_num_interop_threads()),
        "deterministic": str(torch.are_deterministic_algorithms_enabled()),
        "float32 matmul precision": torch.get_float32_matmul_precision(),
        "default dtype": str(torch.get_default_dtype()),
        "flush denormal": str(_flushes_denormals()),
        "mkldnn": str(torch.backends.mkldnn.enabled),
        **{f"env {name}": os.environ[name] for name in _VARIABLES if name in os.environ},
    }
    if torch.cuda.is_available():
        words |= _cuda_words()
    return words


def fingerprint() -> str:
    """16 hexadecimal digits over the words."""
    text = "\n".join(f"{key}={value}" for key, value in sorted(fingerprint_words().items()))
    return xxhash.xxh3_64_hexdigest(text.encode())


def differences(mine: dict[str, str], other: dict[str, str]) -> list[str]:
    """One sentence for each word in which two fingerprints differ."""
    return [
        f"{key}: {mine.get(key, 'absent')} here, {other.get(key, 'absent')} there"
        for key in sorted(mine.keys() | other.keys())
        if mine.get(key) != other.get(key)
    ]


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if line.startswith(("model name", "Model", "cpu model")):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _flushes_denormals() -> bool:
    return bool(torch.tensor(1e-310, dtype=torch.float64).mul(1.0).item() == 0.0)


def _cuda_words() -> dict[str, str]:
    device = torch.cuda.current_device()
    properties = torch.cuda.get_device_properties(device)
    return {
        "cuda": str(torch.version.cuda),
        "cudnn": str(torch.backends.cudnn.version()),  # type: ignore[no-untyped-call]
        "device": f"{properties.name}, capability {properties.major}.{properties.minor}",
        "multiprocessors": str(properties.multi_processor_count),
        "tf32": f"{torch.backends.cuda.matmul.allow_tf32} {torch.backends.cudnn.allow_tf32}",
        "cudnn benchmark": str(torch.backends.cudnn.benchmark),
        "cudnn deterministic": str(torch.backends.cudnn.deterministic),
    }
