"""How is a run of Lightning's `Trainer` recorded? `Trainer(..., callbacks=[RecordCallback("traces/my-run")])`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

from lightning.pytorch.callbacks import Callback

from usp_prof.record.adapters import fsdp2
from usp_prof.record.marks import Mark, phase
from usp_prof.record.session import session

if TYPE_CHECKING:
    from pathlib import Path

    from lightning.pytorch import LightningModule, Trainer

    from usp_prof.record.options import Options
    from usp_prof.record.session import Session


class RecordCallback(Callback):
    """Records optimizer steps; the mesh is read off the sharded parameters, else it is data parallelism.

    `options` are those of `usp_prof.record.session`; `model` is a configuration to count FLOP by, since a
    LightningModule has none by convention.
    """

    def __init__(self, folder: str | Path, *, model: object = None, **options: Unpack[Options]) -> None:
        self._folder = folder
        self._model = model
        self._options = options
        self._session: Session | None = None
        self._phase: Mark | None = None
        self._step = 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin the recording; the strategy has set up its process groups by now."""
        layout = fsdp2.layout_of(pl_module)
        options = declared(trainer, self._options)
        options.setdefault("coordinates", layout.coordinates)
        self._step = trainer.global_step
        self._session = session(
            self._folder, mesh=layout.mesh, groups=layout.groups, model=self._model, **options
        ).__enter__()

    def on_train_batch_start(self, *_: object) -> None:
        """Mark the forward pass."""
        self._turn_to("forward")

    def on_before_backward(self, *_: object) -> None:
        """Mark the backward pass."""
        self._turn_to("backward")

    def on_after_backward(self, *_: object) -> None:
        """End the backward pass."""
        self._turn_to("")

    def on_before_optimizer_step(self, *_: object) -> None:
        """Mark the optimizer."""
        self._turn_to("optimizer")

    def on_train_batch_end(self, trainer: Trainer, *_: object) -> None:
        """End the step if the optimizer stepped; a batch that only accumulates does not."""
        self._turn_to("")
        if self._session is not None and trainer.global_step != self._step:
            self._step = trainer.global_step
            self._session.advance()

    def on_train_end(self, *_: object) -> None:
        """End the recording and write the manifest."""
        self._end(None)

    def on_exception(self, _trainer: Trainer, _module: LightningModule, exception: BaseException) -> None:
        """End the recording without a trace of the unfinished window."""
        self._end(exception)

    def _end(self, error: BaseException | None) -> None:
        self._turn_to("")
        if self._session is not None:
            self._session.__exit__(None if error is None else type(error), error, None)
            self._session = None

    def _turn_to(self, name: str) -> None:
        if self._phase is not None:
            self._phase.__exit__(None, None, None)
        self._phase = phase(name).__enter__() if name else None


def declared(trainer: Trainer, given: Options) -> Options:
    """Say what the trainer says of the run; what the user gave stays."""
    precision: Any = trainer.precision
    dtype = "bf16" if "bf16" in str(precision) else "fp16" if "16" in str(precision) else "fp32"
    options: Options = {
        "gradient_accumulation": int(trainer.accumulate_grad_batches),
        "dtype": dtype,
        "options": {"trainer": "lightning.Trainer", "strategy": type(trainer.strategy).__name__},
    }
    return {**options, **given}
