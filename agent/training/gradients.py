"""Gradients as the optimizer will read them: local shards, by parameter name."""

from __future__ import annotations

from typing import Any

import torch

from .catalogue import Catalogue
from .encoding_arrays import bytes_view
from .locality import dtype_name, local
from .packs import put_bytes
from .refusals import RestoreFailed
from .shards import fsdp_groups, fsdp_parameters


class Gradients:
    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue

    def capture(self) -> dict[str, Any]:
        """name -> (dtype, shape, strides, bytes), None where a parameter has no gradient."""
        found: dict[str, Any] = {}
        for name, parameter in self._catalogue.parameters.items():
            if parameter.grad is None:
                found[name] = None
                continue
            grad = local(parameter.grad)
            data = bytes_view(grad).tobytes()
            found[name] = (dtype_name(grad), tuple(grad.shape), grad.stride(), data)
        return found

    def restore(self, saved: dict[str, Any]) -> None:
        for name, packed in saved.items():
            parameter = self._catalogue.parameters[name]
            if packed is None:
                parameter.grad = None
            else:
                _put(parameter, name, packed)

    def capture_accumulators(self) -> dict[str, Any]:
        """What the micro-batches so far have summed: gradients, FSDP2's unsharded and HSDP's partial ones."""
        models = self._catalogue.models
        return {
            "gradients": {n: _plain(p.grad) for n, p in self._catalogue.parameters.items()},
            "unsharded": [
                (_plain(p.unsharded_accumulated_grad), _plain(_unsharded_grad(p)))
                for p in fsdp_parameters(models)
            ],
            "partial": [_plain(group._partial_reduce_output) for group in fsdp_groups(models)],
        }

    def restore_accumulators(self, saved: dict[str, Any]) -> None:
        """Put back what ``capture_accumulators`` read, in whole: what is None there is None here."""
        for name, grad in saved["gradients"].items():
            parameter = self._catalogue.parameters[name]
            if grad is not None and local(parameter).shape != grad.shape:
                raise RestoreFailed(
                    "gradient_shape", f"the gradient of {name} has another shape here"
                )
            parameter.grad = None if grad is None else _like(parameter, grad)
        sharded = fsdp_parameters(self._catalogue.models)
        for parameter, (accumulated, grad) in zip(sharded, saved["unsharded"], strict=True):
            parameter.unsharded_accumulated_grad = accumulated
            if grad is not None or hasattr(parameter, "_unsharded_param"):
                parameter._unsharded_param.grad = grad
        groups = fsdp_groups(self._catalogue.models)
        for group, partial in zip(groups, saved["partial"], strict=True):
            group._partial_reduce_output = partial

    def drop(self) -> None:
        """Forget every gradient, FSDP2's unsharded accumulators included."""
        for parameter in self._catalogue.parameters.values():
            parameter.grad = None
        for sharded in fsdp_parameters(self._catalogue.models):
            sharded.unsharded_accumulated_grad = None
            unsharded = getattr(sharded, "_unsharded_param", None)
            if unsharded is not None:
                unsharded.grad = None
        for group in fsdp_groups(self._catalogue.models):
            group._partial_reduce_output = None


def _plain(tensor: torch.Tensor | None) -> torch.Tensor | None:
    return None if tensor is None else local(tensor).detach()


def _unsharded_grad(sharded: Any) -> torch.Tensor | None:
    unsharded = getattr(sharded, "_unsharded_param", None)
    return None if unsharded is None else unsharded.grad


@torch.no_grad()
def _put(parameter: torch.nn.Parameter, name: str, packed: Any) -> None:
    dtype, shape, strides, data = packed
    if tuple(local(parameter).shape) != tuple(shape):
        raise RestoreFailed("gradient_shape", f"the gradient of {name} has another shape here")
    grad = None if parameter.grad is None else local(parameter.grad)
    if grad is None or dtype_name(grad) != dtype or grad.stride() != tuple(strides):
        grad = torch.empty_strided(
            shape, strides, dtype=getattr(torch, dtype), device=local(parameter).device
        )
        parameter.grad = _like(parameter, grad)
    put_bytes(grad, data)


def _like(parameter: torch.nn.Parameter, shard: torch.Tensor) -> torch.Tensor:
    spec = getattr(parameter, "_spec", None)
    if spec is None:
        return shard
    from torch.distributed.tensor import DTensor

    return DTensor(shard, spec, requires_grad=False)  # type: ignore[no-untyped-call]
