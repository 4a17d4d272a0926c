"""Collectives of a standby: answered as if every rank were me, so that nothing stays uninitialised.

Set-up collectives that a live rank of the same number made are answered from its recording
(``recording.py``); everything else from the standby's own input.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from .group import YocoProcessGroup
    from .membership import Membership

Tensor = torch.Tensor


def answer(
    membership: Membership,
    group: YocoProcessGroup,
    name: str,
    arguments: tuple[Any, ...],
    keywords: dict[str, Any],
) -> None:
    """Fill the outputs of one collective in place."""
    group.sequence += 1
    if membership.played is not None and membership.played.answer(group, name, arguments, keywords):
        return
    with torch.no_grad():
        _ANSWERS[name](group, list(arguments) + list(keywords.values()))


def _scale(group: YocoProcessGroup, arguments: list[Any]) -> int:
    """What a sum over equal inputs multiplies by; minimum, maximum and average leave them alone."""
    for argument in arguments:
        operation: Any = getattr(argument, "reduceOp", argument)
        if isinstance(operation, dist.ReduceOp | dist.ReduceOp.RedOpType):
            return group.size() if operation == dist.ReduceOp.SUM else 1
    return 1


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _reduce(group: YocoProcessGroup, arguments: list[Any]) -> None:
    scale = _scale(group, arguments[1:])
    for tensor in _listed(arguments[0]):
        tensor.mul_(scale)


def _keep(_group: YocoProcessGroup, _arguments: list[Any]) -> None:
    """Broadcast and send: the own value is the answer."""


def _gather_lists(group: YocoProcessGroup, arguments: list[Any]) -> None:
    outputs, inputs = _listed(arguments[0]), _listed(arguments[1])
    if outputs and isinstance(outputs[0], Tensor):
        outputs = [outputs]
    for slots, value in zip(outputs, inputs, strict=False):
        for slot in slots:
            slot.copy_(value)


def _gather_coalesced(_group: YocoProcessGroup, arguments: list[Any]) -> None:
    for slots in arguments[0]:
        for slot, value in zip(slots, arguments[1], strict=True):
            slot.copy_(value)


def _gather_flat(group: YocoProcessGroup, arguments: list[Any]) -> None:
    for output, value in zip(_listed(arguments[0]), _listed(arguments[1]), strict=True):
        output.view(group.size(), -1).copy_(value.reshape(1, -1).expand(group.size(), -1))


def _scatter_flat(group: YocoProcessGroup, arguments: list[Any]) -> None:
    scale = _scale(group, arguments[2:])
    for output, value in zip(_listed(arguments[0]), _listed(arguments[1]), strict=True):
        chunk = value.reshape(group.size(), -1)[group.rank()]
        output.view(-1).copy_(chunk * scale if scale != 1 else chunk)


def _scatter_lists(group: YocoProcessGroup, arguments: list[Any]) -> None:
    scale = _scale(group, arguments[2:])
    outputs, inputs = _listed(arguments[0]), arguments[1]
    if inputs and isinstance(inputs[0], Tensor):
        inputs = [inputs]
    if not inputs:
        for output in outputs:  # a scatter from elsewhere: nothing of mine to take
            output.zero_()
    for output, chunks in zip(outputs, inputs, strict=False):
        output.copy_(chunks[group.rank()] * scale if scale != 1 else chunks[group.rank()])


def _all_to_all(group: YocoProcessGroup, arguments: list[Any]) -> None:
    outputs, inputs = arguments[0], arguments[1]
    for output in outputs:
        output.copy_(inputs[group.rank()]) if output.shape == inputs[
            group.rank()
        ].shape else output.zero_()


def _all_to_all_flat(group: YocoProcessGroup, arguments: list[Any]) -> None:
    output, value = arguments[0], arguments[1]
    flat = output.view(-1)
    flat.zero_()
    size = min(flat.numel(), value.numel())
    flat[:size].copy_(value.reshape(-1)[:size])


def _zero(_group: YocoProcessGroup, arguments: list[Any]) -> None:
    for tensor in _listed(arguments[0]):
        tensor.zero_()


_ANSWERS = {
    "allreduce": _reduce,
    "allreduce_coalesced": _reduce,
    "reduce": _reduce,
    "broadcast": _keep,
    "send": _keep,
    "barrier": _keep,
    "recv": _zero,
    "recv_anysource": _zero,
    "allgather": _gather_lists,
    "gather": _gather_lists,
    "allgather_coalesced": _gather_coalesced,
    "_allgather_base": _gather_flat,
    "all_gather_single": _gather_flat,
    "all_gather_single_coalesced": _gather_flat,
    "allgather_into_tensor_coalesced": _gather_flat,
    "reduce_scatter": _scatter_lists,
    "scatter": _scatter_lists,
    "_reduce_scatter_base": _scatter_flat,
    "reduce_scatter_single": _scatter_flat,
    "reduce_scatter_single_coalesced": _scatter_flat,
    "reduce_scatter_tensor_coalesced": _scatter_flat,
    "alltoall": _all_to_all,
    "alltoall_base": _all_to_all_flat,
    "all_to_all_single": _all_to_all_flat,
}
