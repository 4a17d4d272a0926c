"""How the models are parallel: what DDP and FSDP2 (torch.distributed.fsdp.fully_shard) made of them."""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn
from torch._prims_common import make_contiguous_strides_for
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_common import (
    _chunk_with_empty,
    _get_dim_chunked_size,
)
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._redistribute import _gen_transform_infos
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.distributed.tensor.debug import _clear_sharding_prop_cache
from torch.nn.parallel import DistributedDataParallel

from .locality import local
from .refusals import RestoreFailed

Parallelism = Literal["ddp", "fsdp2", "hsdp", "none"]


def fsdp_groups(models: Sequence[nn.Module]) -> list[Any]:
    """Every FSDP2 parameter group of the models, in module order, each once."""
    found: dict[int, Any] = {}
    for model in models:
        for module in model.modules():
            if isinstance(module, FSDPModule):
                state = module._get_fsdp_state()
                for group in state._fsdp_param_groups:
                    found.setdefault(id(group), group)
    return list(found.values())


def fsdp_parameters(models: Sequence[nn.Module]) -> list[Any]:
    """Every FSDPParam of the models, in module order."""
    return [parameter for group in fsdp_groups(models) for parameter in group.fsdp_params]


class ShardsInPlace:
    """The sharded parameters of the models as FSDP2 holds them now, to be put back when replaced.

    ``load_state_dict(assign=True)`` replaces them: FSDP2 takes over what it finds after a load.
    """

    def __init__(self, models: Sequence[nn.Module]) -> None:
        self._held = [
            (p, p.sharded_param, p.sharded_param._local_tensor, p._sharded_param_data)
            for p in fsdp_parameters(models)
        ]

    def put_back(self) -> None:
        """The same objects stand in every module that shares them. Call it while the models are sharded."""
        for parameter, sharded, shard, data in self._held:
            sharded._local_tensor = shard
            parameter.sharded_param, parameter._sharded_param_data = sharded, data
            info = parameter._module_info
            info.module._parameters[info.param_name] = sharded
            for module, key in zip(info.shared_modules, info.shared_param_names, strict=True):
                module._parameters[key] = sharded
            parameter._sharding_spec = sharded._spec


def parallelism_of(models: Sequence[nn.Module]) -> Parallelism:
    """``hsdp`` where shards are also replicated, ``fsdp2`` where they are not."""
    groups = fsdp_groups(models)
    if groups:
        meshes = [group.mesh_info for group in groups]
        replicated = all(getattr(m, "replicate_mesh_size", 1) > 1 for m in meshes)
        return "hsdp" if replicated else "fsdp2"
    wrapped = any(
        isinstance(m, DistributedDataParallel) for model in models for m in model.modules()
    )
    return "ddp" if wrapped else "none"


def replica_group_of(models: Sequence[nn.Module], rank: int, world_size: int) -> list[int]:
    """Ranks that hold the same shard as ``rank``, itself included, in ascending order."""
    kind = parallelism_of(models)
    if kind == "ddp":
        ranks = set(range(world_size))
        for model in models:
            for module in model.modules():
                if isinstance(module, DistributedDataParallel) and dist.is_initialized():
                    ranks &= set(dist.get_process_group_ranks(module.process_group))
        return sorted(ranks)
    if kind == "hsdp":
        common = set(range(world_size))
        for group in fsdp_groups(models):
            info = group.mesh_info
            grid = info.mesh.mesh.movedim(info.replicate_mesh_dim, 0)
            column = (grid == rank).nonzero()[0, 1:].tolist()
            common &= set(grid[(slice(None), *column)].flatten().tolist())
        return sorted(common)
    return [rank]


def adopt_rank(models: Sequence[nn.Module], rank: int) -> None:
    """Give every mesh and every FSDP2 shard of this process the coordinates of global rank ``rank``.

    Values of parameters are not kept. Raises RestoreFailed where FSDP2 shards what tensor parallelism has
    split unevenly.
    """
    _move_meshes(rank)
    # What DTensor remembers of its operations holds the sizes of the coordinate it had.
    _clear_sharding_prop_cache()  # type: ignore[no-untyped-call]
    _gen_transform_infos.cache_clear()
    for parameter in fsdp_parameters(models):
        spec = parameter._unsharded_dtensor_spec if parameter.is_dtensor else None
        if spec is not None and _local_shape(spec) != tuple(parameter._orig_size):
            raise RestoreFailed(
                "adoption_unsupported",
                f"{parameter._module_info.param_name} is split unevenly by tensor parallelism and sharded "
                "by FSDP2: such a rank can be taken by itself only",
            )
    _split_anew(models)
    for info in _mesh_infos(models):
        coordinate = info.mesh.get_coordinate()
        if coordinate is None:
            raise RestoreFailed("adoption_unsupported", f"rank {rank} is not part of {info.mesh}")
        if info.shard_mesh_dim is not None and hasattr(info, "shard_mesh_rank"):
            info.shard_mesh_rank = coordinate[info.shard_mesh_dim]
        if info.replicate_mesh_dim is not None and hasattr(info, "replicate_mesh_rank"):
            info.replicate_mesh_rank = coordinate[info.replicate_mesh_dim]
    for parameter in fsdp_parameters(models):
        _reshape(parameter)


