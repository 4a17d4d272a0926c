"""Hugging Face Trainer: ``protect(trainer, run)`` before ``trainer.train()``.

The Trainer sets everything up once. Its epochs then run inside ``run.loop``, entered again after a recovery
by the Trainer's own way of resuming in the middle of an epoch, with nothing loaded from disk. Logging,
evaluation and checkpoints, which talk to other ranks, come after the fence: a failure there does them again.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import transformers.trainer
from transformers import Trainer, TrainerCallback
from transformers.trainer_callback import ExportableState

from ..run import Run
from .accelerate import Place, bare_loader, bare_optimizer, check
from .remaining import NotSupported, Remaining

_HERE = "where the run stands"
"""given as the checkpoint to resume from: there is none"""
_NOT_CARRIED = ("stateful_callbacks", "is_local_process_zero", "is_world_process_zero")
_REPLACED = ("_run_epoch", "_get_grad_norm", "_maybe_log_save_evaluate", "_load_rng_state")
_TIMED = ("_runtime", "_per_second")


def protect(trainer: Trainer, run: Run, **extras: Any) -> None:
    """Protect what ``trainer.train()`` will train; ``extras`` as in ``run.protect``.

    Raises NotSupported, naming the setting, for what could not be carried over a failure.
    """
    _check(trainer, run)
    driver = _Driver(trainer, run, extras)
    trainer.add_callback(_Refusing())
    for name in ("get_train_dataloader", *_REPLACED):
        setattr(trainer, name, getattr(driver, name.removeprefix("_")))


def _check(trainer: Trainer, run: Run) -> None:
    arguments = trainer.args
    missing = [name for name in _REPLACED if not hasattr(trainer, name)]
    if missing:
        raise NotSupported(
            f"this transformers has no Trainer.{missing[0]}: 5.24 is what was tested"
        )
    check(run, trainer.accelerator)
    refused = {
        "auto_find_batch_size": arguments.auto_find_batch_size,
        "ignore_data_skip": arguments.ignore_data_skip,
        "fsdp": trainer.is_fsdp_enabled,
        "deepspeed": trainer.is_deepspeed_enabled,
        "torch_compile": arguments.torch_compile,
        "neftune_noise_alpha": arguments.neftune_noise_alpha is not None,
        # The Trainer draws a step's micro-batches before it computes any: what was kept between would lie.
        "gradient_accumulation_steps": arguments.gradient_accumulation_steps != 1,
    }
    for name, found in refused.items():
        if found:
            raise NotSupported(f"TrainingArguments({name}=...) is not supported")


class _Refusing(TrainerCallback):  # type: ignore[misc]
    """Ends a run whose callbacks cut an epoch short: the loader would stand in its middle."""

    def on_step_end(self, args: Any, state: Any, control: Any, **_others: Any) -> None:
        if control.should_epoch_stop and not control.should_training_stop:
            raise NotSupported("should_epoch_stop is not supported: stop the training, or no epoch")


class _Driver:
    """Stands in for some methods of one Trainer; what it counts is protected with the Trainer's state."""

    def __init__(self, trainer: Trainer, run: Run, extras: dict[str, Any]) -> None:
        self._trainer, self._run, self._extras = trainer, run, extras
        self._loader = trainer.get_train_dataloader
        self._epoch = trainer._run_epoch
        self._report = trainer._maybe_log_save_evaluate
        self._norm_of = trainer._get_grad_norm
        self._remaining: Remaining | None = None
        self._settings: dict[str, Any] = {}
        self.epoch, self.began_at, self.begun = 0, 0, True
        """the Trainer's epoch, the step it began at, and whether its beginning was announced"""
        self.norm: float | None = None
        self.rate: float | None = None
        """gradient norm and learning rate of the last step: known before it is made, told after it"""
        self.due: list[float | None] | None = None
        """(gradient norm, learning rate, epoch) of a step whose report is not made yet"""

    # --- in place of the Trainer's methods ---

    def get_train_dataloader(self) -> Remaining:
        self._remaining = Remaining(self._run, bare_loader(self._loader()))
        return self._remaining

    def load_rng_state(self, checkpoint: Any) -> None:
        """Generators are put back with everything else."""

    def get_grad_norm(self, *arguments: Any, **keywords: Any) -> Any:
        found = self._norm_of(*arguments, **keywords)
        self.norm = None if found is None else float(found)
        return found

    def run_epoch(self, **settings: Any) -> None:
        """Called for the first epoch: runs them all, and lets the Trainer finish."""
        trainer = self._trainer
        if settings["resume_from_checkpoint"] is not None:
            raise NotSupported("train(resume_from_checkpoint=...) is not supported")
        assert self._remaining is not None
        self._settings = settings
        self._run.protect(
            model=trainer.model_wrapped, optimizer=bare_optimizer(trainer.optimizer),
            scheduler=trainer.lr_scheduler, loader=self._remaining.loader, trainer=self,
            accelerate=Place(self._run), **self._extras,
        )  # fmt: skip
        skip = transformers.trainer.skip_first_batches
        transformers.trainer.skip_first_batches = lambda loader, _count: loader
        try:
            self._run.loop(self._train)
        finally:
            transformers.trainer.skip_first_batches = skip
        trainer.control.should_training_stop = True

    def maybe_log_save_evaluate(
        self, _loss: Any, _grad_norm: Any, _model: Any, _trial: Any, epoch: float, *_others: Any,
        learning_rate: float | None = None, **_named: Any,
    ) -> None:  # fmt: skip
        self.rate = self.rate if learning_rate is None else learning_rate
        self.due = [self.norm, self.rate, epoch]
        self._run.fence()
        self._make_report()

    # --- the loop ---

    def _train(self) -> None:
        """Entered again, in position, after every recovery."""
        trainer = self._trainer
        trainer.accelerator.gradient_state.dataloader_references = [None]
        trainer.state.is_world_process_zero = trainer.is_world_process_zero()
        if self.due is not None:
            self._make_report()
        while self.epoch < trainer.state.num_train_epochs:
            if trainer.control.should_training_stop and self.due is None:
                return
            if not self.begun:
                trainer.control = trainer.callback_handler.on_epoch_begin(
                    trainer.args, trainer.state, trainer.control
                )
                self.begun, self.began_at = True, trainer.state.global_step
            done = trainer.state.global_step - self.began_at
            here = {
                "epoch": self.epoch, "epochs_trained": self.epoch, "resume_from_checkpoint": _HERE,
                "steps_trained_in_current_epoch": done * trainer.args.gradient_accumulation_steps,
            }  # fmt: skip
            self._epoch(**{**self._settings, **here})
            self.epoch, self.begun = self.epoch + 1, False

    def _make_report(self) -> None:
        """Log, evaluate, save: after the fence, and again when a failure interrupted it."""
        assert self.due is not None
        grad_norm, learning_rate, epoch = self.due
        if not self._run.rehearsing:
            settings, trainer = self._settings, self._trainer
            self._report(
                trainer._tr_loss, grad_norm, settings["model"], settings["trial"], epoch,
                settings["ignore_keys_for_eval"], settings["start_time"], learning_rate=learning_rate,
            )  # fmt: skip
        self.due = None

    # --- what it is in between ---

    def state_dict(self) -> dict[str, Any]:
        trainer = self._trainer
        state = {
            field.name: getattr(trainer.state, field.name)
            for field in dataclasses.fields(trainer.state)
            if field.name not in _NOT_CARRIED
        }
        state["log_history"] = [_untimed(entry) for entry in trainer.state.log_history]
        return {
            "epoch": [self.epoch, self.began_at, self.begun],
            "due": self.due,
            "last": [self.norm, self.rate],
            "state": state,
            "control": dataclasses.asdict(trainer.control),
            "callbacks": [callback.state()["attributes"] for callback in self._stateful()],
            "loss": [float(trainer._tr_loss), trainer._total_loss_scalar],
            "logged": trainer._globalstep_last_logged,
            "flos": trainer.current_flos,
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        trainer = self._trainer
        self.epoch, self.began_at, self.begun = saved["epoch"]
        self.due = saved["due"]
        self.norm, self.rate = saved["last"]
        for part, values in ((trainer.state, saved["state"]), (trainer.control, saved["control"])):
            for name, value in values.items():
                setattr(part, name, value)
        for callback, attributes in zip(self._stateful(), saved["callbacks"], strict=True):
            for name, value in attributes.items():
                setattr(callback, name, value)
        trainer._tr_loss.fill_(saved["loss"][0])
        trainer._total_loss_scalar = saved["loss"][1]
        trainer._globalstep_last_logged = saved["logged"]
        trainer.current_flos = saved["flos"]

    def _stateful(self) -> list[Any]:
        return [
            callback
            for callback in self._trainer.callback_handler.callbacks
            if isinstance(callback, ExportableState)
        ]


def _untimed(entry: dict[str, Any]) -> dict[str, Any]:
    """A line of the log without what a clock measured: no two runs would agree on it."""
    return {key: value for key, value in entry.items() if not key.endswith(_TIMED)}
