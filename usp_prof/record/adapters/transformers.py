"""Hugging Face's `Trainer`: `Trainer(..., callbacks=[RecordCallback("traces/my-run", sequence=2048)])`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from accelerate.state import AcceleratorState
from transformers import TrainerCallback

from usp_prof.record.adapters import fsdp2
from usp_prof.record.marks import PhaseSwitch
from usp_prof.record.options import Options
from usp_prof.record.session import Session, session

if TYPE_CHECKING:
    import torch
    from accelerate.parallelism_config import ParallelismConfig
    from transformers import TrainerState, TrainingArguments


class RecordCallback(TrainerCallback):  # type: ignore[misc] # the library is not type-checked
    """Callback that records optimizer steps; mesh, model and batch sizes come from the trainer's arguments.

    `options` are those of `usp_prof.record.session`. With `sequence` (tokens per sample), which no argument has, the
    manifest has the tokens per step and the cost per token.
    """

    def __init__(self, folder: str | Path, **options: Unpack[Options]) -> None:
        self._folder = folder
        self._options = options
        self._session: Session | None = None
        self._phases = PhaseSwitch()

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        *_: object,
        **given: Any,  # noqa: ANN401 - theirs
    ) -> None:
        """Start the recording; the process group and the sharded model exist by now."""
        self.abandon()  # of a training run that raised, if the same trainer trains again
        model: torch.nn.Module = given["model"]
        layout = layout_of(model)
        options = declared(args, batch_split(args, state, model), self._options)
        options.setdefault("coordinates", layout.coordinates)
        self._session = session(
            self._folder, mesh=layout.mesh, groups=layout.groups, model=fsdp2.model_of(model), **options
        )
        self._session.on_superseded = self.abandon
        self._session.__enter__()

    def on_step_begin(self, *_: object, **__: object) -> None:
        """Mark forward and backward of all micro-batches of a step."""
        self._phases.turn_to("fwd_bwd")

    def on_pre_optimizer_step(self, *_: object, **__: object) -> None:
        """Mark the optimizer."""
        self._phases.turn_to("optimizer")

    def on_optimizer_step(self, *_: object, **__: object) -> None:
        """End the optimizer's mark."""
        self._phases.turn_to("")

    def on_step_end(self, *_: object, **__: object) -> None:
        """End the step; what follows (logging, saving, the next batch) belongs to the next one."""
        self._phases.turn_to("")
        if self._session is not None:
            self._session.advance()

    def on_train_end(self, *_: object, **__: object) -> None:
        """End the recording and write the manifest."""
        if self._session is not None:
            self._session.__exit__(None, None, None)
            self._session = None

    def abandon(self) -> None:
        """End the recording of a training run that raised, and save its complete steps."""
        self._phases.turn_to("")
        if self._session is not None:
            self._session.abandon("the training raised")
            self._session = None


@dataclass(frozen=True, slots=True)
class BatchSplit:
    """How a step's samples are split: per micro-batch, and concurrent micro-batches of the job."""

    samples: int
    at_once: int


def layout_of(model: torch.nn.Module) -> fsdp2.Layout:
    """Read the layout from accelerate's mesh of the whole job, else from the model's parameters."""
    mesh = getattr(AcceleratorState(), "device_mesh", None)
    return fsdp2.layout_of(model) if mesh is None else fsdp2.layout_of_mesh(mesh)


def batch_split(args: TrainingArguments, state: TrainerState, model: torch.nn.Module) -> BatchSplit:
    """Return how a step's samples are split over ranks; ranks of one tp, cp, sp or pp group share their batch."""
    parallelism = getattr(AcceleratorState(), "parallelism_config", None)
    pipeline = getattr(getattr(fsdp2.model_of(model), "distributed_config", None), "pp_size", None) or 1
    shared = pipeline * tensor_parallel_size(args, model, parallelism)
    if parallelism is not None:
        shared *= parallelism.cp_size * parallelism.sp_size
    at_once = max(1, int(args.world_size) // shared)
    # The state's size is the one in use: `auto_find_batch_size` lowers it, and one process may drive several devices.
    samples = int(state.train_batch_size or args.train_batch_size)
    if getattr(args.accelerator_config, "split_batches", False):
        samples //= at_once
    return BatchSplit(samples, at_once)


def tensor_parallel_size(args: TrainingArguments, model: torch.nn.Module, parallelism: ParallelismConfig | None) -> int:
    """Return the tensor-parallel degree: the model's, DeepSpeed's or accelerate's, in the trainer's order."""
    own = getattr(model, "tp_size", None)
    if own:
        return int(own)
    deepspeed = getattr(args, "hf_deepspeed_config", None)
    if deepspeed is not None:
        return int(deepspeed.config.get("tensor_parallel", {}).get("autotp_size", 1) or 1)
    return int(parallelism.tp_size or 1) if parallelism is not None else 1


def declared(args: TrainingArguments, split: BatchSplit, given: Options) -> Options:
    """Return the manifest fields from the trainer's arguments; the user's values take precedence."""
    accumulation = int(args.gradient_accumulation_steps)
    options: Options = {
        "gradient_accumulation": accumulation,
        "dtype": "bf16" if args.bf16 else "fp16" if args.fp16 else "fp32",
        "options": {
            "trainer": "transformers.Trainer",
            "per_device_train_batch_size": int(args.per_device_train_batch_size),
        },
    }
    sequence = given.get("sequence", 0)
    if sequence:
        options["micro_batch_tokens"] = split.samples * sequence
        options["tokens_per_step"] = split.samples * sequence * accumulation * split.at_once
    if args.gradient_checkpointing:
        options["recompute"] = "full"
    return {**options, **given}
