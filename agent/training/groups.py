"""Optimizer state that is not tensors: parameter groups with all hyper-parameters, and loose values.

Who belongs to which group and which tensors exist changes with the catalogue only, and is encoded then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .catalogue import Catalogue
from .encoding import Encoded, encode
from .refusals import RestoreFailed

_AMP = ("grad_scale", "found_inf")
"""what a GradScaler hands to a fused optimizer for one step"""


class OptimizerWords:
    """Captures, per optimizer: hyper-parameters, members by name, non-tensor state, tensors by name."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self.refresh()

    def refresh(self) -> None:
        """The catalogue has changed."""
        names = self._catalogue.names
        self._members = [
            Encoded(encode([[names[id(p)] for p in g["params"]] for g in optimizer.param_groups]))
            for optimizer in self._catalogue.optimizers
        ]
        self._present = [
            Encoded(encode({item.name: list(item.tensors) for item in owned}))
            for owned in self._catalogue.owned
        ]
        self._loose = [[i for i in owned if i.rest] for owned in self._catalogue.owned]

    def capture(self) -> list[dict[str, Any]]:
        """Valid for the catalogue as of the last ``refresh``."""
        return [self._capture_one(index) for index in range(len(self._catalogue.optimizers))]

    def _capture_one(self, index: int) -> dict[str, Any]:
        optimizer = self._catalogue.optimizers[index]
        loose = {i.name: {key: i.state[key] for key in i.rest} for i in self._loose[index]}
        others = {
            self._catalogue.owner_name(owner): state
            for owner, state in optimizer.state.items()
            if not isinstance(state, dict)
        }
        amp = {
            name: value
            for name in _AMP
            if isinstance(value := getattr(optimizer, name, None), torch.Tensor)
        }
        return {
            **({"amp": amp} if amp else {}),
            "groups": [
                {k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups
            ],
            "members": self._members[index],
            "present": self._present[index],
            "loose": loose,
            "others": others,
        }

    # --- back ----------------------------------------------------------------------------------

    def check(self, saved: Sequence[dict[str, Any]]) -> None:
        """Raise RestoreFailed, nothing changed, unless ``saved`` fits the optimizers of this process."""
        optimizers = self._catalogue.optimizers
        if len(saved) != len(optimizers):
            raise RestoreFailed(
                "optimizers_differ",
                f"{len(saved)} optimizers were saved, {len(optimizers)} are here",
            )
        for optimizer, state in zip(optimizers, saved, strict=True):
            named = {name for members in state["members"] for name in members}
            unknown = sorted(named - self._catalogue.parameters.keys())
            if unknown:
                raise RestoreFailed(
                    "parameters_differ", f"no parameter is called {unknown[0]} here"
                )
            if len(optimizer.param_groups) > len(state["groups"]):
                raise RestoreFailed(
                    "groups_differ", "the optimizer has more parameter groups than the saved one"
                )
            owners = self._owners(optimizer)
            states: dict[Any, Any] = optimizer.state
            for name, keys in state["present"].items():
                kept = states.get(owners.get(name), {})
                missing = [key for key in keys if not isinstance(kept.get(key), torch.Tensor)]
                if missing:
                    raise RestoreFailed(
                        "optimizer_state_missing",
                        f"optimizer state {missing} of {name} exists in the saved state and not here",
                    )

    def restore(self, saved: Sequence[dict[str, Any]]) -> None:
        """Put back what ``check`` accepted; the catalogue may have to be refreshed afterwards."""
        for optimizer, state in zip(self._catalogue.optimizers, saved, strict=True):
            self._restore_groups(optimizer, state["groups"], state["members"])
            self._restore_state(optimizer, state)
            self._restore_amp(optimizer, state.get("amp", {}))

    @staticmethod
    def _restore_amp(optimizer: torch.optim.Optimizer, saved: dict[str, torch.Tensor]) -> None:
        """A scaler that was interrupted in the step has left here what it would multiply by once more."""
        for name in _AMP:
            if name in saved:
                _into(getattr(optimizer, name, None), saved[name])
            elif name in vars(optimizer):
                delattr(optimizer, name)

    def _owners(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        return {self._catalogue.owner_name(owner): owner for owner in optimizer.state}

    def _restore_groups(
        self, optimizer: torch.optim.Optimizer, saved: list[dict[str, Any]], names: list[list[str]]
    ) -> None:
        parameters = self._catalogue.parameters
        for index, values in enumerate(saved):
            members = [parameters[name] for name in names[index]]
            if index == len(optimizer.param_groups):
                optimizer.param_groups.append({"params": members})
            group = optimizer.param_groups[index]
            if [id(p) for p in group["params"]] != [id(p) for p in members]:
                group["params"][:] = members
            for key in [key for key in group if key not in values and key != "params"]:
                del group[key]
            for key, value in values.items():
                group[key] = _into(group.get(key), value)

    def _restore_state(self, optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
        owners = self._owners(optimizer)
        states: dict[Any, Any] = optimizer.state
        for name, owner in owners.items():
            if name not in saved["present"] and name not in saved["others"]:
                del states[owner]
        for name, keys in saved["present"].items():
            state = states[owners.get(name, self._catalogue.parameters.get(name))]
            loose = saved["loose"].get(name, {})
            for key in [key for key in state if key not in keys and key not in loose]:
                del state[key]
            state.update(loose)
        for name, value in saved["others"].items():
            states[owners[name]] = value


def _into(here: Any, value: Any) -> Any:
    """A tensor hyper-parameter stays the object that schedulers and compiled code know."""
    if (
        isinstance(here, torch.Tensor)
        and isinstance(value, torch.Tensor)
        and here.shape == value.shape
        and here.dtype == value.dtype
    ):
        with torch.no_grad():
            here.copy_(value)
        return here
    return value