def _local_shape(spec: Any) -> tuple[int, ...]:
    """Of a tensor with this spec, on the rank its mesh stands at."""
    shape, _offset = compute_local_shape_and_global_offset(spec.shape, spec.mesh, spec.placements)
    return tuple(shape)


@torch.no_grad()
def _split_anew(models: Sequence[nn.Module]) -> None:
    """Shards of tensor parallelism alone take the shapes they have on the new rank."""
    theirs = {id(parameter.sharded_param) for parameter in fsdp_parameters(models)}
    for model in models:
        for tensor in (*model.parameters(), *model.buffers()):
            if not isinstance(tensor, DTensor) or id(tensor) in theirs:
                continue
            shard, shape = local(tensor), _local_shape(tensor._spec)
            if tuple(shard.shape) != shape:
                tensor._local_tensor = torch.zeros(shape, dtype=shard.dtype, device=shard.device)


_noted: list[DeviceMesh] = []


def note_meshes() -> None:
    """Find every mesh alive, those that only a cache or the script holds included.

    Looking at every object of the process takes longer than all the rest of taking another rank:
    a standby does it while it waits.
    """
    _noted[:] = [
        candidate for candidate in gc.get_objects() if issubclass(type(candidate), DeviceMesh)
    ]


def _move_meshes(rank: int) -> None:
    if not _noted:
        note_meshes()
    for candidate in _noted:
        if hasattr(candidate, "_coordinate_on_dim"):
            full = candidate._layout.remap_to_tensor(candidate._rank_map)
            candidate._rank = rank
            rows = (full == rank).nonzero()
            if len(rows) == 0:
                candidate._coordinate_on_dim = None
                continue
            own = full[rows[0, 0]] if full.size(0) > 1 else full[0]
            candidate._coordinate_on_dim = DeviceMesh._compute_coordinates_from_mesh(own, rank)


def _mesh_infos(models: Sequence[nn.Module]) -> list[Any]:
    found: dict[int, Any] = {}
    for holder in [*fsdp_groups(models), *fsdp_parameters(models)]:
        for key in ("mesh_info", "post_forward_mesh_info"):
            info = getattr(holder, key, None)
            if info is not None:
                found[id(info)] = info
    return list(found.values())


@torch.no_grad()
def _reshape(parameter: Any) -> None:
    """What FSDPParam's set-up derives from its rank. The padded storage is as large on every rank."""
    info, dim = parameter.mesh_info, parameter.fsdp_placement.dim
    whole = torch.empty(parameter._orig_size, device="meta")
    sized = hasattr(info, "shard_mesh_rank")
    chunks = _chunk_with_empty(whole, info.shard_mesh_size if sized else 1, dim=dim)
    chunk = chunks[info.shard_mesh_rank if sized else 0]
    parameter.sharded_size = _get_dim_chunked_size(chunk, whole.size(), dim=dim)
    parameter.contiguous_sharded_stride = make_contiguous_strides_for(parameter.sharded_size)
    length = chunk.size(dim) if chunk.numel() > 0 else 0
    padded = parameter._sharded_param_data.view(parameter.padded_sharded_param_size)
    parameter.sharded_param._local_tensor = padded.narrow(dim, 0, length)
    if parameter.post_forward_mesh_info is not None:
        parameter._init_sharded_post_forward_param_metadata(whole)
    parameter.reset_sharded_param()


def reshape_optimizer_state(
    optimizers: Sequence[torch.optim.Optimizer], shapes: Mapping[int, tuple[int, ...]]
) -> None:
    """Make optimizer tensors anew where the shard they belong to has another shape now.

    ``shapes``: id(parameter) -> local shape before the change. Values are zeros, to be overwritten.
    """
    for optimizer in optimizers:
        for owner, state in optimizer.state.items():
            before = shapes.get(id(owner))
            if before is None or not isinstance(state, dict):
                continue
            now = tuple(local(owner).shape)
            for key, value in state.items():
                if isinstance(value, torch.Tensor) and tuple(local(value).shape) == before != now:
                    state[key] = _zeros_like(value, owner)


def _zeros_like(value: torch.Tensor, owner: torch.Tensor) -> torch.Tensor:
    shard = torch.zeros(local(owner).shape, dtype=value.dtype, device=local(value).device)
    spec = getattr(value, "_spec", None)
    return shard if spec is None else DTensor(shard, spec, requires_grad=False)  # type: ignore[no-untyped-call]
