"""How is a run of Hugging Face's `Trainer` recorded? `Trainer(..., callbacks=[RecordCallback("traces/my-run")])`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

from transformers import TrainerCallback

from usp_prof.record.adapters import fsdp2
from usp_prof.record.marks import Mark, phase
from usp_prof.record.session import session

if TYPE_CHECKING:
    from pathlib import Path

    import torch
    from transformers import TrainingArguments

    from usp_prof.record.options import Options
    from usp_prof.record.session import Session


class RecordCallback(TrainerCallback):
    """Records optimizer steps; the mesh, the model and the batch sizes are read off the trainer's own arguments.

    `options` are those of `usp_prof.record.session`; give `sequence` (tokens per sample), which no argument tells, and
    the manifest holds the tokens per step and the cost of one token.
    """

    def __init__(self, folder: str | Path, **options: Unpack[Options]) -> None:
        self._folder = folder
        self._options = options
        self._session: Session | None = None
        self._phase: Mark | None = None

    def on_train_begin(self, args: TrainingArguments, *_: object, **given: Any) -> None:  # noqa: ANN401 - theirs
        """Begin the recording; the process group and the sharded model are there by now."""
        model: torch.nn.Module = given["model"]
        layout = fsdp2.layout_of(model)
        options = declared(args, self._options)
        options.setdefault("coordinates", layout.coordinates)
        self._session = session(
            self._folder, mesh=layout.mesh, groups=layout.groups, model=getattr(model, "config", None), **options
        )
        self._session.__enter__()

    def on_step_begin(self, *_: object, **__: object) -> None:
        """Mark forward and backward of all micro-batches of a step."""
        self._turn_to("fwd_bwd")

    def on_pre_optimizer_step(self, *_: object, **__: object) -> None:
        """Mark the optimizer."""
        self._turn_to("optimizer")

    def on_optimizer_step(self, *_: object, **__: object) -> None:
        """End the optimizer's mark."""
        self._turn_to("")

    def on_step_end(self, *_: object, **__: object) -> None:
        """End the step; what follows (logging, saving, the next batch) belongs to the next one."""
        self._turn_to("")
        if self._session is not None:
            self._session.advance()

    def on_train_end(self, *_: object, **__: object) -> None:
        """End the recording and write the manifest."""
        if self._session is not None:
            self._session.__exit__(None, None, None)
            self._session = None

    def _turn_to(self, name: str) -> None:
        if self._phase is not None:
            self._phase.__exit__(None, None, None)
        self._phase = phase(name).__enter__() if name else None


def declared(args: TrainingArguments, given: Options) -> Options:
    """Say what the trainer's arguments say of the run; what the user gave stays."""
    accumulation = int(args.gradient_accumulation_steps)
    samples = int(args.per_device_train_batch_size)
    options: Options = {
        "gradient_accumulation": accumulation,
        "dtype": "bf16" if args.bf16 else "fp16" if args.fp16 else "fp32",
        "options": {"trainer": "transformers.Trainer", "per_device_train_batch_size": samples},
    }
    sequence = given.get("sequence", 0)
    if sequence:
        options["micro_batch_tokens"] = samples * sequence
        options["tokens_per_step"] = samples * sequence * accumulation * int(args.world_size)
    if args.gradient_checkpointing:
        options["recompute"] = "full"
    return {**options, **given}
