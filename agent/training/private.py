"""Everything of a rank that is not optimizer-written tensors: read at a fence, put back in place.

Each part has a name; a blob is the encoding of those parts. Parts are put back in the order of
``RESTORE_ORDER``: the loader first, because standing it draws from the global generators, and those last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from .catalogue import Catalogue
from .extras import Extra
from .feed import Feed
from .generators import GeneratorBank
from .groups import OptimizerWords
from .refusals import RestoreFailed
from .syncing import SyncFlags
from .tensors import PrivateTensors

FENCE = (
    "loaders", "modes", "sync", "tensors", "module_extras", "optimizers", "schedulers", "extras",
    "internal", "generators",
)  # fmt: skip
PREPARED = (
    "positions", "modes", "tensors", "module_extras", "schedulers", "extras", "generators",
)  # fmt: skip
"""What a script may change between a fence and the optimizer step, the end of an epoch included.

The position too: where a script decides by its gradients whether to step (a GradScaler that overflowed), the
step that is run once more without the other ranks may end in another batch."""


class PrivateState:
    """Captures and restores parts by name."""

    def __init__(
        self,
        catalogue: Catalogue,
        tensors: PrivateTensors,
        words: OptimizerWords,
        schedulers: Sequence[Any],
        feeds: Sequence[Feed],
        extras: Mapping[str, Extra],
        internal: Mapping[str, Extra],
        bank: GeneratorBank,
    ) -> None:
        self._catalogue = catalogue
        self._tensors = tensors
        self._words = words
        self._schedulers = list(schedulers)
        self._feeds = list(feeds)
        self._extras = dict(extras)
        self._internal = dict(internal)
        self._bank = bank
        self._sync = SyncFlags(catalogue.models)

    def capture(self, parts: Sequence[str]) -> dict[str, Any]:
        return {part: getattr(self, f"_get_{part}")() for part in parts}

    def restore(self, state: Mapping[str, Any], parts: Sequence[str]) -> None:
        """Put parts back, in the order given.

        Raises RestoreFailed when one does not fit: before anything is changed where the names or shapes
        show it, half-way where only an object's own ``load_state_dict`` can tell.
        """
        for part in parts:
            if part not in state:
                raise RestoreFailed("part_missing", f"the saved state has no {part}")
        for prefix in ("_check_", "_set_"):
            self._each(prefix, state, parts)

    def _each(self, prefix: str, state: Mapping[str, Any], parts: Sequence[str]) -> None:
        for part in parts:
            call = getattr(self, f"{prefix}{part}", None)
            if call is None:
                continue
            try:
                call(state[part])
            except (
                KeyError,
                TypeError,
                ValueError,
                IndexError,
                RuntimeError,
                AttributeError,
            ) as error:
                raise RestoreFailed(
                    "part_unfit", f"{part} could not be put back: {type(error).__name__}: {error}"
                ) from error

    # --- parts ---------------------------------------------------------------------------------

    def _get_loaders(self) -> list[Any]:
        return [feed.state_dict() for feed in self._feeds]

    def _check_loaders(self, saved: list[Any]) -> None:
        for feed, state in zip(self._feeds, saved, strict=True):
            feed.check(state)

    def _set_loaders(self, saved: list[Any]) -> None:
        for feed, state in zip(self._feeds, saved, strict=True):
            feed.load_state_dict(state)

    def _get_positions(self) -> list[dict[str, Any]]:
        return [feed.position() for feed in self._feeds]

    def _check_positions(self, saved: list[Any]) -> None:
        if len(saved) != len(self._feeds):
            raise RestoreFailed("loaders_differ", "other loaders were saved than are here")

    def _set_positions(self, saved: list[dict[str, Any]]) -> None:
        for feed, position in zip(self._feeds, saved, strict=True):
            feed.take_position(position)

    def _get_modes(self) -> bytes:
        """Training flag of every module and requires_grad of every parameter."""
        modules = bytes(module.training for _name, module in self._catalogue.modules)
        return modules + bytes(p.requires_grad for p in self._catalogue.parameters.values())

    def _check_modes(self, saved: bytes) -> None:
        modules = len(self._catalogue.modules)
        if len(saved) != modules + len(self._catalogue.parameters):
            raise RestoreFailed("modes_differ", "the models have other modules than the saved ones")

    def _set_modes(self, saved: bytes) -> None:
        modules = [module for _name, module in self._catalogue.modules]
        parameters = list(self._catalogue.parameters.values())
        for module, flag in zip(modules, saved, strict=False):
            module.training = bool(flag)
        for parameter, flag in zip(parameters, saved[len(modules) :], strict=True):
            parameter.requires_grad_(bool(flag))

    def _get_sync(self) -> bytes:
        return self._sync.capture()

    def _check_sync(self, saved: bytes) -> None:
        self._sync.check(saved)

    def _set_sync(self, saved: bytes) -> None:
        self._sync.restore(saved)

    def _get_tensors(self) -> dict[str, Any]:
        return self._tensors.capture()

    def _check_tensors(self, saved: dict[str, Any]) -> None:
        self._tensors.check(saved)

    def _set_tensors(self, saved: dict[str, Any]) -> None:
        self._tensors.restore(saved)

    def _get_module_extras(self) -> dict[str, Any]:
        return {
            name: module.get_extra_state()
            for name, module in self._catalogue.modules
            if type(module).get_extra_state is not nn.Module.get_extra_state
        }

    def _set_module_extras(self, saved: dict[str, Any]) -> None:
        modules = dict(self._catalogue.modules)
        for name, value in saved.items():
            modules[name].set_extra_state(value)

    def _get_optimizers(self) -> list[Any]:
        return self._words.capture()

    def _check_optimizers(self, saved: list[Any]) -> None:
        self._words.check(saved)

    def _set_optimizers(self, saved: list[Any]) -> None:
        self._words.restore(saved)

    def _get_schedulers(self) -> list[Any]:
        return [scheduler.state_dict() for scheduler in self._schedulers]

    def _check_schedulers(self, saved: list[Any]) -> None:
        if len(saved) != len(self._schedulers):
            raise RestoreFailed("schedulers_differ", "other schedulers were saved than are here")

    def _set_schedulers(self, saved: list[Any]) -> None:
        for scheduler, state in zip(self._schedulers, saved, strict=True):
            scheduler.load_state_dict(state)

    def _get_extras(self) -> dict[str, Any]:
        return {name: extra.capture() for name, extra in self._extras.items()}

    def _check_extras(self, saved: dict[str, Any]) -> None:
        _same_names("extras", set(self._extras), saved)

    def _set_extras(self, saved: dict[str, Any]) -> None:
        for name, value in saved.items():
            self._extras[name].restore(value)

    def _get_internal(self) -> dict[str, Any]:
        return {name: extra.capture() for name, extra in self._internal.items()}

    def _check_internal(self, saved: dict[str, Any]) -> None:
        _same_names("internal", set(self._internal), saved)

    def _set_internal(self, saved: dict[str, Any]) -> None:
        for name, value in saved.items():
            self._internal[name].restore(value)

    def _get_generators(self) -> dict[str, Any]:
        return self._bank.capture()

    def _check_generators(self, saved: dict[str, Any]) -> None:
        _same_names("generators", set(self._bank.names()), saved)

    def _set_generators(self, saved: dict[str, Any]) -> None:
        self._bank.restore(saved)


def _same_names(part: str, here: set[str], saved: Mapping[str, Any]) -> None:
    odd = ", ".join(sorted(here ^ set(saved)))
    if odd:
        raise RestoreFailed(f"{part}_differ", f"{part} differ from the saved ones: {odd:.300}")
