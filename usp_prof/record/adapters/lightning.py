"""Lightning's `Trainer`: `Trainer(..., callbacks=[RecordCallback("traces/my-run", model=config, sequence=2048)])`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from lightning.pytorch.callbacks import Callback
from torch.distributed.device_mesh import DeviceMesh

from usp_prof.record.adapters import fsdp2
from usp_prof.record.marks import PhaseSwitch
from usp_prof.record.options import Options
from usp_prof.record.session import Session, session

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer


class RecordCallback(Callback):  # type: ignore[misc] # the library is not type-checked
    """Callback that records optimizer steps.

    The mesh is that of the strategy or of sharded parameters, else data parallelism. `options` are those of
    `usp_prof.record.session`. With `sequence` (tokens per sample), the manifest has the tokens per step. `model` is a
    configuration for FLOP counts; the default is the module's own `config`, if it has one.
    """

    def __init__(self, folder: str | Path, *, model: object = None, **options: Unpack[Options]) -> None:
        self._folder = folder
        self._model = model
        self._options = options
        self._session: Session | None = None
        self._phases = PhaseSwitch()
        self._step = 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the recording; the strategy has set up its process groups by now."""
        layout = layout_of(trainer, pl_module)
        options = declared(trainer, self._options)
        options.setdefault("coordinates", layout.coordinates)
        model = fsdp2.model_of(pl_module) if self._model is None else self._model
        self._step = trainer.global_step
        self._session = session(
            self._folder, mesh=layout.mesh, groups=layout.groups, model=model, **options
        ).__enter__()

    def on_train_batch_start(self, *_: object) -> None:
        """Mark the forward pass."""
        self._phases.turn_to("forward")

    def on_before_backward(self, *_: object) -> None:
        """Mark the backward pass."""
        self._phases.turn_to("backward")

    def on_after_backward(self, *_: object) -> None:
        """End the backward pass."""
        self._phases.turn_to("")

    def on_before_optimizer_step(self, *_: object) -> None:
        """Mark the optimizer."""
        self._phases.turn_to("optimizer")

    def on_train_batch_end(self, trainer: Trainer, *_: object) -> None:
        """End the step if the optimizer stepped; a batch that only accumulates does not."""
        self._phases.turn_to("")
        if self._session is not None and trainer.global_step != self._step:
            self._step = trainer.global_step
            self._session.advance()

    def on_train_end(self, *_: object) -> None:
        """End the recording and write the manifest."""
        self._end(None)

    def on_exception(self, _trainer: Trainer, _module: LightningModule, exception: BaseException) -> None:
        """End the recording; complete steps of an unfinished window are saved."""
        self._end(exception)

    def _end(self, error: BaseException | None) -> None:
        self._phases.turn_to("")
        if self._session is not None:
            self._session.__exit__(None if error is None else type(error), error, None)
            self._session = None


def layout_of(trainer: Trainer, module: LightningModule) -> fsdp2.Layout:
    """Read the layout from the strategy's mesh (`ModelParallelStrategy`), else from the module's parameters."""
    mesh = getattr(trainer.strategy, "device_mesh", None)
    return fsdp2.layout_of_mesh(mesh) if isinstance(mesh, DeviceMesh) else fsdp2.layout_of(module)


def declared(trainer: Trainer, given: Options) -> Options:
    """Return the manifest fields from the trainer; the user's values take precedence."""
    precision = str(trainer.precision)
    accumulation = int(trainer.accumulate_grad_batches)
    options: Options = {
        "gradient_accumulation": accumulation,
        "dtype": "bf16" if "bf16" in precision else "fp16" if "16" in precision else "fp32",
        "options": {"trainer": "lightning.Trainer", "strategy": type(trainer.strategy).__name__},
    }
    tokens = samples_of_batch(trainer) * given.get("sequence", 0)
    if tokens:
        # Ranks of one tensor-parallel group share their batch: the sampler's replicas are the concurrent batches.
        sampler: Mapping[str, int] = getattr(trainer.strategy, "distributed_sampler_kwargs", None) or {}
        options["micro_batch_tokens"] = tokens
        options["tokens_per_step"] = tokens * accumulation * sampler.get("num_replicas", 1)
    return {**options, **given}


def samples_of_batch(trainer: Trainer) -> int:
    """Return the samples per batch of the training loader; 0 if unknown, or if there are several loaders."""
    loader = trainer.train_dataloader
    sampler = getattr(loader, "batch_sampler", None)
    return int(getattr(loader, "batch_size", None) or getattr(sampler, "batch_size", None) or 0)
